//! Anonymous files that keep others and do not show which: a perf event or a link of BPF can be a probe in a program or a library
//! (uprobe), and an io_uring(7) that a process has mapped lives on without a descriptor, with all that is registered with it.
//!
//! What is found is possible only. A ring that is not mapped either (its descriptor was registered with the task and closed, its
//! memory is the program's own) leaves no trace in /proc.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use kevtmon_observation::Access;
use kevtmon_sources::procfs::dir::{Dir, MAX_TEXT, NumberName};
use kevtmon_sources::procfs::procmap::maps_any;
use nix::sys::signal::SigSet;
use nix::sys::signalfd::SignalFd;
use nix::sys::stat::fstat;

use super::descriptors::FDS_PER_LOOK;
use super::hidden::RING;
use super::{CUT, FIRST_MAPPINGS, MAPS_LINE, Pin, Visit, Visitor};
use crate::Deadline;

/// What `/proc/PID/fd` shows of a perf event.
const PERF_EVENT: &str = "anon_inode:[perf_event]";
/// The same of a link of BPF, by how it came to be (kernel/bpf/syscall.c).
const LINK: [&str; 2] = ["anon_inode:bpf_link", "anon_inode:bpf-link"];
/// Of what the kernel tells of a descriptor.
const INFO: u64 = 1024;

/// Where the kernel keeps its anonymous files, once that is known.
#[derive(Debug, Default)]
pub(super) enum Anonymous {
    #[default]
    Unknown,
    /// The numbers of their file system, if they could be found out.
    On(Option<(u32, u32)>),
}

impl Anonymous {
    fn file_system(&mut self) -> Option<(u32, u32)> {
        if let Self::On(numbers) = self {
            return *numbers;
        }
        let stat = SignalFd::new(&SigSet::empty()).and_then(fstat);
        let numbers = stat.ok().map(|stat| (libc::major(stat.st_dev), libc::minor(stat.st_dev)));
        *self = Self::On(numbers);
        numbers
    }
}

#[derive(Debug, Default)]
struct Found {
    /// Numbers of the rings that it has open, if the kernel tells them.
    rings: BTreeSet<u64>,
    has_unknown_ring: bool,
    probe: Option<u32>,
}

impl Visitor {
    pub(super) fn anonymous(
        &mut self,
        (tgid, process): (u32, &Dir),
        deadline: &Deadline,
        visit: &mut Visit,
    ) -> Option<()> {
        let mut found = Found::default();
        self.each_table((tgid, process), deadline, visit, |visitor, task, visit| {
            visitor.find_anonymous(task, deadline, &mut found, visit);
        })?;
        if let Some(fd) = found.probe.filter(|_| !self.is_own_program(process)) {
            visit.doubt("it has a perf event open that may be a uprobe; the file is unknown");
            visit.add(Pin { fd: Some(fd), possible: true, ..Pin::of(Access::PerfEvent, None::<String>) });
        }
        let mapped = self.mapped_rings((tgid, process), visit);
        if !found.has_unknown_ring && !mapped.is_subset(&found.rings) {
            visit.doubt(
                "it has mapped an io_uring whose descriptor is closed; the registered files are unknown",
            );
            visit.add(Pin { possible: true, ..Pin::of(Access::IoUring, None::<String>) });
        }
        Some(())
    }

    fn find_anonymous(&mut self, task: &Dir, deadline: &Deadline, found: &mut Found, visit: &mut Visit) {
        let (Some(list), Some(infos)) = (visit.read(task.at(c"fd")), visit.read(task.at(c"fdinfo"))) else {
            return;
        };
        let mut fds = Vec::new();
        let _ = visit.read(list.numbers(&mut self.buffer, &mut fds));
        for (count, fd) in (1_u32..).zip(fds) {
            let name = NumberName::new(fd);
            let link = list.link(name.as_c_str(), &mut self.buffer).unwrap_or_default();
            let (is_ring, is_event) = (link == RING, link == PERF_EVENT);
            let is_link = LINK.contains(&&*link);
            if is_event {
                found.probe = found.probe.or(Some(fd));
            } else if is_ring || is_link {
                let info = infos.beginning(name.as_c_str(), INFO, &mut self.text);
                let info = info.map(|(info, _)| info).unwrap_or_default();
                if is_link && may_probe(&info) {
                    found.probe = found.probe.or(Some(fd));
                } else if is_ring {
                    let number = inode(&info);
                    found.has_unknown_ring |= number.is_none();
                    found.rings.extend(number);
                }
            }
            if count % FDS_PER_LOOK == 0 && deadline.is_over() {
                visit.doubt(CUT);
                return;
            }
        }
    }

    fn mapped_rings(&mut self, (tgid, process): (u32, &Dir), visit: &mut Visit) -> BTreeSet<u64> {
        let mut rings = BTreeSet::new();
        let Some(main) = self.main(tgid, process) else { return rings };
        let task = main.dir.as_ref().unwrap_or(process);
        if let Some(file_system) = self.anonymous.file_system()
            && let Ok(Some(false)) = maps_any(task, &[file_system], FIRST_MAPPINGS)
        {
            return rings;
        }
        let is_all = task.lines(c"maps", (MAX_TEXT, MAPS_LINE), |line, _| {
            rings.extend(mapped_ring(line));
            ControlFlow::Continue(())
        });
        let _ = visit.read(is_all);
        rings
    }

    /// Whether a process executes the file that this one does, which sets no such probe. A name would not do: any program has one.
    pub(super) fn is_own_program(&mut self, process: &Dir) -> bool {
        let own = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut theirs = None;
        // Of one that cannot be read it is not known.
        let _ = process.lines(c"maps", (MAX_TEXT, MAPS_LINE), |line, _| {
            theirs = mapped_file(line);
            if theirs.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        theirs.is_some() && theirs == own.lines().find_map(mapped_file)
    }
}

/// Device and inode number of the file in a line of `maps`; the first is that of the program.
fn mapped_file(line: &str) -> Option<(String, u64)> {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let (device, inode) = (fields.next()?, fields.next()?.parse().ok()?);
    (inode != 0).then(|| (device.to_owned(), inode))
}

/// Whether a link of BPF, by its fdinfo, may be a probe in a file. Since 6.17 it tells of those by a perf event what they are
/// (`bpf_perf_link_show_fdinfo`).
fn may_probe(info: &str) -> bool {
    let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_other = matches!(value("type:"), Some("kprobe" | "kretprobe" | "tracepoint" | "perf"));
    match value("link_type:") {
        Some("uprobe_multi") | None => true,
        Some("perf_event") => !is_other,
        Some(_) => false,
    }
}

/// The number of an open file, since 5.14.
fn inode(info: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix("ino:"))?.trim().parse().ok()
}

/// The number of the ring that a line of `maps` maps.
fn mapped_ring(line: &str) -> Option<u64> {
    line.strip_suffix(RING)?.split_ascii_whitespace().nth(4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd as _, OwnedFd};

    use super::*;

    #[test]
    fn a_link_tells_by_its_type_whether_it_can_be_a_probe_in_a_file() {
        let info =
            |kind: &str| format!("pos:\t0\nflags:\t02000002\nlink_type:\t{kind}\nlink_id:\t7\nprog_id:\t9\n");
        assert!(may_probe(&info("perf_event")) && may_probe(&info("uprobe_multi")));
        assert!(!may_probe(&info("tracing")) && !may_probe(&info("kprobe_multi")));
        let typed = |kind: &str| format!("{}type:\t{kind}\nname:\tx\n", info("perf_event"));
        assert!(may_probe(&typed("uprobe")) && may_probe(&typed("uretprobe")));
        assert!(!may_probe(&typed("kprobe")) && !may_probe(&typed("tracepoint")));
        assert!(may_probe("pos:\t0\n"), "nothing is known");
    }

    #[test]
    fn a_program_is_known_by_its_file_and_not_by_its_name() {
        let line = |inode: u32| format!("55d0-55d1 r--p 00000000 fe:01 {inode}      /usr/bin/kevtmon");
        assert_eq!(mapped_file(&line(7)), Some(("fe:01".to_owned(), 7)));
        assert_ne!(mapped_file(&line(7)), mapped_file(&line(8)));
        assert_eq!(mapped_file("7ffc-7ffd rw-p 00000000 00:00 0      [stack]"), None);
        let directory = |pid: u32| kevtmon_sources::procfs::Proc::default().dir(pid).unwrap();
        let mut visitor = Visitor::default();
        assert!(visitor.is_own_program(&directory(std::process::id())));
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let is_it = visitor.is_own_program(&directory(other.id()));
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!is_it);
    }

    #[test]
    fn a_mapped_ring_has_the_number_of_its_file() {
        let line =
            "7f1ff7dbb000-7f1ff7dbc000 rw-s 00000000 00:10 32965006                   anon_inode:[io_uring]";
        assert_eq!(mapped_ring(line), Some(32_965_006));
        assert_eq!(
            mapped_ring("7f1ff7dbb000-7f1ff7dbc000 rw-s 00000000 00:10 5 anon_inode:[perf_event]"),
            None
        );
        assert_eq!(inode("pos:\t0\nflags:\t02000002\nmnt_id:\t17\nino:\t1039\n"), Some(1039));
        assert_eq!(inode("pos:\t0\n"), None);
    }

    #[test]
    fn anonymous_files_are_on_a_file_system_of_their_own() {
        let mut anonymous = Anonymous::default();
        // SAFETY: takes no pointer, and nobody else has the descriptor.
        let file = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let device = fstat(&file).unwrap().st_dev;
        let expected = (libc::major(device), libc::minor(device));
        assert_eq!([(); 2].map(|()| anonymous.file_system()), [Some(expected); 2]);
    }
}
