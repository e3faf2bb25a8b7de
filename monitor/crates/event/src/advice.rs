//! What to do next: every form of a command that is ever offered, in one table.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A next step.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Advice {
    /// What the command does, in words.
    pub text: String,
    /// The form of the command, by name.
    #[schemars(schema_with = "form_names")]
    pub form: String,
    /// The exact command.
    pub command: String,
    /// The risk of the command.
    pub risk: Risk,
    /// What the command does, for programs.
    pub action: Action,
    /// The process that the command is about, by its id or as what holds; absent where it is about none.
    pub process: Option<NamedProcess>,
}

/// A process that a command is about. The command is of use only while the process that has the id is still this one, that
/// is, while it started before `seen_ns`, and while one of its links leads where it led.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamedProcess {
    /// Process id.
    pub pid: u32,
    /// When it was seen, on the boot clock, nanoseconds.
    #[schemars(regex(pattern = "^[0-9]+$"))]
    pub seen_ns: String,
    /// What the command is for: that one of these links is as it was. Empty where its life alone counts.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub links: Vec<ProcessLink>,
}

/// A link below `/proc/PID`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessLink {
    /// Its name: `cwd`, `root`, `exe`, `fd/3`, `task/7/fd/3`, `ns/net`, `ns/mnt`.
    pub link: String,
    /// What it leads to, or what is above that.
    pub target: String,
}

impl ProcessLink {
    /// Whether this is where it leads to.
    pub fn leads_to(&self, now: &str) -> bool {
        let above = self.target.trim_end_matches('/');
        now.strip_prefix(above).is_some_and(|below| below.is_empty() || below.starts_with('/'))
    }
}

/// The risk of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Risk {
    /// It only reads.
    Read,
    /// It restarts something.
    Restart,
    /// It may lose data.
    Destructive,
}

/// What a command does, as one of few words that programs decide by. None restarts the node: nothing that is found here takes that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It changes nothing.
    None,
    /// It ends the process that holds something.
    KillHolder,
    /// It deletes a pod, which its controller makes again, or restarts a container.
    RestartPod,
    /// It restarts or continues a service of the node, such as a network plugin's agent or a file server.
    RestartAgent,
    /// It removes what was left: a mount, a mapped image, a container.
    RemoveObject,
    /// It sets what has another value than it should: a sysctl, a route, an entry, an interface, a flag.
    FixConfig,
    /// It shows whom to ask: the cause may be on another node.
    Contact,
}

/// The form of a command that is offered. Each is carried out by an end-to-end test, in each state in which it is offered.
#[derive(Debug, PartialEq, Eq)]
pub struct Form {
    /// As in the JSON.
    pub name: &'static str,
    pub risk: Risk,
    pub action: Action,
    /// Kinds of the incidents that offer it.
    pub kinds: &'static [&'static str],
    /// The words of the command: those in capitals stand for any one, what is in brackets may be missing.
    pub words: &'static str,
}

impl Form {
    /// Whether a command has this form.
    pub fn fits<S: AsRef<str>>(&self, command: &[S]) -> bool {
        let mut wanted = self.words.split(' ').peekable();
        let mut command = command.iter().map(AsRef::as_ref).peekable();
        while let Some(word) = wanted.next() {
            let Some(option) = word.strip_prefix('[') else {
                if !command.next().is_some_and(|given| is_for(word, given)) {
                    return false;
                }
                continue;
            };
            // An option, and its value if it has one.
            let is_given = command.next_if(|given| *given == option.trim_end_matches(']')).is_some();
            let value = if option.ends_with(']') { None } else { wanted.next() };
            if is_given && value.is_some() && command.next().is_none() {
                return false;
            }
        }
        command.next().is_none()
    }
}

/// Whether a word of a form stands for this one.
fn is_for(word: &str, given: &str) -> bool {
    word == given || word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase())
}

/// The table: what a form is called in the program and in the JSON, what it risks and does, its words, and the kinds of incidents
/// that offer it.
macro_rules! forms {
    ($($form:ident = $name:literal, $risk:ident $action:ident, $words:literal, [$($kind:literal),+];)+) => {
        $(
            #[doc = concat!("`", $words, "`")]
            pub const $form: &Form = &Form {
                name: $name,
                risk: Risk::$risk,
                action: Action::$action,
                kinds: &[$($kind),+],
                words: $words,
            };
        )+

        /// Every form.
        pub const ALL: &[&Form] = &[$($form),+];
    };
}

pub mod form {
    use super::{Action, Form, Risk};

    forms! {
        SHOW_ENTRY = "show-entry", Read None, "nsenter -t PID -n ip neigh show dev INTERFACE",
            ["gateway-neighbor-lost"];
        REPLACE_ENTRY = "replace-entry", Restart FixConfig,
            "nsenter -t PID -n ip neigh replace ADDRESS lladdr MAC nud permanent dev INTERFACE",
            ["gateway-neighbor-lost"];
        REPLACE_TUNNEL_ENTRY = "replace-tunnel-entry", Restart FixConfig,
            "ip neigh replace ADDRESS lladdr MAC dev INTERFACE nud permanent", ["gateway-neighbor-lost"];
        SET_UP = "set-up", Restart FixConfig, "ip link set INTERFACE up",
            ["gateway-neighbor-lost", "pod-route-missing", "pod-neighbor-unreachable", "cni-netns-mismatch"];
        SET_UP_INSIDE = "set-up-inside", Restart FixConfig, "nsenter -t PID -n ip link set dev INTERFACE up",
            ["gateway-neighbor-lost", "pod-neighbor-unreachable", "cni-netns-mismatch"];
        SET_SYSCTL = "set-sysctl", Restart FixConfig, "sysctl -w SETTING", ["gateway-neighbor-lost"];
        SET_MAC = "set-mac", Restart FixConfig, "ip link set dev INTERFACE address MAC", ["gateway-neighbor-lost"];
        RAISE_LIMITS = "raise-limits", Restart FixConfig, "sysctl -w SETTING SETTING SETTING", ["neighbor-table-full"];
        LIST_BY_DOCKER = "list-by-docker", Read None,
            "docker [--host SOCKET] ps --all --filter LABEL --filter LABEL", ["gateway-neighbor-lost"];
        LIST_BY_CRICTL = "list-by-crictl", Read None,
            "crictl [--runtime-endpoint SOCKET] pods --namespace NAMESPACE --name NAME", ["gateway-neighbor-lost"];
        DELETE_POD = "delete-pod", Restart RestartPod, "kubectl -n NAMESPACE delete pod NAME",
            ["gateway-neighbor-lost", "volume-busy", "mount-leak", "sandbox-network-replaced", "pod-volume-lost",
             "file-server-lost"];
        RESTART_BY_DOCKER = "restart-by-docker", Restart RestartPod, "docker [--host SOCKET] restart CONTAINER",
            ["gateway-neighbor-lost", "volume-busy", "mount-leak", "file-server-lost"];
        RESTART_BY_PODMAN = "restart-by-podman", Restart RestartPod, "podman [--url SOCKET] restart CONTAINER",
            ["gateway-neighbor-lost", "volume-busy", "mount-leak"];
        STOP_BY_CRICTL = "stop-by-crictl", Restart RestartPod, "crictl [--runtime-endpoint SOCKET] stop CONTAINER",
            ["volume-busy", "mount-leak"];
        SHOW_USERS = "show-users", Read None, "kevtmon holders PATH",
            ["volume-busy", "container-undeletable", "pod-stuck-terminating"];
        SHOW_LEAKS = "show-leaks", Read None, "kevtmon holders --leaks", ["mount-leak", "container-undeletable"];
        TELL_VOLUME = "tell-volume", Read None, "kevtmon why PATH", ["volume-busy", "rbd-orphan-mapping", "mount-multiplied"];
        CLEAR_FLAG = "clear-flag", Destructive FixConfig, "chattr FLAG PATH", ["container-undeletable"];
        UNMOUNT = "unmount", Destructive RemoveObject, "umount PATH",
            ["volume-busy", "container-undeletable", "rbd-orphan-mapping", "orphan-veth"];
        DETACH = "detach", Destructive RemoveObject, "umount --lazy PATH", ["volume-busy"];
        UNMOUNT_INSIDE = "unmount-inside", Destructive RemoveObject, "nsenter -t PID -m umount PATH",
            ["volume-busy", "rbd-orphan-mapping", "orphan-veth"];
        UNMAP_IMAGE = "unmap-image", Destructive RemoveObject, "rbd unmap DEVICE", ["rbd-orphan-mapping"];
        UNMAP_BY_NBD = "unmap-by-nbd", Destructive RemoveObject, "rbd-nbd unmap DEVICE", ["rbd-orphan-mapping"];
        LIST_LOCKS = "list-locks", Read None, "rbd lock list IMAGE",
            ["rbd-orphan-mapping", "rbd-lock-left", "rbd-locked-elsewhere"];
        LIST_WATCHERS = "list-watchers", Read Contact, "rbd status IMAGE", ["rbd-lock-left", "rbd-locked-elsewhere"];
        DETACH_INSIDE = "detach-inside", Destructive RemoveObject, "nsenter -t PID -m umount --lazy PATH", ["volume-busy"];
        RESTART_UNIT = "restart-unit", Restart RestartAgent, "systemctl restart UNIT", ["volume-busy", "mount-leak"];
        END_SERVER = "end-server", Destructive KillHolder, "kill SERVER", ["volume-busy"];
        END_PROCESS = "end-process", Destructive KillHolder, "kill PID",
            ["volume-busy", "container-undeletable", "mount-leak"];
        END_CONTAINER = "end-container", Destructive KillHolder, "kill -KILL PID", ["volume-busy", "mount-leak"];
        REMOVE_BY_DOCKER = "remove-by-docker", Destructive RemoveObject, "docker [--host SOCKET] rm [--force] CONTAINER",
            ["orphan-container", "container-undeletable"];
        REMOVE_BY_CRICTL = "remove-by-crictl", Destructive RemoveObject,
            "crictl [--runtime-endpoint SOCKET] rm [--force] CONTAINER", ["orphan-container"];
        SHOW_LOG = "show-log", Read None, "journalctl --unit UNIT --lines 50", ["kubelet-crash-loop"];
        SHOW_CALLS = "show-calls", Read None, "kevtmon events --kind cni.finished --container SANDBOX",
            ["stale-cni-del", "cni-netns-mismatch"];
        SHOW_RECREATIONS = "show-recreations", Read None, "kevtmon events --kind container.recreated",
            ["spec-hash-storm"];
        CONTINUE_SERVER = "continue-server", Restart RestartAgent, "kill -CONT PID", ["umount-hung", "volume-busy"];
        TELL_POD = "tell-pod", Read None, "kevtmon why POD",
            ["sandbox-crash-loop", "pod-stuck-terminating", "duplicate-pod-ip", "pod-neighbor-unreachable",
             "pod-route-missing", "ipam-drift", "route-flapping", "neighbor-table-full"];
        SHOW_ROUTE = "show-route", Read None, "ip route get ADDRESS", ["duplicate-pod-ip", "pod-neighbor-unreachable"];
        SHOW_ROUTES = "show-routes", Read None, "ip [-6] route show match ADDRESS", ["pod-route-missing"];
        ADD_ROUTE = "add-route", Restart FixConfig, "ip route replace ADDRESS dev INTERFACE scope link",
            ["pod-route-missing", "gateway-neighbor-lost"];
        SHOW_RECORD = "show-record", Read None, "ip neigh show to ADDRESS dev INTERFACE", ["pod-neighbor-unreachable"];
        LIST_EFFECTS = "list-effects", Read None, "kevtmon incidents --kind KIND", ["multi-pod-disruption"];
        SHOW_NFS_MOUNTS = "show-nfs-mounts", Read Contact, "findmnt --types TYPES", ["nfs-server-unresponsive"];
        SHOW_LINK = "show-link", Read None, "ip -details link show dev INTERFACE", ["orphan-veth"];
    }
}

fn form_names(_generator: &mut SchemaGenerator) -> Schema {
    let option = |form: &&Form| {
        let meaning = format!("`{}`, of {}.", form.words, form.kinds.join(" and "));
        json_schema!({ "const": form.name, "description": meaning })
    };
    json_schema!({ "oneOf": form::ALL.iter().map(option).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_form_says_which_commands_have_it() {
        let fits = |form: &Form, command: &str| form.fits(&command.split(' ').collect::<Vec<_>>());
        for (form, command, expected) in [
            (form::DETACH, "umount --lazy /a", true),
            (form::DETACH, "umount /a", false),
            (form::UNMOUNT, "umount --lazy /a", false),
            (form::END_PROCESS, "kill 7", true),
            (form::END_PROCESS, "kill", false),
            (form::END_PROCESS, "kill 7 8", false),
            (form::RESTART_BY_DOCKER, "docker restart a", true),
            (form::RESTART_BY_DOCKER, "docker --host unix:///x restart a", true),
            (form::RESTART_BY_DOCKER, "docker --host restart a", false),
            (form::RESTART_BY_DOCKER, "podman restart a", false),
            (form::REMOVE_BY_DOCKER, "docker rm --force a", true),
            (form::REMOVE_BY_DOCKER, "docker rm a", true),
            (form::REMOVE_BY_DOCKER, "docker rm a b", false),
        ] {
            assert_eq!(fits(form, command), expected, "{}: {command}", form.words);
        }
    }

    /// Steps that no test carries out wherever it runs, and why.
    const NOT_EVERYWHERE: &[(&str, &str)] = &[
        ("gateway-neighbor-lost/delete-pod", "needs the API server of a cluster"),
        (
            "gateway-neighbor-lost/list-by-crictl",
            "Debian 12 has no package of crictl; carried out where it is there",
        ),
        ("file-server-lost/delete-pod", "needs the API server of a cluster"),
        ("orphan-container/remove-by-crictl", "containers outlive their sandboxes behind cri-dockerd only"),
        ("orphan-veth/unmount", "needs a server of NFS version 4"),
        ("orphan-veth/unmount-inside", "needs a server of NFS version 4"),
        ("mount-leak/delete-pod", "needs the API server of a cluster"),
        ("mount-leak/restart-unit", "needs systemd as process 1"),
        ("mount-leak/stop-by-crictl", "Debian 12 has no package of crictl; carried out where it is there"),
        ("pod-volume-lost/delete-pod", "needs the API server of a cluster"),
        ("rbd-lock-left/list-locks", "needs a Ceph cluster"),
        ("rbd-lock-left/list-watchers", "needs a Ceph cluster"),
        ("rbd-locked-elsewhere/list-locks", "needs a Ceph cluster"),
        ("rbd-locked-elsewhere/list-watchers", "needs a Ceph cluster"),
        ("rbd-orphan-mapping/list-locks", "needs a Ceph cluster"),
        ("rbd-orphan-mapping/unmap-by-nbd", "needs a Ceph cluster, and rbd-nbd"),
        ("rbd-orphan-mapping/unmap-image", "needs a Ceph cluster, and a kernel with rbd"),
        ("sandbox-network-replaced/delete-pod", "needs the API server of a cluster"),
        ("volume-busy/delete-pod", "needs the API server of a cluster"),
        ("volume-busy/restart-unit", "needs systemd as process 1"),
        ("volume-busy/stop-by-crictl", "Debian 12 has no package of crictl; carried out where it is there"),
    ];

    /// The steps that the end-to-end tests give to a function: literals that begin with the kind of an incident.
    fn steps_in_calls(function: &str) -> BTreeSet<String> {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/tests/e2e");
        let call = format!("{function}(");
        let is_step = |literal: &&str| {
            let offers = |kind: &str| form::ALL.iter().any(|form| form.kinds.contains(&kind));
            literal.split_once('/').is_some_and(|(kind, _)| offers(kind))
        };
        let mut steps = BTreeSet::new();
        let paths = std::fs::read_dir(tests).unwrap().map(|entry| entry.unwrap().path());
        for path in paths.filter(|path| path.is_file()) {
            let text = std::fs::read_to_string(path).unwrap();
            for call in text.split(&call).skip(1) {
                let arguments = call.split([';', '{']).next().unwrap_or_default();
                let literals = arguments.split('"').skip(1).step_by(2);
                steps.extend(literals.filter(is_step).map(str::to_owned));
            }
        }
        steps
    }

    #[test]
    fn every_form_is_carried_out_by_a_test_in_each_state_in_which_it_is_offered() {
        let named =
            |form: &&Form| form.kinds.iter().map(|kind| format!("{kind}/{}", form.name)).collect::<Vec<_>>();
        let offered: BTreeSet<String> = form::ALL.iter().flat_map(named).collect();
        let excepted: BTreeSet<String> = NOT_EVERYWHERE.iter().map(|(step, _)| (*step).to_owned()).collect();
        let carried_out = steps_in_calls("carry_out");
        let tried: BTreeSet<String> = carried_out.union(&excepted).cloned().collect();
        assert_eq!(offered, tried, "left: what is offered, right: what is carried out, or is an exception");
        assert_eq!(carried_out.intersection(&excepted).count(), 0, "no exception any more");
        // What a test can try is tried as far as it goes.
        let by_no_test = excepted.difference(&steps_in_calls("is_understood")).cloned().collect::<Vec<_>>();
        let known =
            ["orphan-container/remove-by-crictl", "orphan-veth/unmount", "orphan-veth/unmount-inside"];
        assert_eq!(by_no_test, known);
    }

    #[test]
    fn what_only_reads_does_nothing_and_what_changes_something_does() {
        for form in form::ALL {
            let is_read = matches!(form.action, Action::None | Action::Contact);
            assert_eq!(form.risk == Risk::Read, is_read, "{}", form.name);
        }
    }

    #[test]
    fn no_two_forms_have_the_same_name_or_words() {
        for (index, form) in form::ALL.iter().enumerate() {
            let others = &form::ALL[index + 1..];
            assert!(!others.iter().any(|other| other.name == form.name || other.words == form.words));
        }
    }
}
