//! Whether a process maps files of given file systems: the kernel tells their numbers one mapping after the other, without the
//! text of `/proc/PID/maps`, most of which is names and memory without a file (`PROCMAP_QUERY`, since Linux 6.11).

use std::io;
use std::os::fd::AsRawFd as _;

use super::dir::Dir;

/// `_IOWR('f', 17, struct procmap_query)` of include/uapi/linux/fs.h.
const PROCMAP_QUERY: libc::Ioctl = 0xC068_6611;
/// The mapping at an address or the next one, if it is of a file.
const NEXT_OF_FILE: u64 = 0x10 | 0x20;

/// Words of `struct procmap_query`; names are not asked for.
const WORDS: usize = 13;
/// Which of them are the size of all, the flags, the address, the end of the mapping that was found, and the number of its file
/// system, of which the major and the minor part are half a word each.
const SIZE: usize = 0;
const FLAGS: usize = 1;
const ADDRESS: usize = 2;
const END: usize = 4;
const FILE_SYSTEM: usize = 9;

/// Whether a file of one of these file systems is mapped, by their numbers as the mount table shows them; `None` where there are
/// more mappings of files than `most`.
/// Errors: as openat(2) and ioctl(2); `ENOTTY` before Linux 6.11.
pub fn maps_any(process: &Dir, file_systems: &[(u32, u32)], most: u32) -> io::Result<Option<bool>> {
    let maps = process.handle(c"maps")?;
    let mut address = 0;
    for _ in 0..most {
        let mut query = [0_u64; WORDS];
        query[SIZE] = u64::try_from(size_of_val(&query)).unwrap_or(0);
        query[FLAGS] = NEXT_OF_FILE;
        query[ADDRESS] = address;
        // SAFETY: the kernel reads and writes as many bytes as it is told, and no buffer for names.
        if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, query.as_mut_ptr()) } != 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ENOENT) { Ok(Some(false)) } else { Err(error) };
        }
        let [a, b, c, d, e, f, g, h] = query[FILE_SYSTEM].to_ne_bytes();
        let found = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
        if file_systems.contains(&found) {
            return Ok(Some(true));
        }
        address = query[END];
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::procfs::Proc;

    #[test]
    fn the_kernel_tells_the_same_file_systems_as_the_text() {
        let process = Proc::default().dir(std::process::id()).unwrap();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let hexadecimal = |text: &str| u32::from_str_radix(text, 16).unwrap();
        let mapped: BTreeSet<(u32, u32)> = text
            .lines()
            .filter(|line| line.contains(" /"))
            .filter_map(|line| line.split_ascii_whitespace().nth(3)?.split_once(':'))
            .map(|(major, minor)| (hexadecimal(major), hexadecimal(minor)))
            .collect();
        assert!(!mapped.is_empty());
        match maps_any(&process, &[(4095, 1)], 4096) {
            Ok(found) => assert_eq!(found, Some(false)),
            // Before 6.11 only the text tells.
            Err(error) => return assert_eq!(error.raw_os_error(), Some(libc::ENOTTY)),
        }
        for file_system in mapped {
            assert_eq!(maps_any(&process, &[(4095, 1), file_system], 4096).unwrap(), Some(true));
        }
        assert_eq!(maps_any(&process, &[(4095, 1)], 1).unwrap(), None, "there are more");
    }
}
