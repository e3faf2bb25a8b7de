//! This process in /proc: its resources, its capabilities, and what it pins.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use kevtmon_metrics::{Pin, PinKind, ProcessReader, Usage};
use kevtmon_observation::{BootNs, NsInum};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::stat::fstat;
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};

use super::dir::mnt_id;
use super::mountinfo::MountTable;
use super::root::{effective_capabilities, field};
use super::{Proc, parse_ns};
use crate::socket_netns;

mod copies;

#[derive(Debug, Clone)]
pub struct Own {
    proc: Proc,
    pid: u32,
    directories: Vec<PathBuf>,
    /// The host's mount namespace, if it is known.
    host_mntns: Option<NsInum>,
    /// Whether its root directory is on the file system of the host's, or may be.
    has_root_of_host: bool,
}

impl Default for Own {
    fn default() -> Self {
        let proc = Proc::default();
        let device = |path| fs::metadata(path).map(|root| root.dev());
        let has_root_of_host = match (device(PathBuf::from("/")), device(proc.first_root())) {
            (Ok(own), Ok(host)) => own == host,
            _ => true,
        };
        let (host_mntns, pid) = (proc.first_mntns(), process::id());
        Self { proc, pid, directories: Vec::new(), host_mntns, has_root_of_host }
    }
}

impl ProcessReader for Own {
    fn start_ns(&self) -> Option<BootNs> {
        Some(self.proc.stat(self.pid)?.start_ns)
    }

    fn usage(&self) -> Option<Usage> {
        let pages = parse_pages(&fs::read_to_string(self.proc.path(self.pid, "statm")).ok()?)?;
        let page = u64::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
        // The listing holds one descriptor itself.
        let listed = fs::read_dir(self.proc.path(self.pid, "fd")).ok()?.count().saturating_sub(1);
        Some(Usage {
            cpu_seconds: self.cpu_time()?.as_secs_f64(),
            resident_bytes: pages.1.saturating_mul(page),
            virtual_bytes: pages.0.saturating_mul(page),
            open_fds: u64::try_from(listed).ok()?,
            max_fds: getrlimit(Resource::RLIMIT_NOFILE).ok()?.0,
        })
    }

    /// What this process keeps alive at this moment. Scans hold such things for less than a second, so
    /// what counts is what stays.
    fn pins(&self) -> Vec<Pin> {
        let (Some(netns), Some(mntns)) = (self.proc.ns(self.pid, "net"), self.proc.ns(self.pid, "mnt"))
        else {
            return Vec::new();
        };
        let mut pins = self.thread_pins(netns, mntns);
        let private = self.private_mntns();
        pins.extend(
            private.map(|own| Pin { kind: PinKind::Mntns, what: format!("own namespace mnt:[{own}]") }),
        );
        let mut mounts = None;
        for fd in numbers(self.proc.path(self.pid, "fd")) {
            let Some(link) = self.proc.link(self.pid, &format!("fd/{fd}")) else { continue };
            let kind = match link.split_once(':').map(|(kind, _)| kind) {
                Some("net") => (parse_ns(&link) != Some(netns)).then_some(PinKind::Netns),
                Some("mnt") => (parse_ns(&link) != Some(mntns)).then_some(PinKind::Mntns),
                Some("socket") => {
                    socket_netns(fd).is_some_and(|inum| inum != netns).then_some(PinKind::Netns)
                }
                _ if is_mount_table(&link, self.pid) => Some(PinKind::Mntns),
                // Descriptors 0 to 2 are inherited from the parent.
                _ if fd > 2 && may_pin_mount(&link) && !self.is_in_own_directory(&link) => {
                    let mounts = mounts.get_or_insert_with(|| self.mountinfo());
                    self.pins_mount(fd, mounts).then_some(PinKind::Mount)
                }
                _ => None,
            };
            pins.extend(kind.map(|kind| Pin { kind, what: format!("fd {fd}: {link}") }));
        }
        pins
    }
}

impl Own {
    /// Files that the daemon keeps open in these directories of its own are no pins.
    pub fn with_directories(self, directories: Vec<PathBuf>) -> Self {
        Self { directories, ..self }
    }

    /// The mount namespace of this process, if it is not the host's and keeps copies of the host's mounts: others cannot be
    /// rid of these then. That of a container has none, unless it was given directories with other mounts below them.
    pub fn private_mntns(&self) -> Option<NsInum> {
        let own = self.proc.ns(self.pid, "mnt")?;
        let is_private = self.host_mntns.is_some_and(|host| host != own);
        let keeps = || {
            let table = || MountTable::parse(&self.mountinfo(), "");
            self.has_root_of_host || copies::are_in(&table(), &self.directories)
        };
        (is_private && keeps()).then_some(own)
    }

    /// `CapEff` of proc_pid_status(5).
    pub fn effective_capabilities(&self) -> Option<u64> {
        effective_capabilities(&fs::read_to_string(self.proc.path(self.pid, "status")).ok()?)
    }

    /// Whether what this process executes gains no privileges, and whether its system calls are filtered: `NoNewPrivs`, `Seccomp`.
    pub fn confinement(&self) -> Option<(bool, bool)> {
        parse_confinement(&fs::read_to_string(self.proc.path(self.pid, "status")).ok()?)
    }

    /// What this process has run, and all that it has executed: its readers do much of its work, and some of them for hours.
    fn cpu_time(&self) -> Option<Duration> {
        let own = Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok()?);
        // Before those that live: one that ends meanwhile is missed this time, and not counted twice.
        let ended = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
        let living: Duration = self.children().into_iter().filter_map(cpu_time_of).sum();
        Some(own + duration(ended.user_time()) + duration(ended.system_time()) + living)
    }

    /// Processes that it has started and not waited for; none where the kernel does not list them (`CONFIG_PROC_CHILDREN`).
    fn children(&self) -> Vec<i32> {
        let lists = numbers(self.proc.path(self.pid, "task")).into_iter().map(|tid| {
            let path = self.proc.path(self.pid, &format!("task/{tid}/children"));
            fs::read_to_string(path).unwrap_or_default()
        });
        lists
            .flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect()
    }

    fn thread_pins(&self, netns: NsInum, mntns: NsInum) -> Vec<Pin> {
        let differs = |tid: i32, kind: &str, own: NsInum| {
            let link = self.proc.link(self.pid, &format!("task/{tid}/ns/{kind}"))?;
            (parse_ns(&link)? != own).then(|| format!("thread {tid}: {link}"))
        };
        numbers(self.proc.path(self.pid, "task"))
            .into_iter()
            .flat_map(|tid| {
                [
                    differs(tid, "net", netns).map(|what| Pin { kind: PinKind::Netns, what }),
                    differs(tid, "mnt", mntns).map(|what| Pin { kind: PinKind::Mntns, what }),
                ]
            })
            .flatten()
            .collect()
    }

    fn is_in_own_directory(&self, link: &str) -> bool {
        self.directories.iter().any(|directory| std::path::Path::new(link).starts_with(directory))
    }

    fn mountinfo(&self) -> String {
        fs::read_to_string(self.proc.path(self.pid, "mountinfo")).unwrap_or_default()
    }

    fn pins_mount(&self, fd: i32, mountinfo: &str) -> bool {
        let Some(id) = fs::read_to_string(self.proc.path(self.pid, &format!("fdinfo/{fd}")))
            .ok()
            .and_then(|text| mnt_id(&text))
        else {
            return false;
        };
        !mountinfo.is_empty() && is_foreign_mount(id, mountinfo)
    }
}

fn numbers(directory: PathBuf) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// What another process has run. No file of it is read, so that this cannot hang.
fn cpu_time_of(pid: i32) -> Option<Duration> {
    Some(clock_gettime(clock_getcpuclockid(Pid::from_raw(pid)).ok()?).ok()?.into())
}

fn duration(time: TimeVal) -> Duration {
    Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or_default())
}

fn parse_confinement(status: &str) -> Option<(bool, bool)> {
    /// `SECCOMP_MODE_FILTER` of include/uapi/linux/seccomp.h.
    const FILTER: &str = "2";
    let value = |key| field(status, key).map(str::trim);
    Some((value("NoNewPrivs:")? == "1", value("Seccomp:")? == FILTER))
}

/// Total and resident pages of proc_pid_statm(5).
fn parse_pages(statm: &str) -> Option<(u64, u64)> {
    let mut fields = statm.split_ascii_whitespace().map(str::parse);
    Some((fields.next()?.ok()?, fields.next()?.ok()?))
}

/// An open mount table of another process keeps that process's mount namespace.
fn is_mount_table(link: &str, own: u32) -> bool {
    let mut parts = link.rsplit('/');
    let file = parts.next();
    let pid = parts.find_map(|part| part.parse::<u32>().ok());
    matches!(file, Some("mountinfo" | "mounts" | "mountstats")) && pid.is_some_and(|pid| pid != own)
}

fn may_pin_mount(link: &str) -> bool {
    link.starts_with('/') && !["/proc/", "/sys/", "/dev/"].iter().any(|kernel| link.starts_with(kernel))
}

/// Anything but the root file system: a mount below it, or one of another mount namespace.
fn is_foreign_mount(id: u64, mountinfo: &str) -> bool {
    let mountpoint = mountinfo.lines().find_map(|line| {
        let mut fields = line.split(' ');
        (fields.next()?.parse() == Ok(id)).then(|| fields.nth(3)).flatten()
    });
    mountpoint != Some("/")
}

fn socket_netns(fd: i32) -> Option<NsInum> {
    // SAFETY: the number is only handed to the kernel within this function. If another thread closed or
    // reused it meanwhile, the request fails or is about another socket of this process.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let namespace = socket_netns::of_own(fd).ok()?;
    NsInum::try_from(fstat(&namespace).ok()?.st_ino).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::UdpSocket;
    use std::os::fd::{AsFd, AsRawFd as _};
    use std::os::unix::fs::symlink;
    use std::thread;

    use nix::sched::{CloneFlags, unshare};
    use nix::unistd::geteuid;

    use super::*;

    fn pinned(fd: impl AsFd) -> Option<PinKind> {
        let prefix = format!("fd {}: ", fd.as_fd().as_raw_fd());
        Own::default().pins().into_iter().find(|pin| pin.what.starts_with(&prefix)).map(|pin| pin.kind)
    }

    #[test]
    fn this_process_can_tell_what_it_uses() {
        let own = Own::default();
        let usage = own.usage().unwrap();
        assert!(usage.resident_bytes > 0 && usage.resident_bytes < usage.virtual_bytes);
        assert!(usage.open_fds > 0 && usage.open_fds < usage.max_fds);
        assert!(usage.cpu_seconds >= 0.0);
        assert!(own.start_ns().unwrap() > 0);
        assert!(own.effective_capabilities().is_some());
    }

    /// A process that keeps a processor busy, once it has had this much of it.
    fn busy() -> process::Child {
        const ENOUGH: Duration = Duration::from_millis(100);
        let child = process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        while cpu_time_of(child.id().cast_signed()).unwrap() < ENOUGH {
            thread::yield_now();
        }
        child
    }

    #[test]
    fn what_this_process_has_executed_counts_while_it_lives_and_after() {
        let of_ended = || {
            let ended = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
            duration(ended.user_time()) + duration(ended.system_time())
        };
        let own = || Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap());
        let mut child = busy();
        let living = cpu_time_of(child.id().cast_signed()).unwrap();
        let least = of_ended() + own() + living;
        assert!(Own::default().cpu_time().unwrap() >= least, "with one that lives");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(of_ended() >= living);
        let least = of_ended() + own();
        assert!(Own::default().cpu_time().unwrap() >= least, "with one that has ended");
    }

    #[test]
    fn a_literal_status_gives_its_mask_and_garbage_gives_none() {
        assert_eq!(effective_capabilities("Name:\tx\nCapEff:\t00000000a80425fb\n"), Some(0xa804_25fb));
        assert_eq!(effective_capabilities("CapEff:\tzz\n"), None);
        assert_eq!(effective_capabilities(""), None);
        assert_eq!(
            parse_confinement("NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"),
            Some((true, true))
        );
        assert_eq!(parse_confinement("NoNewPrivs:\t0\nSeccomp:\t0\n"), Some((false, false)));
        assert_eq!(parse_confinement("NoNewPrivs:\t1\n"), None, "a kernel without filters");
        assert_eq!(parse_pages("1 x"), None);
    }

    #[test]
    fn a_process_without_proc_reads_as_nothing() {
        let own = Own { proc: Proc::new("/nonexistent"), ..Own::default() };
        assert_eq!(own.usage(), None);
        assert_eq!(own.effective_capabilities(), None);
        assert_eq!(own.pins(), []);
    }

    #[test]
    fn the_mount_table_of_another_process_is_a_pin_and_our_own_is_not() {
        assert!(is_mount_table("/proc/1/mountinfo", 7));
        assert!(is_mount_table("/proc/12/task/13/mounts", 7));
        assert!(!is_mount_table("/proc/7/mountinfo", 7));
        assert!(!is_mount_table("/data/mounts", 7));
    }

    #[test]
    fn only_a_file_on_the_root_mount_pins_no_mount() {
        let table = "21 1 8:1 / / rw - ext4 /dev/a rw\n30 21 0:50 / /mnt/volume rw - tmpfs x rw\n";
        assert!(!is_foreign_mount(21, table));
        assert!(is_foreign_mount(30, table));
        assert!(is_foreign_mount(99, table), "a mount of another namespace is not in our table");
    }

    #[test]
    fn our_own_namespaces_and_devices_are_no_pins() {
        for path in ["/proc/self/ns/net", "/proc/self/ns/mnt", "/proc/self/mountinfo", "/dev/null"] {
            assert_eq!(pinned(File::open(path).unwrap()), None, "{path}");
        }
        assert_eq!(pinned(UdpSocket::bind("127.0.0.1:0").unwrap()), None);
    }

    #[test]
    fn a_socket_or_descriptor_of_another_network_namespace_is_a_pin() {
        if !geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let (socket, namespace) = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            (UdpSocket::bind("0.0.0.0:0").unwrap(), File::open("/proc/thread-self/ns/net").unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(pinned(&socket), Some(PinKind::Netns));
        assert_eq!(pinned(&namespace), Some(PinKind::Netns));
    }

    #[test]
    fn files_in_our_own_directories_are_no_pins() {
        let dir = tempfile::tempdir().unwrap();
        let own = Own::default().with_directories(vec![dir.path().to_owned()]);
        assert!(own.is_in_own_directory(dir.path().join("store").to_str().unwrap()));
        assert!(!own.is_in_own_directory("/elsewhere"));
    }

    #[test]
    fn a_literal_proc_shows_a_foreign_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let process = dir.path().join("7");
        for sub in ["fd", "ns", "task"] {
            fs::create_dir_all(process.join(sub)).unwrap();
        }
        symlink("net:[1]", process.join("ns/net")).unwrap();
        symlink("mnt:[2]", process.join("ns/mnt")).unwrap();
        symlink("mnt:[3]", process.join("fd/5")).unwrap();
        symlink("net:[1]", process.join("fd/6")).unwrap();
        symlink("/proc/1/mountinfo", process.join("fd/8")).unwrap();
        let proc = Proc::new(dir.path());
        let mut own = Own { proc, pid: 7, directories: vec![], host_mntns: Some(2), has_root_of_host: true };
        let mut pins: Vec<_> = own.pins().into_iter().map(|pin| (pin.kind, pin.what)).collect();
        pins.sort();
        assert_eq!(
            pins,
            [
                (PinKind::Mntns, "fd 5: mnt:[3]".to_owned()),
                (PinKind::Mntns, "fd 8: /proc/1/mountinfo".to_owned()),
            ]
        );
        own.host_mntns = Some(1);
        assert_eq!(own.private_mntns(), Some(2));
        assert!(own.pins().iter().any(|pin| pin.kind == PinKind::Mntns && pin.what.ends_with("mnt:[2]")));
        own.has_root_of_host = false;
        fs::write(process.join("mountinfo"), "21 1 0:9 / / rw - overlay overlay rw\n").unwrap();
        assert_eq!(own.private_mntns(), None, "a container has a root of its own, and no copies");
        own.host_mntns = None;
        assert_eq!(own.private_mntns(), None, "what is not known is not claimed");
    }
}
