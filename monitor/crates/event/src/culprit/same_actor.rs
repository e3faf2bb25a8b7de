//! Whether what several actors did was done by one.

use super::{AncestorRef, Part, RunBy, culprit, part_of};
use crate::Actor;

/// Who an actor is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// What actors have in common that are one: the same process, tools of the same one, or processes that the same one
    /// started as the same program.
    pub key: String,
    /// Whether no other process has it: the process that counts is known by its start, too, and not by its id alone, which the
    /// kernel may have given to another one since.
    pub is_certain: bool,
}

impl Identity {
    fn above(how: &str, above: &AncestorRef, program: &str) -> Self {
        let AncestorRef { pid, comm, start_time_ns, .. } = above;
        let start = start_time_ns.as_deref().unwrap_or("?");
        Self { key: format!("{how}/{pid}/{start}/{comm}{program}"), is_certain: start_time_ns.is_some() }
    }
}

pub fn identity(actor: &Actor) -> Identity {
    let culprit = culprit(actor);
    let shell = match culprit.run_by {
        RunBy::Shell(shell) => Some(shell),
        _ => None,
    };
    if let Some(above) = culprit.user.or(shell) {
        return Identity::above("above", above, "");
    }
    let starter = actor.ancestors.first().filter(|above| above.started == Some(true));
    match starter.filter(|above| part_of(above) != Part::Supervisor) {
        Some(above) => {
            let program = actor.exe.as_deref().unwrap_or(&actor.comm);
            Identity::above("child", above, &format!("/{program}"))
        }
        None => Identity {
            key: format!("process/{}/{}", actor.pid, actor.start_time_ns),
            // In recordings that do not tell it.
            is_certain: actor.start_time_ns != "0",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::actor;
    use super::*;

    #[test]
    fn tools_of_one_process_are_one_actor_and_those_of_two_are_not() {
        let ran = |pid: u32, comm: &str, above: &[&str]| Actor { pid, ..actor(comm, None, above) };
        for above in [&["bash", "sshd"][..], &["fix-network.sh", "cron"], &["nsenter", "bash", "sshd"]] {
            assert_eq!(identity(&ran(7, "ip", above)), identity(&ran(8, "ip", above)), "{above:?}");
        }
        let others = [
            ran(7, "ip", &["bash", "sshd"]),
            ran(7, "ip", &["nsenter", "bash", "sshd"]),
            ran(7, "ip", &[]),
            ran(8, "ip", &["systemd"]),
            ran(7, "calico", &["kubelet", "systemd"]),
            ran(7, "calico", &["containerd", "systemd"]),
            ran(7, "cilium-cni", &["kubelet", "systemd"]),
        ];
        let different: std::collections::BTreeSet<Identity> = others.iter().map(identity).collect();
        assert_eq!(different.len(), others.len(), "{different:?}");
        // The kubelet runs the plugin again for each pod.
        let plugin = |pid| identity(&ran(pid, "calico", &["kubelet", "systemd"]));
        assert_eq!(plugin(7), plugin(8));
        // What adopts and starts everything is no actor.
        let daemon = |pid| identity(&ran(pid, "felix", &["systemd"]));
        assert_ne!(daemon(7), daemon(8));
    }

    #[test]
    fn a_process_that_has_the_id_and_the_name_of_an_earlier_one_is_another_actor() {
        let below = |start: Option<&str>, comm: &str, above: &[&str]| {
            let mut actor = actor(comm, None, above);
            for ancestor in &mut actor.ancestors {
                ancestor.start_time_ns = start.map(str::to_owned);
            }
            identity(&actor)
        };
        for (comm, above) in [("ip", &["bash", "sshd"][..]), ("ip", &["fix.sh"]), ("calico", &["kubelet"])] {
            let first = below(Some("5"), comm, above);
            assert_eq!(first, below(Some("5"), comm, above));
            assert!(first.is_certain);
            assert_ne!(first.key, below(Some("6"), comm, above).key, "{comm} below {above:?}");
            assert!(!below(None, comm, above).is_certain, "by its id alone");
        }
        assert!(identity(&actor("calico", None, &[])).is_certain, "its own start is known");
    }
}
