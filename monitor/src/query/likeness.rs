//! Which events are the same again, so that they are told once, with how often they happened.

use crate::event::culprit::umount_caller;
use crate::event::wording::container_label;
use crate::event::{Event, Neighbor};

/// What like events have in common: everything but the time, the ids of processes that live for one act, how often it
/// happened, and which of many neighbors or containers it happened to. Kinds with other text are never alike; neither are
/// the callers of one mount.
#[must_use]
pub fn likeness(event: &Event, kind: &str) -> String {
    let mut like = format!("{kind}/{}", event.severity.name());
    if let (Some(actor), true) = (&event.actor, kind.starts_with("mount.")) {
        let (pid, comm) = umount_caller(actor);
        like.push_str(&format!("/{pid} {comm}"));
    }
    // Of a container's own life it is the subject; its pod stays.
    let container = event.target.as_ref().and_then(|target| target.container.as_ref());
    let message = match container.filter(|_| kind.starts_with("container.")) {
        Some(container) => event.message.replacen(&*container_label(container), "#", 1),
        None => event.message.clone(),
    };
    let any_neighbor = event.neighbor.as_deref().filter(|neighbor| neighbor.gateway != Some(true));
    push_words(&mut like, &message, any_neighbor);
    like
}

/// Whether later events of this kind may stand with the first of it though other kinds came between. A mount that is busy
/// again after it was released, or an entry that is lost again after it was put back, is another matter.
#[must_use]
pub fn run(kind: &str) -> &str {
    match kind.split_once('.') {
        Some((family @ ("container" | "link"), _)) => family,
        _ => kind,
    }
}

fn push_words(like: &mut String, message: &str, neighbor: Option<&Neighbor>) {
    let words: Vec<&str> = message.split(' ').collect();
    let is_number = |word: &str| {
        let digits = word.trim_end_matches(|c| "),;:.".contains(c));
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let address = neighbor.map(|neighbor| neighbor.address.to_string());
    let is_of_neighbor = |word: &str| {
        neighbor.is_some_and(|neighbor| {
            address.as_deref() == Some(word) || neighbor.new_lladdr.as_deref() == Some(word)
        })
    };
    for (index, word) in words.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| words.get(before)).copied().unwrap_or_default();
        let after = words.get(index + 1).copied().unwrap_or_default();
        let counts = ["(pid", "pid", "attempt"].contains(&before)
            || ["times", "times)", "attempts", "refused"].contains(&after);
        like.push(' ');
        like.push_str(if (counts && is_number(word)) || is_of_neighbor(word) { "#" } else { word });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{AncestorRef, Kind};
    use crate::tests::sample;

    fn like(event: &Event) -> String {
        likeness(event, event.kind.name())
    }

    fn busy(pid: u32, above: &[(u32, &str)]) -> Event {
        let mut event = sample::busy();
        let actor = event.actor.as_mut().unwrap();
        (actor.pid, actor.comm, actor.exe) = (pid, "umount".into(), None);
        let above = above.iter().map(|(pid, comm)| AncestorRef {
            pid: *pid,
            comm: (*comm).into(),
            started: Some(true),
            ..AncestorRef::default()
        });
        actor.ancestors = above.collect();
        event.message = format!("umount of /m by umount (pid {pid}) refused: held by etcd (pid 7)");
        event
    }

    #[test]
    fn the_attempts_of_one_caller_are_alike_and_those_of_two_are_not() {
        let first = busy(100, &[(99, "kubelet"), (1, "systemd")]);
        assert_eq!(like(&first), like(&busy(101, &[(99, "kubelet"), (1, "systemd")])));
        assert_ne!(like(&first), like(&busy(101, &[(98, "kubelet"), (1, "systemd")])));
        assert_ne!(like(&first), like(&busy(101, &[(99, "sh"), (1, "systemd")])));
        let through = busy(102, &[(103, "nsenter"), (99, "kubelet")]);
        assert_eq!(like(&first), like(&through));
    }

    #[test]
    fn entries_of_a_batch_are_alike_but_for_a_gateway() {
        let entry = |address: &str, gateway| {
            let mut event = sample::deletion();
            let neighbor = event.neighbor.as_mut().unwrap();
            (neighbor.address, neighbor.gateway) = (address.parse().unwrap(), Some(gateway));
            event.message = format!("ARP {address} on eth0 deleted by ip (pid 7)");
            event
        };
        assert_eq!(like(&entry("10.0.0.1", false)), like(&entry("10.0.0.12", false)));
        assert_ne!(like(&entry("10.0.0.1", true)), like(&entry("10.0.0.12", true)));
    }

    #[test]
    fn containers_that_go_one_after_the_other_are_alike_within_their_pod() {
        let removed = |container: &str, pod: &str| {
            let mut event = Event { kind: Kind::ContainerRemoved, ..sample::deletion() };
            event.target.as_mut().unwrap().container.as_mut().unwrap().name = Some(container.into());
            event.message = format!("container {container} of pod {pod} removed");
            event
        };
        assert_eq!(like(&removed("a_1", "x/y")), like(&removed("a_2", "x/y")));
        assert_ne!(like(&removed("a_1", "x/y")), like(&removed("a_2", "x/z")));
    }
}
