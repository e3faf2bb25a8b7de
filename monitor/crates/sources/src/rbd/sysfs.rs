//! What sysfs shows of RBD images that the kernel has mapped (drivers/block/rbd.c, `rbd_attrs`). Each attribute that is read is printed from memory, so
//! that no read waits for the cluster; `size` and `parent` wait, and `config_info` may hold keys: these are never opened.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use kevtmon_observation::{RbdImage, RbdImages, RbdNumber};

use crate::loop_device::names;

pub(super) const IMAGES_MAX: usize = 256;
const PARTITIONS_MAX: usize = 64;
/// Block devices made of one that are told.
const USERS_MAX: usize = 16;
/// The longest attribute: a page, as sysfs.
const ATTRIBUTE_MAX: u64 = 4096;
/// The longest name of an image or pool that is believed.
const NAME_MAX: usize = 512;
/// What the kernel shows where no snapshot is mapped.
const NO_SNAPSHOT: &str = "-";

/// What is wrong, and with which device.
pub(super) type Problem = (Option<RbdNumber>, &'static str);

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) images: RbdImages,
    pub(super) problems: BTreeSet<Problem>,
}

/// All images that are mapped; none where the kernel has no such bus.
pub(super) fn look(sysfs: &Path) -> io::Result<Found> {
    let bus = sysfs.join("bus/rbd/devices");
    let mut found = Found::default();
    let entries = match fs::read_dir(&bus) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    let mut numbers = BTreeSet::new();
    for entry in entries {
        let name = entry?.file_name();
        match name.to_str().and_then(decimal) {
            Some(number) => numbers.insert(number),
            None => found.problems.insert((None, "its name is no number")),
        };
    }
    let omitted = numbers.len().saturating_sub(IMAGES_MAX);
    found.images.omitted = omitted.try_into().unwrap_or(u32::MAX);
    for number in numbers.into_iter().take(IMAGES_MAX) {
        let device = Device { directory: &bus.join(number.to_string()), sysfs, number: number.into() };
        match device.image(&mut found.problems) {
            Ok(image) => found.images.images.push(image),
            // It went while it was read.
            Err(_) if !device.is_there() => {}
            Err(problem) => {
                found.problems.insert((Some(device.number), problem));
                found.images.unread.push(device.number);
            }
        }
    }
    Ok(found)
}

/// `major:minor` of a device and of its partitions, the device first.
pub fn devices(sysfs: &Path, image: &RbdImage) -> Vec<String> {
    let name = image.number.to_string();
    let directory = sysfs.join("block").join(&name);
    let is_part = |part: &String| part.strip_prefix(&name).is_some_and(|rest| rest.starts_with('p'));
    let parts = names(&directory).filter(is_part).take(PARTITIONS_MAX);
    let numbers = parts.filter_map(|part| device_number(&directory.join(part).join("dev")));
    std::iter::once(image.device.clone()).chain(numbers).collect()
}

/// Block devices that are made of a device or of a partition of it: `dm-0`, and the loop devices on it.
pub fn users(sysfs: &Path, image: &RbdImage) -> Vec<String> {
    let name = image.number.to_string();
    let block = sysfs.join("block");
    let is_it =
        |part: &str| part.strip_prefix(&name).is_some_and(|rest| rest.is_empty() || rest.starts_with('p'));
    let parts = names(&block.join(&name)).filter(|part| is_it(part)).take(PARTITIONS_MAX);
    let parts = parts.map(|part| block.join(&name).join(part).join("holders"));
    let mut users: BTreeSet<String> = names(&block.join(&name).join("holders")).collect();
    users.extend(parts.flat_map(|holders| names(&holders)));
    let is_on_it = |device: &String| {
        let file = read_attribute(&block.join(device).join("loop/backing_file")).ok().flatten();
        file.is_some_and(|file| file.strip_prefix("/dev/").is_some_and(is_it))
    };
    users.extend(names(&block).filter(|device| device.starts_with("loop") && is_on_it(device)));
    users.into_iter().take(USERS_MAX).collect()
}

struct Device<'a> {
    directory: &'a Path,
    sysfs: &'a Path,
    number: RbdNumber,
}

impl Device<'_> {
    fn image(&self, problems: &mut BTreeSet<Problem>) -> Result<RbdImage, &'static str> {
        let mut optional =
            |name: &str, problem: &'static str, is_valid: fn(&str) -> bool| match self.text(name) {
                Ok(text) if text.as_deref().is_none_or(is_valid) => text,
                _ => {
                    // Where the device has gone since, there is nothing to say.
                    if self.is_there() {
                        problems.insert((Some(self.number), problem));
                    }
                    None
                }
            };
        let namespace = optional("pool_ns", "pool_ns", |text| text.is_empty() || is_name(text));
        let image_id = optional("image_id", "image_id", is_name);
        let client_id = optional("client_id", "client_id", is_client);
        let client_addr = optional("client_addr", "client_addr", is_address);
        let cluster_fsid = optional("cluster_fsid", "cluster_fsid", is_uuid);
        let name =
            |name: &str, problem| self.text(name).ok().flatten().filter(|text| is_name(text)).ok_or(problem);
        // Without it, a snapshot would be taken for the image.
        let snapshot = name("current_snap", "current_snap")?;
        let image = RbdImage {
            number: self.number,
            device: self.device().ok_or("major, minor")?,
            pool: name("pool", "pool")?,
            namespace: namespace.filter(|text| !text.is_empty()),
            image: name("name", "name")?,
            image_id,
            snapshot: Some(snapshot).filter(|text| text != NO_SNAPSHOT),
            client_id,
            client_addr,
            cluster_fsid,
        };
        if self.is_there() { Ok(image) } else { Err("it is gone") }
    }

    /// `minor` is there since Linux 3.14; what the block device says is the same.
    fn device(&self) -> Option<String> {
        let number = |name| decimal(&self.text(name).ok()??);
        let of_block = || device_number(&self.sysfs.join(format!("block/{}/dev", self.number)));
        match (number("major"), number("minor")) {
            (Some(major), Some(minor)) => Some(format!("{major}:{minor}")),
            _ => of_block(),
        }
    }

    fn is_there(&self) -> bool {
        self.directory.exists()
    }

    /// One attribute; `None` where there is none.
    fn text(&self, name: &str) -> io::Result<Option<String>> {
        read_attribute(&self.directory.join(name))
    }
}

/// A line, without its end. One that has none was cut.
pub(super) fn read_attribute(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(ATTRIBUTE_MAX).read_to_string(&mut text)?;
    let line = text.strip_suffix('\n').filter(|line| !line.contains('\n'));
    line.map(|line| Some(line.to_owned())).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

pub(super) fn device_number(path: &Path) -> Option<String> {
    let text = read_attribute(path).ok()??;
    let (major, minor) = text.split_once(':')?;
    Some(format!("{}:{}", decimal(major)?, decimal(minor)?))
}

pub(super) fn decimal(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_MAX && !text.chars().any(char::is_control)
}

fn is_client(text: &str) -> bool {
    text.strip_prefix("client").is_some_and(|id| id.parse::<u64>().is_ok())
}

/// `IP:PORT/NONCE`, an IPv6 address in brackets.
fn is_address(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, nonce)| {
        address.parse::<std::net::SocketAddr>().is_ok() && nonce.parse::<u32>().is_ok()
    })
}

pub(crate) fn is_uuid(text: &str) -> bool {
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    groups == [8, 4, 4, 4, 12] && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}
