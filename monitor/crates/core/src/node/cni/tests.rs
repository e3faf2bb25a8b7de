use kevtmon_event::{ActorSource, Confidence, Join};
use kevtmon_observation::{ContainerFacts, TaskKey, TaskRef};

use super::*;
use crate::node::view::{NodeView, RuntimeAvailability};
use crate::test_support::model::{self, Model};

const ID: &str = "94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94fe";
const KUBELET: Process = (900, 1);

fn actor(pid: u32) -> Actor {
    Actor {
        pid,
        ..serde_json::from_value(serde_json::json!({
            "source": ActorSource::Kernel, "confidence": Confidence::Certain, "pid": pid, "tid": pid, "comm": "calico",
            "start_time_ns": "5", "join": Join::Host,
        }))
        .unwrap()
    }
}

fn exec(tgid: u32, plugin: &str, command: CniCommand, id: &str) -> CniExec {
    let key = TaskKey { tgid, start_ns: 5, exec_id: 1 };
    CniExec {
        actor: TaskRef { key, tid: tgid, comm: plugin.into(), context: None },
        plugin: format!("/opt/cni/bin/{plugin}"),
        command,
        container_id: Some(id.into()),
        netns: None,
        ifname: Some("eth0".into()),
        pod: None,
        truncated: false,
    }
}

fn started(calls: &mut CniCalls, at: BootNs, exec: CniExec, ancestors: &[Process]) -> bool {
    calls.started(at, exec, ancestors, || actor(1)).is_some()
}

fn exit(tgid: u32, code: u32) -> CniExit {
    CniExit { tgid, start_ns: 5, status: code << 8 }
}

#[test]
fn a_chain_with_delegates_is_one_call_and_ends_when_nothing_follows() {
    use CniCommand::Add;
    let mut calls = CniCalls::default();
    assert!(started(&mut calls, 10, exec(1, "calico", Add, ID), &[KUBELET]));
    // Its address plugin, and what that one executes.
    assert!(!started(&mut calls, 11, exec(2, "calico-ipam", Add, ID), &[(1, 5), KUBELET]));
    assert!(!started(&mut calls, 12, exec(3, "host-local", Add, ID), &[(2, 5), (1, 5)]));
    // A wrapper that becomes another program.
    assert!(!started(&mut calls, 12, exec(1, "calico.real", Add, ID), &[KUBELET]));
    for (tgid, code) in [(3, 1), (2, 1), (1, 0)] {
        assert!(calls.exited(20, exit(tgid, code)).is_none(), "{tgid}");
    }
    assert_eq!(calls.deadline(), Some(20 + CHAIN_NS));
    assert!(!started(&mut calls, 30, exec(4, "portmap", Add, ID), &[KUBELET]));
    assert_eq!(calls.deadline(), None);
    assert!(calls.exited(40, exit(4, 0)).is_none());
    assert!(calls.take_ended(40 + CHAIN_NS - 1).is_none());
    let call = calls.take_ended(40 + CHAIN_NS).unwrap();
    assert_eq!(call.plugins, ["/opt/cni/bin/calico", "/opt/cni/bin/portmap"]);
    assert_eq!((call.started, call.cni().exit_code), (10, Some(0)));
    assert!(calls.exited(50, exit(4, 0)).is_none(), "it is known no longer");
}

#[test]
fn a_call_is_by_the_plugin_that_failed_or_else_by_the_one_of_the_interface() {
    use CniCommand::{Add, Del};
    // The plugins of a chain, which of them fails, and which one it is called by.
    for (command, chain, failing, by) in [
        (Del, &["loopback", "portmap", "calico"][..], None, 3),
        (Del, &["loopback", "portmap", "calico"], Some(3), 3),
        (Del, &["loopback", "portmap", "calico"], Some(2), 2),
        (Del, &["loopback", "portmap", "calico"], Some(1), 1),
        (Del, &["calico", "loopback"], None, 1),
        (Add, &["loopback", "calico", "portmap"], None, 2),
        (Add, &["loopback", "calico", "portmap"], Some(3), 3),
        (Add, &["calico", "portmap"], None, 1),
        (Add, &["loopback"], None, 1),
    ] {
        let mut calls = CniCalls::default();
        let mut ended = None;
        for (tgid, plugin) in (1..).zip(chain) {
            calls.started(10, exec(tgid, plugin, command, ID), &[KUBELET], || actor(tgid));
            ended = calls.exited(20, exit(tgid, u32::from(failing == Some(tgid))));
            if ended.is_some() {
                break;
            }
        }
        let call = ended.or_else(|| calls.take_ended(20 + CHAIN_NS)).unwrap();
        let plugin = format!("/opt/cni/bin/{}", chain[by as usize - 1]);
        assert_eq!((call.actor.pid, call.cni().plugin), (by, plugin), "{command:?} {chain:?} {failing:?}");
    }
}

#[test]
fn the_beginning_of_a_call_is_told_once_and_not_by_the_plugin_of_the_loopback() {
    let mut calls = CniCalls::default();
    let mut begun = |tgid, plugin| {
        started(&mut calls, 10, exec(tgid, plugin, CniCommand::Add, ID), &[KUBELET]);
        calls.take_begun(10).map(|call| (call.started, call.cni().plugin, call.cni().exit_code))
    };
    assert_eq!(begun(1, "loopback"), None);
    assert_eq!(begun(2, "calico"), Some((10, "/opt/cni/bin/calico".to_owned(), None)));
    assert_eq!(begun(3, "portmap"), None);
}

#[test]
fn the_beginning_of_a_call_that_hangs_in_the_loopbacks_plugin_is_told_after_a_while() {
    let mut calls = CniCalls::default();
    started(&mut calls, 10, exec(1, "loopback", CniCommand::Add, ID), &[KUBELET]);
    assert_eq!(calls.take_begun(10 + LOOPBACK_NS - 1), None);
    assert_eq!(calls.deadline(), Some(10 + LOOPBACK_NS));
    let begun = calls.take_begun(10 + LOOPBACK_NS).map(|call| (call.started, call.cni().plugin));
    assert_eq!(begun, Some((10, "/opt/cni/bin/loopback".to_owned())));
    assert_eq!((calls.take_begun(u64::MAX), calls.deadline()), (None, None));
}

#[test]
fn what_is_of_another_caller_container_command_or_the_same_plugin_again_is_another_call() {
    use CniCommand::{Add, Del};
    let other = "a".repeat(64);
    let mut calls = CniCalls::default();
    for (tgid, plugin, command, id, caller) in [
        (1, "calico", Del, ID, KUBELET),
        (2, "calico", Del, &other[..], KUBELET),
        (3, "portmap", Add, ID, KUBELET),
        (4, "portmap", Del, ID, (901, 1)),
        (5, "calico", Del, ID, KUBELET),
    ] {
        assert!(started(&mut calls, 10, exec(tgid, plugin, command, id), &[caller]), "{tgid}");
    }
    let failed = calls.exited(20, exit(5, 1)).unwrap();
    assert_eq!((failed.cni().exit_code, failed.cni().plugin.as_str()), (Some(1), "/opt/cni/bin/calico"));
    // Two workers at once.
    assert!(calls.exited(21, exit(1, 1)).is_some());
    assert!(
        started(&mut calls, 22, exec(6, "calico", Del, ID), &[KUBELET]),
        "after a failure it is a new one"
    );
}

#[test]
fn calls_and_sandboxes_are_bounded() {
    let mut calls = CniCalls::default();
    for tgid in 1..5000 {
        let id = format!("{tgid:064x}");
        assert!(started(&mut calls, tgid.into(), exec(tgid, "calico", CniCommand::Add, &id), &[KUBELET]));
    }
    assert_eq!((calls.open.len(), calls.sandboxes.len()), (OPEN_MAX, SANDBOXES_MAX));
    let first = BootNs::try_from(OPEN_MAX).unwrap() + 1;
    assert_eq!(calls.deadline(), Some(first + TELL_NS));
    assert_eq!(calls.take_given_up(first, false), None);
    let given_up = GivenUp { count: 4999 - first + 1, from: first, until: 4999 };
    assert_eq!(calls.take_given_up(first + TELL_NS, false), Some(given_up));
    assert_eq!((calls.deadline(), calls.take_given_up(9999, true)), (None, None));
    assert!(calls.get(&format!("{:064x}", 4999)).is_some());
    // It has ended before it was known where its namespace is, which nobody answers.
    let mut call = calls.open[0].clone();
    call.first.netns = Some("/proc/7/ns/net".into());
    calls.note_end(6000, &call, false, false);
    assert_eq!(calls.unanswered.len(), 1);
    calls.expire(2 * RETENTION_NS);
    assert_eq!(calls, CniCalls { last_id: calls.last_id, ..CniCalls::default() });
}

#[test]
fn a_sandbox_is_stale_only_where_the_current_one_is_known() {
    use RuntimeAvailability::{All, None as Without, Some as SomeOf};
    let pod = CniPod { namespace: "lijiaob".into(), name: "etcd1-0".into(), uid: None };
    let (old, new, gone) = ("a".repeat(64), "b".repeat(64), "c".repeat(64));
    let add = |model: &mut Model, at: BootNs, id: &str| {
        let exec = CniExec { pod: Some(pod.clone()), ..exec(9, "calico", CniCommand::Add, id) };
        assert!(started(&mut model.cni, at, exec, &[KUBELET]));
        assert!(model.cni.exited(at, exit(9, 0)).is_none());
        let call = model.cni.take_ended(at + CHAIN_NS).unwrap();
        model.cni.note_end(at, &call, false, false);
    };
    let is_stale = |model: &Model, id: &str| {
        [All, SomeOf, Without].map(|runtimes| NodeView { runtimes, ..model.view() }.is_stale(id, &pod))
    };
    // Only a runtime that knows all of them tells that there is none.
    let mut model = Model::default();
    assert_eq!(is_stale(&model, &old), [Some(false), None, None]);
    add(&mut model, 10, &old);
    assert_eq!(is_stale(&model, &old)[1..], [Some(false); 2], "it is the current one");
    add(&mut model, 20, &new);
    assert_eq!(is_stale(&model, &old)[1..], [Some(true); 2]);
    assert_eq!(is_stale(&model, &new)[1..], [Some(false); 2]);
    assert_eq!(is_stale(&model, &gone)[1..], [Some(true); 2], "it was added before calls were seen");
    // By runtimes alone: one that is not asked may have made the other one later.
    let mut model = Model::default();
    let facts = ContainerFacts {
        sandbox: true,
        started_ns: Some(30),
        pod: Some(model::pod()),
        ..model::container(&new)
    };
    model.containers.put(40, facts);
    assert_eq!(is_stale(&model, &new), [Some(false); 3]);
    assert_eq!(is_stale(&model, &gone), [Some(true), None, None]);
}

#[test]
fn the_namespace_of_a_sandbox_is_forgotten_when_it_ends() {
    let (mut calls, id) = (CniCalls::default(), "a".repeat(64));
    assert!(started(&mut calls, 1, exec(9, "calico", CniCommand::Add, &id), &[KUBELET]));
    let call = calls.open[0].id;
    assert!(calls.answered(&CniNetns { id: call, netns: Some(7), started_ns: None }).is_some());
    for (ended, left) in [(8, Some(7)), (7, None)] {
        calls.forget_netns(ended);
        assert_eq!(calls.get(&id).unwrap().netns, left);
    }
}
