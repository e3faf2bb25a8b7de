//! Files of detached mounts that a process has mapped, by their file systems: of nearly all processes the kernel tells at once that
//! they have none.

use std::io;
use std::ops::ControlFlow;

use kevtmon_observation::Access;
use kevtmon_sources::procfs::dir::{Dir, is_gone};
use kevtmon_sources::procfs::mountinfo::device_numbers;
use kevtmon_sources::procfs::procmap::maps_any;

use super::Use;
use crate::pins::{Pin, file_name, map_file, mapped_file};
use crate::searched::is_device;

/// Mappings of one process that are looked at, where they are counted, and bytes of the text.
const MAPPINGS_MAX: u32 = 1 << 16;
const TEXT_MAX: u64 = 8 << 20;
/// Of a line of it: what is before the name, and as much of that as a link shows.
const LINE_MAX: usize = 80 + 4096;

pub(super) struct Mapped<'a> {
    devices: Vec<&'a str>,
    numbers: Vec<(u32, u32)>,
}

impl<'a> Mapped<'a> {
    /// `devices`: `major:minor`.
    pub(super) fn of(devices: impl Iterator<Item = &'a str>) -> Self {
        let devices: Vec<&str> = devices.collect();
        let numbers = devices.iter().filter_map(|device| device_numbers(device)).collect();
        Self { devices, numbers }
    }

    pub(super) fn any(&self, process: &Dir) -> io::Result<bool> {
        if self.devices.is_empty() {
            return Ok(false);
        }
        if let Ok(Some(found)) = maps_any(process, &self.numbers, MAPPINGS_MAX) {
            return Ok(found);
        }
        let mut found = false;
        process.lines(c"maps", (TEXT_MAX, LINE_MAX), |line, _| {
            let device = mapped_file(line).map(|(_, device)| device);
            found = device.is_some_and(|device| self.devices.iter().any(|own| is_device(device, own)));
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(found)
    }
}

/// The first mapping of a file of this file system that is on one of these mounts. `is_program`: what is not told again as a
/// mapping.
/// Errors: where none was found, and it was not shown of all on which mount they are.
pub fn first_of(
    process: &Dir,
    device: &str,
    ids: &[u64],
    is_program: impl Fn(&str) -> bool,
) -> io::Result<Option<Use>> {
    let (mut first, mut refused) = (None, None);
    let is_all = process.lines(c"maps", (TEXT_MAX, LINE_MAX), |line, _| {
        let file = mapped_file(line).filter(|(path, on)| is_device(on, device) && !is_program(path));
        let Some((link, path)) = file.and_then(|(path, _)| Some((map_file(line)?, path))) else {
            return ControlFlow::Continue(());
        };
        match process.mount_of(&link) {
            Ok(Some(id)) if ids.contains(&id) => {
                let unique = process.unique_mount_of(&link).ok().flatten();
                let pin = Pin::of(Access::Mmap, file_name(path));
                first = Some(Use { pin, id, unique });
            }
            Ok(Some(_)) => {}
            Ok(None) => refused = Some(io::ErrorKind::Unsupported.into()),
            Err(error) if is_gone(&error) => {}
            Err(error) => refused = Some(error),
        }
        if first.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match (first, refused, is_all) {
        (Some(first), ..) => Ok(Some(first)),
        (None, Some(error), _) | (None, None, Err(error)) => Err(error),
        (None, None, Ok(false)) => Err(io::ErrorKind::FileTooLarge.into()),
        (None, None, Ok(true)) => Ok(None),
    }
}
