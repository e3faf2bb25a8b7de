//! Images that programs called `rbd-nbd` have mapped. The kernel has a network block device (drivers/block/nbd.c) and tells who
//! has connected it (`pid`); which image that is stands in the arguments of that program alone. What they do not tell, is not
//! known: a client and its address never are.
//!
//! Where that program has ended, another one may serve the device (`rbd-nbd attach`). The kernel does not name it
//! (`nbd_genl_reconfigure`), but takes only one that has the cookie of the first (`backend`, since Linux 5.14), if that had any.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use kevtmon_observation::{ImageName, RbdImage, RbdNumber};
use serde::{Deserialize, Serialize};

use super::command_line::{attached_by_nbd, mapped_by_nbd};
use super::sysfs::{Found, IMAGES_MAX, decimal, device_number, read_attribute};
use crate::procfs::dir::{Buffer, is_gone};
use crate::procfs::readers::{Job, reading_none};
use crate::procfs::root::is_root_of_node;
use crate::procfs::{Proc, parse_ns};
use crate::programs::{INITIAL_PIDNS, named};

const PROGRAM: &str = "rbd-nbd";
/// What is said of one whose arguments are not understood.
const UNCLEAR: &str = "which image rbd-nbd has mapped";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Connected {
    number: RbdNumber,
    /// `major:minor`.
    device: String,
    /// The task that has connected it, in the initial process namespace (`pid_show`).
    pid: u32,
    /// The cookie of what may serve it.
    backend: Option<String>,
}

/// All of them. What cannot be read is added to `found`.
pub(super) fn connected(sysfs: &Path, found: &mut Found) -> io::Result<Vec<Connected>> {
    let mut all = BTreeMap::new();
    let entries = match fs::read_dir(sysfs.join("block")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(RbdNumber::NBD)).and_then(decimal);
        let Some(number) = number.map(RbdNumber::Nbd) else { continue };
        let pid = match read_attribute(&entry.path().join("pid")) {
            // It is not connected, or goes while it is read.
            Ok(None) => continue,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
            Ok(Some(text)) => decimal(&text),
            Err(_) => None,
        };
        let device = device_number(&entry.path().join("dev"));
        let problem = match (pid, device) {
            (Some(pid), Some(device)) => {
                let backend = read_attribute(&entry.path().join("backend")).ok().flatten();
                let backend = backend.filter(|cookie| !cookie.is_empty());
                all.insert(number, Connected { number, device, pid, backend });
                continue;
            }
            (None, _) => "pid",
            (_, None) => "dev",
        };
        // It may be an image.
        found.problems.insert((Some(number), problem));
        found.images.unread.push(number);
    }
    Ok(all.into_values().collect())
}

/// Adds the images of those that are connected, as far as there is room. `mappers`: what connected them, where that could be looked
/// at; `was_image`: whether a device had an image at the last look.
pub(super) fn add(
    connected: Vec<Connected>,
    mappers: &[(RbdNumber, Mapper)],
    was_image: impl Fn(RbdNumber) -> bool,
    found: &mut Found,
) {
    for Connected { number, device, .. } in connected {
        let mapper = mappers.iter().find(|(of, _)| *of == number).map(|(_, mapper)| mapper);
        let images = &mut found.images;
        match mapper {
            Some(Mapper::Other) => {}
            // The kernel goes on without it for a while (`NBD_ATTR_DEAD_CONN_TIMEOUT`); it may have been any program.
            Some(Mapper::Gone) if !was_image(number) => {}
            _ if images.omitted > 0 || images.images.len() >= IMAGES_MAX => {
                images.omitted = images.omitted.saturating_add(1);
            }
            Some(Mapper::Image { name, snapshot }) => images.images.push(RbdImage {
                number,
                device,
                pool: name.pool.clone(),
                namespace: name.namespace.clone(),
                image: name.image.clone(),
                snapshot: snapshot.clone(),
                ..RbdImage::default()
            }),
            Some(Mapper::Unclear) => {
                images.unread.push(number);
                found.problems.insert((Some(number), UNCLEAR));
            }
            Some(Mapper::Gone) | None => images.unread.push(number),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mapper {
    /// `rbd-nbd`, for this image or snapshot.
    Image {
        name: ImageName,
        snapshot: Option<String>,
    },
    /// `rbd-nbd`, or what may be, for an image that cannot be told.
    Unclear,
    Other,
    /// A process that is not there any more.
    Gone,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Look {
    devices: Vec<Connected>,
}

impl Look {
    pub(super) fn at(connected: &[Connected]) -> Self {
        Self { devices: connected.iter().take(IMAGES_MAX).cloned().collect() }
    }
}

impl Job for Look {
    const NAME: &'static str = "rbd-nbd";
    type Reply = Vec<(RbdNumber, Mapper)>;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let own = fs::read_link(proc.root().join("self/ns/pid"));
        let own = own.ok().and_then(|link| parse_ns(&link.to_string_lossy()));
        reading_none();
        // The kernel has numbered them there.
        if own != Some(INITIAL_PIDNS) {
            return self.devices.iter().map(|device| (device.number, Mapper::Unclear)).collect();
        }
        let attached = LazyCell::new(|| attached(proc));
        let look = |device: &Connected| {
            let mapper = match mapper(proc, device, device.pid) {
                image @ Mapper::Image { .. } => image,
                // Its id may be of another process since.
                other => successor(proc, device, &attached).unwrap_or(other),
            };
            (device.number, mapper)
        };
        self.devices.iter().map(look).collect()
    }
}

/// Processes that say that they have attached a device.
fn attached(proc: &Proc) -> Vec<(RbdNumber, u32)> {
    let (mut links, mut text) = (Buffer::default(), Vec::new());
    let of_device = |pid: u32| {
        let process = proc.dir(pid).ok()?;
        named(&process.link(c"exe", &mut links).ok()?, &[PROGRAM])?;
        let number = attached_by_nbd(process.text(c"cmdline", &mut text).ok()?.as_bytes())?;
        Some((number, pid))
    };
    proc.pids().unwrap_or_default().into_iter().filter_map(of_device).collect()
}

/// What serves a device in place of what has connected it.
fn successor(proc: &Proc, device: &Connected, attached: &[(RbdNumber, u32)]) -> Option<Mapper> {
    let all = attached.iter().filter(|(number, _)| *number == device.number);
    let all = all.map(|(_, pid)| mapper(proc, device, *pid));
    let mut all = all.filter(|mapper| matches!(mapper, Mapper::Image { .. }));
    let first = all.next()?;
    Some(if all.all(|other| other == first) { first } else { Mapper::Unclear })
}

/// A command name is anybody's to choose; who connects a device is root.
fn mapper(proc: &Proc, device: &Connected, pid: u32) -> Mapper {
    let (mut links, mut text) = (Buffer::default(), Vec::new());
    let unread = |error: io::Error| if is_gone(&error) { Mapper::Gone } else { Mapper::Unclear };
    let process = match proc.dir(pid) {
        Ok(process) => process,
        Err(error) => return unread(error),
    };
    match process.link(c"exe", &mut links) {
        Ok(exe) if named(&exe, &[PROGRAM]).is_none() => return Mapper::Other,
        Ok(_) => {}
        Err(error) => return unread(error),
    }
    if !is_root_of_node(&process, &mut links, &mut text) {
        return if process.is_there(&mut text) { Mapper::Other } else { Mapper::Gone };
    }
    match process.text(c"cmdline", &mut text) {
        Ok(arguments) => {
            match mapped_by_nbd(arguments.as_bytes(), device.number, device.backend.as_deref()) {
                Some((name, snapshot)) => Mapper::Image { name, snapshot },
                None => Mapper::Unclear,
            }
        }
        Err(error) => unread(error),
    }
}
