//! Capabilities of the daemon: checked before anything is started, and given up as soon as nothing needs them any more.
//!
//! | from | what it has |
//! |---|---|
//! | the start of the process | what a start needs; no program that it executes gains more |
//! | the moment its programs are attached | [`RUNNING`]; and a [filter] of system calls |
//!
//! Each thread has capabilities of its own. Those that were started before the second moment serve clients, and have given up
//! by themselves all that their answers do not need (`Limits` of `http`); all later ones, and the readers of /proc, have what the main
//! thread has then.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use kevtmon_sources::capabilities::{
    self, BPF, Capability, DAC_OVERRIDE, DAC_READ_SEARCH, NET_ADMIN, NET_BIND_SERVICE, NET_BROADCAST,
    PERFMON, SETPCAP, SYS_ADMIN, SYS_PTRACE, SYS_RESOURCE, SYSLOG,
};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::own::Own;
use kevtmon_sources::procfs::readers::unless_it_hangs;
use kevtmon_types::error_chain::chain;
use nix::unistd::geteuid;
use thiserror::Error;

mod filter;

/// What a running daemon has, and SECURITY.md tells which call needs each. With SYS_ADMIN the kernel lets it use the maps of its
/// programs where it lets nobody else, before 5.19.
const RUNNING: [Capability; 4] = [DAC_READ_SEARCH, NET_ADMIN, SYS_PTRACE, SYS_ADMIN];
/// What only the start needs: programs are loaded and attached, before 5.11 against a limit of locked memory; metrics may be
/// served on any port. Of a socket that hears of all namespaces the kernel looks at what its opener had
/// (net/netlink/af_netlink.c, do_one_broadcast), and it is opened once. So is /dev/kmsg, of which reads are not checked
/// (kernel/printk/printk.c, devkmsg_open).
const STARTING: [Capability; 6] = [BPF, PERFMON, SYS_RESOURCE, SYSLOG, NET_BIND_SERVICE, NET_BROADCAST];

/// Capabilities without which the daemon does not start, and what each is for.
const REQUIRED: [(Capability, &str); 4] = [
    (NET_ADMIN, "read links and neighbors"),
    (SYS_ADMIN, "enter network namespaces"),
    (SYS_PTRACE, "see what other processes hold"),
    (DAC_READ_SEARCH, "read the descriptors of every process"),
];

/// Capabilities that more depends on, and what each is for.
const OPTIONAL: [(Capability, &str); 3] = [
    (BPF, "load kernel programs"),
    (PERFMON, "load kernel programs"),
    (NET_BROADCAST, "receive changes in all network namespaces on one socket"),
];

/// What a set of capabilities lacks, with what each is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lacks {
    /// Without these the daemon does not start.
    pub required: Vec<(Capability, &'static str)>,
    /// Without these it sees less.
    pub optional: Vec<(Capability, &'static str)>,
}

impl Lacks {
    /// Those of a mask in the form of `CapEff` of proc_pid_status(5). SYS_ADMIN includes what kernel programs need.
    pub fn of(mask: u64) -> Self {
        let has = |capability: Capability| capability.is_in(mask);
        let includes = |capability| has(capability) || capability != NET_BROADCAST && has(SYS_ADMIN);
        Self {
            required: REQUIRED.into_iter().filter(|(capability, _)| !has(*capability)).collect(),
            optional: OPTIONAL.into_iter().filter(|(capability, _)| !includes(*capability)).collect(),
        }
    }

    /// `CAP_BPF (load kernel programs), …`
    pub fn listed(missing: &[(Capability, &str)]) -> String {
        let each = missing.iter().map(|(capability, what)| format!("{} ({what})", capability.name));
        each.collect::<Vec<_>>().join(", ")
    }
}

/// Why the daemon cannot start. It exits with code 77.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PrivilegeError {
    #[error("missing capabilities: {}; run as root, or grant them", Lacks::listed(.missing))]
    Missing { missing: Vec<(Capability, &'static str)> },
    #[error("cannot read the capabilities of this process from /proc/self/status; is /proc mounted?")]
    Unreadable,
}

/// Checks the effective capabilities of this process.
pub fn check(own: &Own) -> Result<(), PrivilegeError> {
    judge(own.effective_capabilities().ok_or(PrivilegeError::Unreadable)?)
}

fn judge(mask: u64) -> Result<(), PrivilegeError> {
    let missing = Lacks::of(mask).required;
    if missing.is_empty() { Ok(()) } else { Err(PrivilegeError::Missing { missing }) }
}

/// The capabilities that are missing to see what every process holds, with what each is for; `None` if none is.
pub fn missing_to_see_holders(own: &Own) -> Option<String> {
    let mask = own.effective_capabilities()?;
    let is_missing = |(capability, _): &(Capability, &str)| {
        [SYS_PTRACE, DAC_READ_SEARCH].contains(capability) && !capability.is_in(mask)
    };
    let missing: Vec<_> = REQUIRED.into_iter().filter(is_missing).collect();
    (!missing.is_empty()).then(|| Lacks::listed(&missing))
}

/// Deeper than this nothing of the daemon's own is in its state directory.
const DEPTH: usize = 3;
/// More than the daemon ever has in one directory there.
const ENTRIES: usize = 1 << 14;
const OTHERS_WRITE: u32 = 0o022;

/// What the daemon writes or connects to. Where some of it is another user's, that takes CAP_DAC_OVERRIDE for as long as the
/// daemon runs.
#[derive(Debug)]
pub struct Writes {
    /// The state directory.
    pub state: PathBuf,
    /// Other files and directories.
    pub paths: Vec<PathBuf>,
    /// Sockets that it connects to, perhaps before they are there.
    pub sockets: Vec<PathBuf>,
}

/// What was found of all that.
struct Looked {
    /// The first in the state directory that cannot be written, or it, and whose it is.
    state: Option<(PathBuf, u32)>,
    /// Without CAP_DAC_OVERRIDE, these cannot be written or connected to.
    closed: Vec<PathBuf>,
    /// Of these sockets it is not known whose they will be.
    not_there: Vec<PathBuf>,
}

impl Writes {
    fn look(self) -> Looked {
        let Self { state, paths, sockets } = self;
        let is_closed = |path: &PathBuf| is_closed_to_root(path);
        let (closed, open): (Vec<_>, Vec<_>) = sockets.into_iter().partition(is_closed);
        Looked {
            // Its own, or those above it where it is not there yet.
            closed: paths.into_iter().chain([state.clone()]).filter(is_closed).chain(closed).collect(),
            not_there: open.into_iter().filter(|path| has_no_directory(path)).collect(),
            state: fs::canonicalize(&state).ok().and_then(|state| closed_in(&state, DEPTH)),
        }
    }
}

/// Keeps what a start needs, before there is a second thread but one that waits for a disk that does not answer.
pub fn keep_what_starting_needs(writes: Writes) {
    let mut kept = [&RUNNING[..], &STARTING].concat();
    // Only these has the thread that may stay, and SETPCAP is what giving up the rest for good needs.
    let while_looking = [&kept[..], &[DAC_OVERRIDE, SETPCAP]].concat();
    let mut given_up = capabilities::keep(&while_looking);
    let directory = writes.state.clone();
    let looked = unless_it_hangs(move || writes.look());
    // What does not answer may be another user's.
    if looked.as_ref().is_none_or(Looked::takes_a_capability) {
        kept.push(DAC_OVERRIDE);
    }
    // The first needs a capability that the second gives up.
    given_up =
        given_up.and_then(|()| capabilities::gain_none_but(&kept)).and_then(|()| capabilities::keep(&kept));
    if let Err(error) = given_up {
        tracing::warn!(%error, "cannot give up capabilities that are not needed");
    }
    let may_write = Own::default().effective_capabilities().is_none_or(|mask| DAC_OVERRIDE.is_in(mask));
    match &looked {
        Some(looked) if !may_write => {
            looked.remarks(&directory).iter().for_each(|remark| tracing::warn!("{remark}"));
        }
        Some(Looked { state: Some((first, uid)), .. }) => tracing::warn!(
            "uid {uid} owns {}, and can read and change it: kevtmon keeps CAP_DAC_OVERRIDE to write there",
            first.display()
        ),
        _ => {}
    }
}

impl Looked {
    fn takes_a_capability(&self) -> bool {
        !self.closed.is_empty() || !self.not_there.is_empty() || self.state.is_some()
    }

    /// What it cannot do without the capability, in one line each, with how to mend it.
    fn remarks(&self, state: &Path) -> Vec<String> {
        let of_state = self.state.iter().map(|(first, uid)| {
            let mend = match fs::metadata(state) {
                Ok(it) if it.uid() == geteuid().as_raw() && it.mode() & OTHERS_WRITE == 0 => format!(
                    "chown -R root: {0}; chmod -R u+rwX,go-w {0}",
                    fs::canonicalize(state).unwrap_or_else(|_| state.to_owned()).display()
                ),
                // Another user may have created what is there, or may have a hard link to it.
                _ => format!("mv {0} {0}.old", state.display()),
            };
            format!(
                "store or flight recorder may not work: {} (of uid {uid}) cannot be written without CAP_DAC_OVERRIDE. Stop \
                 kevtmon, {mend}, and start it again",
                first.display()
            )
        });
        // Of the state directory itself that has said it.
        let others = self.closed.iter().filter(|path| **path != *state || self.state.is_none());
        let others = others.chain(&self.not_there).map(|path| {
            format!(
                "{} belongs to another user, or may do so once it exists: without CAP_DAC_OVERRIDE kevtmon can then \
                 neither write nor connect to it; start kevtmon with that capability",
                path.display()
            )
        });
        of_state.chain(others).collect()
    }
}

/// The first that root needs CAP_DAC_OVERRIDE to write to, of a directory and what is in it, and whose it is.
fn closed_in(path: &Path, depth: usize) -> Option<(PathBuf, u32)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    if is_closed(&metadata) {
        return Some((path.to_owned(), metadata.uid()));
    }
    let below = if metadata.is_dir() && depth > 0 { fs::read_dir(path).ok() } else { None };
    let mut entries = below.into_iter().flatten().flatten().take(ENTRIES);
    entries.find_map(|entry| closed_in(&entry.path(), depth - 1))
}

/// Keeps what a running daemon needs: its programs are attached, and its ports are bound. Later it opens connections to other
/// nodes only if a sink does.
pub fn keep_what_running_needs(connects: bool) {
    let kept = [&RUNNING[..], &[DAC_OVERRIDE]].concat();
    if let Err(error) = capabilities::keep(&kept) {
        tracing::warn!(%error, "cannot give up the capabilities that only the start needed");
    }
    if let Err(error) = filter::apply(connects) {
        tracing::warn!(error = chain(&error), "system calls are not filtered");
    }
}

/// Whether root needs CAP_DAC_OVERRIDE to write there: it, or where it will be made, is another user's, or nobody may write to it.
fn is_closed_to_root(path: &Path) -> bool {
    let closed = |path: &Path| {
        path.ancestors().find_map(|path| fs::metadata(path).ok()).is_some_and(|it| is_closed(&it))
    };
    closed(path) || on_node(path).is_some_and(|path| closed(&path))
}

fn is_closed(it: &fs::Metadata) -> bool {
    it.mode() & if it.uid() == geteuid().as_raw() { 0o200 } else { 0o002 } == 0
}

/// Whether not even the directory is there in which it will be: whoever makes that may make it for another user, as
/// systemd-logind makes `/run/user/1000` when that user logs in.
fn has_no_directory(path: &Path) -> bool {
    let is_there = |path: &Path| path.parent().is_some_and(Path::exists);
    !is_there(path) && !on_node(path).is_some_and(|path| is_there(&path))
}

/// Sockets of runtimes are reached by the root of the node's first processes.
fn on_node(path: &Path) -> Option<PathBuf> {
    path.strip_prefix("/").ok().map(|rest| Proc::default().first_root().join(rest))
}

/// What a daemon has given up, by what /proc shows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    /// Names of the capabilities that it has.
    pub capabilities: Vec<String>,
    /// Names of those that it has without need.
    pub needless: Vec<String>,
}

impl Confinement {
    /// That of a mask in the form of `CapEff` of proc_pid_status(5).
    pub fn of(mask: u64) -> Self {
        let needed = capabilities::mask(&RUNNING) | capabilities::mask(&[DAC_OVERRIDE]);
        Self { capabilities: capabilities::names(mask), needless: capabilities::names(mask & !needed) }
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_sources::capabilities::mask;

    use super::*;

    #[test]
    fn root_has_everything() {
        assert_eq!(judge(0x1ff_ffff_ffff), Ok(()));
    }

    #[test]
    fn the_error_lists_every_missing_required_capability() {
        let error = judge(0).unwrap_err().to_string();
        for name in ["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"] {
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn one_missing_capability_is_named_alone() {
        let error =
            judge(mask(&[NET_ADMIN, SYS_ADMIN, DAC_READ_SEARCH, BPF, PERFMON])).unwrap_err().to_string();
        assert!(error.contains("CAP_SYS_PTRACE") && !error.contains("CAP_NET_ADMIN"), "{error}");
    }

    #[test]
    fn sys_admin_includes_what_kernel_programs_need_and_not_listening_everywhere() {
        let names = |of: &[(Capability, &str)]| of.iter().map(|(it, _)| it.name).collect::<Vec<_>>();
        let lacks = Lacks::of(mask(&[SYS_ADMIN, NET_ADMIN, DAC_READ_SEARCH]));
        assert_eq!(names(&lacks.required), ["CAP_SYS_PTRACE"]);
        assert_eq!(names(&lacks.optional), ["CAP_NET_BROADCAST"]);
        assert_eq!(names(&Lacks::of(0).optional), ["CAP_BPF", "CAP_PERFMON", "CAP_NET_BROADCAST"]);
        assert_eq!(Lacks::of(u64::MAX), Lacks::default());
    }

    #[test]
    fn listening_to_all_namespaces_is_optional() {
        let required = mask(&[NET_ADMIN, SYS_ADMIN, SYS_PTRACE, DAC_READ_SEARCH]);
        assert_eq!(judge(required), Ok(()));
    }

    #[test]
    fn a_running_daemon_has_what_is_required_and_nothing_that_only_loads_programs() {
        let running = mask(&RUNNING);
        assert!(Lacks::of(running).required.is_empty());
        assert!(STARTING.iter().all(|capability| !capability.is_in(running)));
        assert_eq!(Confinement::of(running).needless, [""; 0]);
        let more = Confinement::of(running | mask(&[BPF, DAC_OVERRIDE]));
        assert_eq!(more.needless, ["CAP_BPF"]);
        assert_eq!(more.capabilities.len(), RUNNING.len() + 2);
    }

    #[test]
    fn what_is_another_users_takes_the_capability_to_write_there() {
        let directory = tempfile::tempdir().unwrap();
        let (own, others) = (directory.path().join("own"), directory.path().join("others"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&others).unwrap();
        std::os::unix::fs::chown(&others, Some(1000), None).unwrap();
        assert!(!is_closed_to_root(&own) && !is_closed_to_root(&own.join("not/there")));
        assert!(is_closed_to_root(&others) && is_closed_to_root(&others.join("not/there")));
        fs::set_permissions(&others, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(!is_closed_to_root(&others));
    }

    fn looked(state: &Path, sockets: Vec<PathBuf>) -> Looked {
        Writes { state: state.to_owned(), paths: Vec::new(), sockets }.look()
    }

    #[test]
    fn whose_a_socket_will_be_is_not_known_before_its_directory_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("user/podman.sock");
        let before = looked(directory.path(), vec![socket.clone()]);
        assert!(before.takes_a_capability() && before.closed.is_empty());
        assert_eq!(before.not_there, std::slice::from_ref(&socket));
        fs::create_dir(directory.path().join("user")).unwrap();
        let of_root = looked(directory.path(), vec![socket.clone()]);
        assert!(!of_root.takes_a_capability(), "in a directory of root's, root makes it");
        std::os::unix::fs::chown(directory.path().join("user"), Some(1000), None).unwrap();
        assert_eq!(looked(directory.path(), vec![socket.clone()]).closed, [socket]);
    }

    #[test]
    fn what_is_another_users_in_the_state_directory_is_to_be_made_roots_at_the_place_where_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let (state, link) = (directory.path().join("state"), directory.path().join("link"));
        fs::create_dir_all(state.join("recorder")).unwrap();
        std::os::unix::fs::symlink(&state, &link).unwrap();
        assert!(!looked(&link, Vec::new()).takes_a_capability());
        std::os::unix::fs::chown(state.join("recorder"), Some(1000), None).unwrap();
        let looked = looked(&link, Vec::new());
        let real = fs::canonicalize(&state).unwrap();
        assert_eq!(looked.state, Some((real.join("recorder"), 1000)));
        let remarks = looked.remarks(&link);
        let [text] = &remarks[..] else { panic!("{remarks:?}") };
        assert!(text.contains(&format!("chown -R root: {}; ", real.display())), "{text}");
    }

    #[test]
    fn what_lacks_a_capability_is_said_once_with_how_to_mend_it() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        fs::create_dir(&state).unwrap();
        std::os::unix::fs::chown(&state, Some(1000), None).unwrap();
        let looked = looked(&state, vec![directory.path().join("user/podman.sock")]);
        let remarks = looked.remarks(&state);
        let [of_state, of_socket] = &remarks[..] else { panic!("{remarks:?}") };
        let mend = format!("mv {0} {0}.old", state.display());
        assert!(of_state.contains("uid 1000") && of_state.contains(&mend), "{of_state}");
        assert!(!of_state.contains("chown"), "what is not trusted is not to be made root's: {of_state}");
        assert!(of_socket.contains("user/podman.sock belongs to another user, or may do so"), "{of_socket}");
        assert!(![of_state, of_socket].iter().any(|text| text.contains("  ")), "{remarks:?}");
    }
}
