//! Programs, maps and links of eBPF in the kernel, by their ids.

use std::collections::BTreeSet;
use std::fs;

/// What the descriptor of each kind shows, and the command that finds the next id of that kind (`enum bpf_cmd`).
const KINDS: [(&str, libc::c_long); 3] = [("prog_id:", 11), ("map_id:", 12), ("link_id:", 31)];

/// One of them. The kernel gives an id to no other one until all are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    kind: &'static str,
    next: libc::c_long,
    id: u32,
}

impl Object {
    /// Those that a process has descriptors of, with the programs of its links.
    #[must_use]
    pub fn of_process(pid: u32) -> BTreeSet<Self> {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("a process that runs").flatten();
        let texts = descriptors.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        texts.flat_map(|text| text.lines().filter_map(Self::of_line).collect::<Vec<_>>()).collect()
    }

    fn of_line(line: &str) -> Option<Self> {
        KINDS.iter().find_map(|&(kind, next)| {
            let id = line.strip_prefix(kind)?.trim().parse().ok()?;
            Some(Self { kind, next, id })
        })
    }

    /// Whether the kernel still has it, be it that another process has a descriptor of it, or that it is pinned or attached.
    #[must_use]
    pub fn exists(&self) -> bool {
        // `start_id`, `next_id` and `open_flags` of `union bpf_attr`.
        let mut attributes = [self.id.saturating_sub(1), 0, 0];
        // SAFETY: the kernel reads and writes only as much of them as it is told.
        let found = unsafe {
            libc::syscall(libc::SYS_bpf, self.next, attributes.as_mut_ptr(), size_of_val(&attributes))
        };
        found == 0 && attributes[1] == self.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_in_what_a_descriptor_shows() {
        let of = |line| Object::of_line(line).map(|object| (object.kind, object.id));
        assert_eq!(of("prog_id:\t81"), Some(("prog_id:", 81)));
        assert_eq!(of("link_id:\t7"), Some(("link_id:", 7)));
        assert_eq!(of("prog_tag:\t5f1ab1e5"), None);
        assert_eq!(of("attach_prog_id:\t3"), None);
    }
}
