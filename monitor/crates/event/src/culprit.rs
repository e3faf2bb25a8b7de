//! Who is behind a call that a tool made: `ip` and `umount` only carry out what the program above them decided.
//!
//! Command names are chosen by whoever runs, so they decide only whether the name of the process itself or that of a
//! process above it is shown: every name that comes out is that of the actor or of a real ancestor. An ancestor is blamed
//! only if the kernel shows, for each process between, that the one above has started it ([`AncestorRef::started`]): a
//! parent may have adopted its child. Where it may have, it is named as the parent and nothing else.

pub use same_actor::{Identity, identity};

use super::{Actor, AncestorRef};

mod same_actor;

/// Programs that carry out one command of whoever runs them, or run another program in some surroundings.
const TOOLS: [&str; 34] = [
    "arp", "bridge", "brctl", "busybox", "chroot", "doas", "env", "ethtool", "flock", "ifconfig", "ifdown",
    "ifup", "ionice", "ip", "mount", "ndisc6", "nice", "nohup", "nsenter", "route", "runuser", "setpriv",
    "setsid", "stdbuf", "su", "sudo", "systemd-run", "taskset", "tc", "time", "timeout", "toybox", "unshare",
    "xargs",
];
const SHELLS: [&str; 11] =
    ["ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "rbash", "sh", "tcsh", "zsh"];
/// What starts programs for others, or adopts orphans; a name that ends in `*` is a prefix. Command names have 15
/// characters at most.
const SUPERVISORS: [&str; 20] = [
    "(sd-*", "agetty", "catatonit", "conmon*", "containerd-shim*", "crun*", "docker-containe*",
    "docker-init", "dumb-init", "getty", "init", "login", "runc*", "runsv*", "s6-*", "screen*", "sshd*",
    "systemd", "tini", "tmux*",
];
/// Where only root puts programs, on a host.
const PROGRAM_DIRECTORIES: [&str; 6] =
    ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
/// Programs of which one binary is many, by the name under which it is called.
const MULTI_CALL: [&str; 2] = ["busybox", "toybox"];

/// What a process is for the sentence that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Program,
    Tool,
    Shell,
    Supervisor,
}

/// Whom a sentence names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Culprit<'a> {
    /// Command name of who did it.
    pub(super) comm: &'a str,
    pub(super) pid: u32,
    /// Where it is the process above a tool: that process.
    pub(super) user: Option<&'a AncestorRef>,
    pub(super) run_by: RunBy<'a>,
    /// Command name of the actor, where that is a tool of the culprit.
    pub(super) tool: Option<&'a str>,
}

/// Who runs a culprit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum RunBy<'a> {
    /// Nobody who had a part in it, or unknown.
    Nobody,
    Program(&'a AncestorRef),
    /// A shell, which a person or a script uses.
    Shell(&'a AncestorRef),
    /// Not known: the parent, which may have adopted it.
    ChildOf(&'a AncestorRef),
}

/// Whom to name for what an actor did.
pub(super) fn culprit(actor: &Actor) -> Culprit<'_> {
    let run_by = RunBy::Nobody;
    let own = Culprit { comm: &actor.comm, pid: actor.pid, user: None, run_by, tool: None };
    if !is_used(actor) {
        return own;
    }
    let mut programs = users(&actor.ancestors).filter(|above| part_of(above) == Part::Program);
    if let Some(program) = programs.next() {
        let run_by = programs.next().map_or(RunBy::Nobody, RunBy::Program);
        let (comm, pid, tool) = (program.comm.as_str(), program.pid, Some(actor.comm.as_str()));
        return Culprit { comm, pid, user: Some(program), run_by, tool };
    }
    let shell = users(&actor.ancestors).find(|above| part_of(above) == Part::Shell);
    let run_by = match (shell, actor.ancestors.first()) {
        (Some(shell), _) => RunBy::Shell(shell),
        (None, Some(parent)) if parent.started.is_none() && part_of(parent) != Part::Supervisor => {
            RunBy::ChildOf(parent)
        }
        _ => RunBy::Nobody,
    };
    Culprit { run_by, ..own }
}

/// Which of its ancestors uses an actor that is a tool; `None` where it is none, or that is not certain.
pub fn user_of_tool(actor: &Actor) -> Option<usize> {
    let program = culprit(actor).user?;
    actor.ancestors.iter().position(|above| std::ptr::eq(above, program))
}

/// Whether an actor carries out what another process decided.
fn is_used(actor: &Actor) -> bool {
    matches!(part(&actor.comm, actor.exe.as_deref(), actor.pid), Part::Tool | Part::Shell)
}

/// Whether a program unmounts on behalf of whoever runs it; each attempt is another process of it.
pub fn is_umount_program(comm: &str, exe: Option<&str>) -> bool {
    let is_one = |name: &str| {
        matches!(name, "umount" | "fusermount" | "fusermount3" | "busybox" | "nsenter" | "systemd-run")
            || name.starts_with("umount.")
    };
    is_called(comm, exe, is_one)
}

/// Whether a program removes or renames what it is given, on behalf of whoever runs it.
pub fn is_remove_program(comm: &str, exe: Option<&str>) -> bool {
    is_called(comm, exe, |name| matches!(name, "rm" | "rmdir" | "unlink" | "mv" | "busybox"))
}

/// Who tries to unmount or remove, by process id and command name: the nearest process above the program that does it, which
/// is another process each time.
pub fn umount_caller(actor: &Actor) -> (u32, &str) {
    let own = (actor.pid, actor.comm.as_str());
    let is_tool =
        |comm: &str, exe: Option<&str>| is_umount_program(comm, exe) || is_remove_program(comm, exe);
    if !is_tool(&actor.comm, actor.exe.as_deref()) {
        return own;
    }
    let is_caller = |above: &&AncestorRef| !is_tool(&above.comm, above.exe.as_deref());
    let caller = actor.ancestors.iter().find(is_caller).or(actor.ancestors.last());
    caller.map_or(own, |caller| (caller.pid, caller.comm.as_str()))
}

/// Processes above one that have run it, nearest first, up to who starts programs for others.
fn users(ancestors: &[AncestorRef]) -> impl Iterator<Item = &AncestorRef> {
    ancestors.iter().take_while(|above| above.started == Some(true) && part_of(above) != Part::Supervisor)
}

fn part_of(ancestor: &AncestorRef) -> Part {
    part(&ancestor.comm, ancestor.exe.as_deref(), ancestor.pid)
}

fn part(comm: &str, exe: Option<&str>, pid: u32) -> Part {
    let is_supervisor = |name: &&str| match name.strip_suffix('*') {
        Some(prefix) => comm.starts_with(prefix),
        None => comm == *name,
    };
    if pid == 1 || SUPERVISORS.iter().any(is_supervisor) {
        Part::Supervisor
    } else if is_called(comm, exe, |name| SHELLS.contains(&name)) {
        // By its command name, too: a script has a name of its own, and is a program.
        Part::Shell
    } else if is_umount_program(comm, exe) || is_called(comm, exe, |name| TOOLS.contains(&name)) {
        Part::Tool
    } else {
        Part::Program
    }
}

/// Whether a program has one of these names; its executable, where that is known, must be such a program of the system:
/// whoever runs something of his own is named himself.
fn is_called(comm: &str, exe: Option<&str>, is_one: impl Fn(&str) -> bool) -> bool {
    let is_of_system = |exe: &str| {
        exe.rsplit_once('/').is_some_and(|(directory, file)| {
            PROGRAM_DIRECTORIES.contains(&directory) && (is_one(file) || MULTI_CALL.contains(&file))
        })
    };
    is_one(comm) && exe.is_none_or(is_of_system)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::actor_phrase;
    use crate::{ActorSource, Confidence, Join};

    /// An actor with pid 100 and the processes above it, nearest first, with pids 99, 98, …
    pub(super) fn actor(comm: &str, exe: Option<&str>, above: &[&str]) -> Actor {
        let above = (1..).zip(above).map(|(distance, comm)| AncestorRef {
            pid: 100 - distance,
            comm: (*comm).to_owned(),
            started: Some(true),
            ..AncestorRef::default()
        });
        Actor {
            source: ActorSource::Kernel,
            confidence: Confidence::Certain,
            pid: 100,
            tid: 100,
            uid: Some(0),
            euid: None,
            comm: comm.to_owned(),
            exe: exe.map(str::to_owned),
            cmdline: None,
            start_time_ns: "1".to_owned(),
            cgroup: None,
            unit: None,
            netns: None,
            mntns: None,
            userns: None,
            ancestors: above.collect(),
            container: None,
            pod: None,
            join: Join::Host,
        }
    }

    #[test]
    fn a_sentence_names_who_uses_the_tool() {
        for (comm, above, phrase) in [
            ("calico", &["kubelet", "systemd"][..], "calico (pid 100)"),
            ("ip", &["calico", "kubelet", "systemd"], "calico (pid 99), run by kubelet, by means of ip"),
            (
                "ip",
                &["nsenter", "sh", "calico", "kubelet"],
                "calico (pid 97), run by kubelet, by means of ip",
            ),
            ("umount", &["kubelet", "systemd"], "kubelet (pid 99), by means of umount"),
            ("umount.nfs4", &["umount", "kubelet"], "kubelet (pid 98), by means of umount.nfs4"),
            ("bash", &["fix-network.sh", "cron"], "fix-network.sh (pid 99), run by cron, by means of bash"),
            ("ip", &["bash", "sshd", "sshd", "systemd"], "ip (pid 100), run by bash (pid 99)"),
            ("ip", &["sudo", "sudo", "bash", "sshd-session"], "ip (pid 100), run by bash (pid 97)"),
            ("bash", &["bash", "sshd"], "bash (pid 100), run by bash (pid 99)"),
            ("ip", &["sshd", "systemd"], "ip (pid 100)"),
            ("ip", &[], "ip (pid 100)"),
        ] {
            assert_eq!(actor_phrase(&actor(comm, None, above)), phrase, "{comm} below {above:?}");
        }
    }

    #[test]
    fn what_starts_programs_for_others_is_not_blamed_for_them() {
        for above in [
            &["containerd-shim", "kubelet"][..],
            &["conmon", "kubelet"],
            &["runc:[2:INIT]", "kubelet"],
            &["docker-containe", "dockerd"],
            &["sh", "tmux: server", "kubelet"],
        ] {
            let phrase = actor_phrase(&actor("ip", None, above));
            assert!(phrase.starts_with("ip (pid 100)"), "{phrase} below {above:?}");
            assert!(!phrase.contains("kubelet") && !phrase.contains("dockerd"), "{phrase}");
        }
        let started = Some(true);
        let adopter =
            AncestorRef { pid: 1, comm: "entrypoint".to_owned(), started, ..AncestorRef::default() };
        let orphan = Actor { ancestors: vec![adopter], ..actor("ip", None, &[]) };
        assert_eq!(actor_phrase(&orphan), "ip (pid 100)");
    }

    #[test]
    fn who_may_have_adopted_a_process_is_not_blamed_for_it() {
        let phrase = |comm, above: &[(&str, Option<bool>)]| {
            let names: Vec<&str> = above.iter().map(|(comm, _)| *comm).collect();
            let mut actor = actor(comm, None, &names);
            for (ancestor, (_, started)) in actor.ancestors.iter_mut().zip(above) {
                ancestor.started = *started;
            }
            actor_phrase(&actor)
        };
        let (known, unknown, other) = (Some(true), None, Some(false));
        assert_eq!(phrase("ip", &[("calico", unknown)]), "ip (pid 100), a child of calico (pid 99)");
        assert_eq!(
            phrase("ip", &[("calico", unknown), ("kubelet", known)]),
            phrase("ip", &[("calico", unknown)])
        );
        assert_eq!(phrase("ip", &[("calico", other), ("kubelet", known)]), "ip (pid 100)");
        assert_eq!(phrase("ip", &[("containerd-shim", unknown)]), "ip (pid 100)");
        assert_eq!(phrase("ip", &[("sh", known), ("calico", unknown)]), "ip (pid 100), run by sh (pid 99)");
        assert_eq!(phrase("ip", &[("nsenter", known), ("calico", unknown)]), "ip (pid 100)");
        let by_means = "calico (pid 99), by means of ip";
        assert_eq!(phrase("ip", &[("calico", known), ("kubelet", unknown)]), by_means);
        assert_eq!(phrase("calico", &[("kubelet", unknown)]), "calico (pid 100)");
    }

    #[test]
    fn the_container_of_a_tool_is_not_said_to_be_that_of_who_uses_it() {
        let container = |id: &str| crate::Container {
            name: Some(id.to_owned()),
            ..crate::Container::of_id(id.repeat(64))
        };
        let used = |own: Option<&str>, join| {
            let mut ip = actor("ip", None, &["calico", "kubelet"]);
            ip.container = Some(container("x"));
            let user = &mut ip.ancestors[0];
            (user.container, user.join) = (own.map(container), join);
            (user_of_tool(&ip), actor_phrase(&ip))
        };
        for (own, join, phrase) in [
            (Some("x"), Some(Join::Ok), "calico (pid 99) of container x, run by kubelet, by means of ip"),
            (
                Some("y"),
                Some(Join::Ok),
                "calico (pid 99) of container y, run by kubelet, by means of ip of container x",
            ),
            (None, Some(Join::Host), "calico (pid 99), run by kubelet, by means of ip of container x"),
            // It was gone before that could be read.
            (None, None, "calico (pid 99), run by kubelet, by means of ip of container x"),
        ] {
            assert_eq!(used(own, join), (Some(0), phrase.to_owned()));
        }
        let mut ip = actor("ip", None, &["bash", "sshd"]);
        ip.container = Some(container("x"));
        assert_eq!(user_of_tool(&ip), None);
        assert_eq!(actor_phrase(&ip), "ip (pid 100) of container x, run by bash (pid 99)");
    }

    #[test]
    fn an_unprivileged_user_of_a_tool_of_root_is_told_by_his_id() {
        let mut ip = actor("ip", None, &["sudo", "kubelet"]);
        ip.ancestors[1].uid = Some(1000);
        let phrase = "a process of uid 1000 called kubelet (pid 98), by means of ip";
        assert_eq!(actor_phrase(&ip), phrase);
        ip.ancestors[1].uid = Some(0);
        assert_eq!(actor_phrase(&ip), "kubelet (pid 98), by means of ip");
        let mut ip = actor("ip", None, &["calico", "sudo", "kubelet"]);
        ip.ancestors[2].uid = Some(1000);
        let run_by = "calico (pid 99), run by a process of uid 1000 called kubelet (pid 97), by means of ip";
        assert_eq!(actor_phrase(&ip), run_by);
        let mut ip = actor("ip", None, &["sudo", "bash"]);
        ip.ancestors[1].uid = Some(1000);
        let run_by = "ip (pid 100), run by a process of uid 1000 called bash (pid 98)";
        assert_eq!(actor_phrase(&ip), run_by);
        let mut umount = actor("umount", None, &["kubelet"]);
        (umount.ancestors[0].uid, umount.ancestors[0].started) = (Some(1000), None);
        let child = "umount (pid 100), a child of a process of uid 1000 called kubelet (pid 99)";
        assert_eq!(actor_phrase(&umount), child);
    }

    #[test]
    fn a_program_that_calls_itself_a_tool_is_named() {
        let evil = actor("ip", Some("/home/eve/agent"), &["kubelet"]);
        assert_eq!(actor_phrase(&evil), "ip (pid 100)");
        let own = actor("ip", Some("/tmp/eve/ip"), &["kubelet"]);
        assert_eq!(actor_phrase(&own), "ip (pid 100)");
        let above = AncestorRef {
            exe: Some("/usr/bin/python3.11".to_owned()),
            ..actor("", None, &["sh"]).ancestors.remove(0)
        };
        let by_script = Actor { ancestors: vec![above], ..actor("ip", Some("/usr/bin/ip"), &[]) };
        assert_eq!(actor_phrase(&by_script), "sh (pid 99), by means of ip");
        let applet = actor("ip", Some("/bin/busybox"), &["calico"]);
        assert_eq!(actor_phrase(&applet), "calico (pid 99), by means of ip");
    }

    #[test]
    fn a_process_in_a_user_namespace_of_its_own_is_not_called_by_the_name_it_chose() {
        let userns = Some(crate::UserNamespace::Other);
        let phrase = |uid| actor_phrase(&Actor { userns, uid, ..actor("kubelet", None, &["calico"]) });
        assert_eq!(phrase(Some(1000)), "a process in another user namespace (uid 1000, pid 100)");
        assert_eq!(phrase(None), "a process in another user namespace (pid 100)");
        // Its container has such a namespace, as that of a pod without `hostUsers`.
        let (uid, container) = (Some(100_000), Some(crate::Container::of_id("x".repeat(64))));
        let contained = Actor { userns, uid, container, ..actor("ip", None, &["containerd-shim"]) };
        assert_eq!(actor_phrase(&contained), "ip (pid 100) of container xxxxxxxxxxxx");
    }

    #[test]
    fn an_unprivileged_user_on_the_host_is_told_by_his_id() {
        let phrase = |uid| actor_phrase(&Actor { uid: Some(uid), ..actor("kubelet", None, &["calico"]) });
        assert_eq!(phrase(1000), "a process of uid 1000 called kubelet (pid 100)");
        assert_eq!(phrase(0), "kubelet (pid 100)");
    }

    #[test]
    fn a_name_that_looks_like_a_sentence_is_quoted() {
        for (comm, above, phrase) in [
            ("kubelet (pid 1)", &[][..], r#""kubelet (pid 1)" (pid 100)"#),
            ("a b", &["x"], r#""a b" (pid 100)"#),
            ("ip", &["calico, run by "], r#""calico, run by " (pid 99), by means of ip"#),
            ("ip", &["calico", "\u{202e}\n"], r#"calico (pid 99), run by "\u{202e}\n", by means of ip"#),
        ] {
            assert_eq!(actor_phrase(&actor(comm, None, above)), phrase, "{comm} below {above:?}");
        }
        let user = Actor { uid: Some(1000), ..actor("kubelet (pid 1)", None, &[]) };
        assert_eq!(actor_phrase(&user), r#"a process of uid 1000 called "kubelet (pid 1)" (pid 100)"#);
    }

    #[test]
    fn umount_and_what_runs_it_elsewhere_are_no_callers() {
        for comm in ["umount", "umount.nfs", "fusermount3", "busybox", "nsenter", "systemd-run"] {
            assert!(is_umount_program(comm, None), "{comm}");
        }
        for comm in ["kubelet", "sh", "umountall", "ip"] {
            assert!(!is_umount_program(comm, None), "{comm}");
        }
        assert!(is_umount_program("umount", Some("/bin/busybox")));
        assert!(!is_umount_program("umount", Some("/usr/sbin/agent")));
    }
}
