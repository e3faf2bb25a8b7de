use kevtmon_event::{CloseReason, Confidence, Incident};
use kevtmon_observation::*;

use super::*;
use crate::diagnose::tests::harness::*;

/// The sandbox before the one that lives.
const OLD: &str = "94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94fe";

impl TestNode {
    fn of_kind(&self, kind: &str) -> Vec<Incident> {
        self.open().into_iter().filter(|open| open.kind == kind).collect()
    }
}

/// A node on which the pod is about to run.
fn before_the_pod() -> TestNode {
    let mut node = TestNode::booted(crate::Resume::default());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    node.start(Vec::new());
    node.events.clear();
    node
}

fn start_pod(node: &mut TestNode) {
    node.observe(etcd(ContainerState::Running));
    node.call(CniCommand::Add, SANDBOX, 0);
}

#[test]
fn it_opens_when_the_newer_sandbox_is_added_before_any_harm_is_done() {
    let mut node = before_the_pod();
    node.call(CniCommand::Add, OLD, 0);
    node.call(CniCommand::Del, OLD, 1);
    node.run_for(5 * S);
    node.call(CniCommand::Del, OLD, 1);
    assert_eq!(node.of_kind(KIND).len(), 0, "there is no other sandbox yet");
    node.run_for(20 * S);
    start_pod(&mut node);
    let open = node.of_kind(KIND);
    assert_eq!(open.len(), 1, "{:?}", node.kinds());
    assert_eq!((open[0].severity, open[0].count), (Severity::Warning, 2));
    assert_eq!(
        open[0].summary,
        "CNI DEL of sandbox 94feeebc95fb of pod lijiaob/etcd1-0 by calico of kubelet.service, which is not its current \
         sandbox, failed; a retry may take the network of sandbox 291716a39be9 away"
    );
    assert!(open[0].first_seen < open[0].opened);
    node.call(CniCommand::Del, OLD, 1);
    assert_eq!(node.of_kind(KIND)[0].count, 3);

    // The harm, by the call itself.
    node.call_with(CniCommand::Del, OLD, 0, |node| node.delete_entry(ETCD, NeighborCause::Admin));
    let stale = &node.of_kind(KIND)[0];
    let lost = &node.of_kind("gateway-neighbor-lost")[0];
    assert_eq!(lost.caused_by, [stale.id.as_str()]);
    assert_eq!((stale.confidence, stale.count), (Confidence::Certain, 3), "the calls that failed were seen");
    let evidence: std::collections::BTreeSet<u64> = stale.evidence.iter().copied().collect();
    assert_eq!(evidence.len(), stale.evidence.len(), "{:?}", stale.evidence);
    assert!(
        stale.summary.contains("succeeded; 0.1 s after it began: static gateway ARP"),
        "{}",
        stale.summary
    );
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
    node.run_for(400 * S);
    assert_eq!(node.of_kind(KIND).len(), 1);
    node.run_for(400 * S);
    assert_eq!(node.of_kind(KIND).len(), 0, "the old sandbox is gone, and all is quiet");
    let closed = node.last_incident().incident.clone().unwrap();
    assert_eq!((closed.kind.as_str(), closed.close_reason), (KIND, Some(CloseReason::Resolved)));
}

#[test]
fn a_retry_that_does_no_harm_is_told_as_one_until_harm_follows() {
    let mut node = before_the_pod();
    node.call(CniCommand::Add, OLD, 0);
    node.call(CniCommand::Del, OLD, 1);
    start_pod(&mut node);
    let is_warned = |open: &Incident| open.advice[0].text.contains("do not delete the pod");
    assert!(is_warned(&node.of_kind(KIND)[0]));
    node.call(CniCommand::Del, OLD, 0);
    let open = node.of_kind(KIND).remove(0);
    assert!(
        open.summary.ends_with(
            "failed, then succeeded on a retry; no loss of the network of sandbox 291716a39be9 was seen"
        ),
        "{}",
        open.summary
    );
    assert_eq!((open.count, is_warned(&open)), (1, false));
    node.run_for(30 * S);
    node.delete_entry(ETCD, NeighborCause::Admin);
    let affected = |node: &TestNode| node.of_kind(KIND).remove(0).summary.contains("static gateway ARP");
    assert!(affected(&node));
    node.call(CniCommand::Del, OLD, 0);
    assert!(affected(&node), "it is not taken back");
}

#[test]
fn it_opens_at_once_when_harm_follows_a_call_that_succeeds_at_the_first_time() {
    for seconds in [1, 50, 70] {
        let mut node = TestNode::with_running_pod();
        node.call(CniCommand::Add, SANDBOX, 0);
        node.call(CniCommand::Del, OLD, 0);
        assert_eq!(node.kinds(), [""; 0], "normal clean-up");
        let finished = node.events.iter().rfind(|event| event.kind == Kind::CniFinished).unwrap();
        assert_eq!(finished.cni.as_ref().unwrap().stale, Some(true));
        node.run_for(seconds * S);
        node.delete_entry(ETCD, NeighborCause::Admin);
        node.run_for(S);
        let is_caused = seconds < 60;
        let open = node.of_kind(KIND);
        assert_eq!(open.len(), usize::from(is_caused), "{seconds}");
        assert!(open.iter().all(|open| open.confidence == Confidence::Likely), "by the time alone");
        let lost = &node.of_kind("gateway-neighbor-lost")[0];
        assert_eq!(lost.caused_by.len(), usize::from(is_caused), "{seconds}");
        if is_caused {
            let counted = |node: &mut TestNode| {
                node.call(CniCommand::Del, OLD, 1);
                let open = node.of_kind(KIND).remove(0);
                (open.count, open.counted)
            };
            let failed = |count| (count, "failed calls".to_owned());
            assert_eq!(
                [counted(&mut node), counted(&mut node)],
                [failed(1), failed(2)],
                "the first one succeeded"
            );
        }
    }
}

#[test]
fn a_failing_call_after_the_newer_sandbox_was_added_opens_it_too() {
    for (is_seen, confidence) in [(true, Confidence::Certain), (false, Confidence::Likely)] {
        let mut node = before_the_pod();
        if is_seen {
            node.call(CniCommand::Add, OLD, 0);
        }
        start_pod(&mut node);
        node.call(CniCommand::Del, OLD, 1);
        let [incident] = &node.of_kind(KIND)[..] else { panic!("not one") };
        assert_eq!(incident.confidence, confidence, "it may be the newest, of which nothing was seen");
    }
}

#[test]
fn a_graceful_deletion_and_clean_up_after_a_reboot_raise_nothing() {
    let mut node = before_the_pod();
    start_pod(&mut node);
    // While pause lives, and later again; the link goes with it.
    node.call_with(CniCommand::Del, SANDBOX, 0, |node| {
        node.delete_entry(ETCD, NeighborCause::LinkDeleted);
    });
    node.end_network(ETCD);
    node.observe(etcd(ContainerState::Exited));
    node.call(CniCommand::Del, SANDBOX, 0);
    node.run_for(60 * S);
    assert_eq!(node.kinds(), [""; 0]);
    // The sandboxes of before the boot.
    for id in [OLD, &"ab".repeat(32)] {
        node.call(CniCommand::Del, id, 0);
    }
    node.run_for(700 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn a_failed_deletion_that_succeeds_before_the_next_pod_comes_raises_nothing() {
    let mut node = before_the_pod();
    node.call(CniCommand::Add, OLD, 0);
    node.call(CniCommand::Del, OLD, 1);
    node.call(CniCommand::Del, OLD, 0);
    start_pod(&mut node);
    node.run_for(100 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn deletions_that_fail_for_long_are_told_before_there_is_a_victim_and_are_a_cause_then() {
    let mut node = before_the_pod();
    node.call(CniCommand::Add, OLD, 0);
    for _ in 0..3 {
        node.call(CniCommand::Del, OLD, 1);
        node.run_for(20 * S);
    }
    let failing = node.of_kind(cni_teardown_failing::KIND);
    assert_eq!((failing.len(), failing[0].count), (1, 3), "{:?}", node.kinds());
    assert_eq!(
        failing[0].summary,
        "CNI DEL of sandbox 94feeebc95fb of pod lijiaob/etcd1-0 by calico of kubelet.service fails repeatedly: plugin \
         calico exited with code 1; a later one could hit a newer pod of that name"
    );
    start_pod(&mut node);
    assert_eq!(node.of_kind(KIND)[0].caused_by, [failing[0].id.as_str()]);
    let mut again = TestNode::booted(node.resume_state());
    (again.tables, again.now) = (node.tables.clone(), node.now);
    again.start(vec![etcd_sandbox()]);
    assert_eq!(again.open().len(), 2, "both go on over a restart");
    let counts = |node: &TestNode| [KIND, cni_teardown_failing::KIND].map(|kind| node.of_kind(kind)[0].count);
    let before = counts(&again);
    again.call(CniCommand::Del, OLD, 1);
    assert_eq!(counts(&again), before.map(|count| count + 1), "they go on to count");
    node.call(CniCommand::Del, OLD, 0);
    assert_eq!(node.of_kind(cni_teardown_failing::KIND).len(), 0);
}

/// A `DEL` of a sandbox in the namespace of a process.
fn in_netns_of_16707(id: &str) -> Fact {
    let Fact::CniExec(call) = exec(40_000, CniCommand::Del, id) else { unreachable!() };
    Fact::CniExec(Box::new(CniExec { netns: Some("/proc/16707/ns/net".into()), ..*call }))
}

#[test]
fn a_deletion_in_the_namespace_of_another_is_told_at_once_and_for_ten_minutes() {
    let mut node = TestNode::with_running_pod();
    let in_netns = |node: &mut TestNode, id: &str, netns: NsInum, started_ns: BootNs| {
        node.observe(in_netns_of_16707(id));
        let Some(Request::CniNetns { id, .. }) = node.requests.last().cloned() else { panic!("no request") };
        node.observe(Fact::CniNetns(CniNetns { id, netns: Some(netns), started_ns: Some(started_ns) }));
        node.observe(exit(40_000, 0));
        node.run_for(S);
    };
    // Its own, and one of which it is only known by now whose it is.
    in_netns(&mut node, SANDBOX, ETCD, 1);
    let later = node.now + S;
    in_netns(&mut node, OLD, HOST, later);
    assert_eq!(node.kinds(), [""; 0]);
    in_netns(&mut node, OLD, HOST, 1);
    let open = node.of_kind("cni-netns-mismatch");
    assert_eq!((open.len(), open[0].severity), (1, Severity::Warning));
    assert_eq!(
        open[0].summary,
        "CNI DEL of sandbox 94feeebc95fb of pod lijiaob/etcd1-0 by calico ran in the network namespace of the host: \
         /proc/16707/ns/net led there"
    );
    // The call began, it was found, and it ended.
    let events = |node: &TestNode| {
        let of_call = node.events.iter().filter(|event| event.cni.is_some() && event.incident.is_none());
        of_call.map(|event| (event.kind, event.seq)).collect::<Vec<_>>()
    };
    let [.., started, finished] = events(&node)[..] else { panic!("no call") };
    assert_eq!((started.0, finished.0), (Kind::CniStarted, Kind::CniFinished));
    assert_eq!((&open[0].evidence[..], open[0].count), (&[started.1, finished.1][..], 1));
    in_netns(&mut node, &"ab".repeat(32), ETCD, 1);
    let open = node.of_kind("cni-netns-mismatch");
    assert!(open.iter().any(|open| open.summary.contains("of pod lijiaob/etcd1-0: ")), "{open:?}");
    node.run_for(700 * S);
    assert_eq!(node.of_kind("cni-netns-mismatch").len(), 0);
}

#[test]
fn what_a_deletion_did_in_the_namespace_of_another_is_named_and_critical_until_that_is_mended() {
    for is_found_first in [true, false] {
        let mut node = TestNode::with_running_pod();
        node.observe(task(40_000, "/opt/cni/bin/calico"));
        node.observe(in_netns_of_16707(OLD));
        let Some(Request::CniNetns { id, .. }) = node.requests.last().cloned() else { panic!("no request") };
        let found = Fact::CniNetns(CniNetns { id, netns: Some(ETCD), started_ns: Some(1) });
        if is_found_first {
            node.observe(found.clone());
        }
        let link = node.tables[&ETCD].links[0].clone();
        let actor = TaskRef { key: task_key(40_000), tid: 40_000, comm: "calico".into(), context: None };
        let op = LinkOp::Closed;
        let act = LinkAct { netns: ETCD, ifindex: link.ifindex, op, missing: 0, netns_cookie: None, actor };
        node.observe(Fact::LinkAct(Box::new(act)));
        let put = |node: &mut TestNode, link: LinkFacts| {
            node.tables.get_mut(&ETCD).unwrap().links[0] = link.clone();
            node.observe(Fact::Link(Box::new(link)));
        };
        put(&mut node, LinkFacts { flags: 0, ..link.clone() });
        if !is_found_first {
            node.observe(found);
        }
        node.observe(exit(40_000, 0));
        for pause in [S, 700 * S] {
            node.run_for(pause);
            let [open] = &node.of_kind("cni-netns-mismatch")[..] else { panic!("{:?}", node.kinds()) };
            assert_eq!(open.severity, Severity::Critical);
            let told = "/proc/16707/ns/net led there; it set eth0 down there";
            assert!(open.summary.ends_with(told), "{}", open.summary);
        }
        put(&mut node, link);
        assert_eq!(node.of_kind("cni-netns-mismatch").len(), 0);
        let closed = node.events.iter().rev().filter_map(|event| event.incident.as_ref());
        let reason = closed.filter(|one| one.kind == "cni-netns-mismatch").find_map(|one| one.close_reason);
        assert_eq!(reason, Some(CloseReason::Resolved));
    }
}

#[test]
fn calls_under_way_that_there_is_no_room_for_are_counted_and_told_together() {
    let mut node = before_the_pod();
    let room = u32::try_from(crate::node::cni::OPEN_MAX).unwrap();
    for tgid in 0..room {
        node.observe(exec(50_000 + tgid, CniCommand::Add, &format!("{tgid:064x}")));
    }
    node.run_for(10 * S);
    let lost = |node: &TestNode| -> Vec<(String, String)> {
        let lost = node.events.iter().filter_map(|event| event.lost.clone());
        lost.map(|lost| (lost.source, lost.count)).collect()
    };
    assert_eq!(lost(&node), []);
    for tgid in room..room + 3 {
        node.observe(exec(50_000 + tgid, CniCommand::Add, &format!("{tgid:064x}")));
    }
    assert_eq!(lost(&node), []);
    node.run_for(10 * S);
    assert_eq!(lost(&node), [("cni".to_owned(), "3".to_owned())]);
}

#[test]
fn it_opens_when_a_runtime_tells_of_the_newer_sandbox_after_it_was_added() {
    let mut node = before_the_pod();
    node.call(CniCommand::Add, OLD, 0);
    node.call(CniCommand::Del, OLD, 1);
    node.call(CniCommand::Add, SANDBOX, 0);
    assert_eq!(node.of_kind(KIND).len(), 0, "no runtime has it yet");
    node.observe(etcd(ContainerState::Running));
    assert_eq!(node.of_kind(KIND).len(), 1);
}

#[test]
fn a_pod_is_not_to_be_deleted_while_the_removal_of_an_older_sandbox_of_its_name_fails() {
    for (code, is_advised) in [(0, true), (1, false)] {
        let mut node = TestNode::with_running_pod();
        node.call(CniCommand::Del, OLD, code);
        node.run_for(100 * S);
        let Fact::Task(facts) = calico() else { panic!() };
        let by_hand =
            TaskFacts { cgroup: Some("/user.slice/x.scope".into()), ancestors: Vec::new(), ..*facts };
        node.observe(Fact::Task(Box::new(by_hand)));
        node.delete_entry(ETCD, NeighborCause::Admin);
        let lost = &node.of_kind("gateway-neighbor-lost")[0];
        let deletes = lost.advice.iter().any(|step| step.command.contains("delete pod"));
        assert_eq!(deletes, is_advised, "{:?}", lost.advice);
    }
}

#[test]
fn the_end_of_the_newer_sandbox_itself_is_ruled_out_as_a_harm_until_the_next_one_comes() {
    let mut node = before_the_pod();
    node.call(CniCommand::Add, OLD, 0);
    node.call(CniCommand::Del, OLD, 1);
    start_pod(&mut node);
    assert_eq!(node.of_kind(KIND)[0].ruled_out, [""; 0]);
    node.call_with(CniCommand::Del, SANDBOX, 0, |node| {
        node.delete_entry(ETCD, NeighborCause::LinkDeleted);
    });
    let ended = [
        "a DEL of sandbox 291716a39be9 itself, which is newer, succeeded: what went with that was not taken by another",
    ];
    assert_eq!(node.of_kind(KIND)[0].ruled_out, ended);
    node.observe(etcd(ContainerState::Exited));
    node.call(CniCommand::Del, OLD, 1);
    assert_eq!(node.of_kind(KIND)[0].ruled_out, ended);
    let next = "ab".repeat(32);
    node.observe(Fact::Container(Box::new(ContainerFacts {
        id: next.clone(),
        netns: None,
        ..etcd_sandbox()
    })));
    node.call(CniCommand::Add, &next, 0);
    assert_eq!(node.of_kind(KIND)[0].ruled_out, [""; 0], "{:?}", node.of_kind(KIND));
}

#[test]
fn what_finds_no_place_is_counted() {
    let mut node = TestNode::with_running_pod();
    node.call(CniCommand::Del, OLD, 1);
    let failed = node.events.iter().rfind(|event| event.kind == Kind::CniFinished).unwrap().clone();
    let cni = failed.cni.as_deref().unwrap();
    let mut diagnosis = StaleCniDel::default();
    let model = crate::test_support::model::Model::default();
    let incidents = super::super::Incidents::default();
    let context = Context {
        now: node.now,
        clock: Default::default(),
        node: &model.view(),
        incidents: &incidents,
        ready: None,
    };
    for number in 0..CAPACITY + 2 {
        let mut findings = Findings::default();
        let succeeded = Cni { exit_code: Some(0), stale: Some(false), ..cni.clone() };
        diagnosis.deleted(&context, &failed, &of(&succeeded, number), &mut findings);
        assert_eq!(findings.items, [], "nothing is wrong with it");
        diagnosis.deleted(&context, &failed, &of(cni, number), &mut findings);
        let is_discarded = findings.items.contains(&super::super::Finding::Discarded);
        assert_eq!(is_discarded, number >= CAPACITY, "{number}");
    }
}

fn of(cni: &Cni, number: usize) -> Cni {
    Cni { container_id: Some(format!("{number:064x}")), stale: Some(false), ..cni.clone() }
}

/// A node on which no runtime answers: the pod's sandbox is known by its `ADD` alone.
fn with_a_pod_known_by_its_call() -> TestNode {
    let mut node = TestNode::booted(crate::Resume::default());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    [HOST, ETCD].into_iter().for_each(|netns| node.observe_netns(netns));
    node.observe(Fact::Source(SourceStatus::down(SourceKind::Runtime, "docker", "no socket".to_owned())));
    node.observe(up("netlink"));
    node.run_for(S);
    let mut fact = exec(40_000, CniCommand::Add, SANDBOX);
    let Fact::CniExec(call) = &mut fact else { panic!("no call") };
    call.netns = Some("/proc/16707/ns/net".into());
    node.observe(fact);
    let Some(Request::CniNetns { id, .. }) = node.requests.last().cloned() else { panic!("no request") };
    node.observe(Fact::CniNetns(CniNetns { id, netns: Some(ETCD), started_ns: Some(1) }));
    node.observe(exit(40_000, 0));
    node.run_for(S);
    node
}

type MakeFact<'f> = &'f dyn Fn(&TestNode) -> Fact;

#[test]
fn a_link_or_a_route_that_goes_is_a_harm_as_a_gateway_is() {
    let gone = |node: &TestNode, netns: NsInum| {
        let ifindex = node.tables[&netns].links[0].ifindex;
        Fact::LinkGone { netns, ifindex, moved_to: None }
    };
    let route = |node: &TestNode| Fact::RouteGone(node.tables[&ETCD].routes[0].clone());
    let impacts: [(&str, MakeFact<'_>); 3] = [
        ("the link of the pod", &|node| gone(node, ETCD)),
        ("its end on the host", &|node| gone(node, HOST)),
        ("the default route", &route),
    ];
    for (impact, fact) in impacts {
        for is_known_by_runtime in [true, false] {
            let mut node = match is_known_by_runtime {
                true => TestNode::with_running_pod(),
                false => with_a_pod_known_by_its_call(),
            };
            if is_known_by_runtime {
                node.call(CniCommand::Add, SANDBOX, 0);
            }
            node.call(CniCommand::Del, OLD, 0);
            assert_eq!(node.of_kind(KIND).len(), 0, "normal clean-up");
            let fact = fact(&node);
            node.observe(fact);
            node.run_for(S);
            let open = node.of_kind(KIND);
            assert_eq!(open.len(), 1, "{impact}, {is_known_by_runtime}: {:?}", node.kinds());
            assert!(open[0].summary.contains("succeeded; 1.1 s after it began: "), "{}", open[0].summary);
        }
    }
}

#[test]
fn what_two_workers_of_a_kubelet_do_at_the_same_time_is_one_story() {
    let mut node = before_the_pod();
    node.call(CniCommand::Add, OLD, 0);
    // Of a deletion by force, the network of the next sandbox may be there before the first attempt to take that of the old.
    start_pod(&mut node);
    let begin = |node: &mut TestNode, workers: [u32; 2]| {
        for worker in workers {
            node.observe(task(worker, "/opt/cni/bin/calico"));
            node.observe(exec(worker, CniCommand::Del, OLD));
            node.run_for(30 * MS);
        }
    };
    for workers in [[31_001, 31_002], [31_003, 31_004]] {
        begin(&mut node, workers);
        for worker in workers {
            node.observe(exit(worker, 1));
            node.run_for(30 * MS);
        }
        node.run_for(15 * S);
    }
    let [stale] = &node.of_kind(KIND)[..] else { panic!("{:?}", node.kinds()) };
    assert_eq!((stale.count, stale.severity), (4, Severity::Warning), "{}", stale.summary);

    // The clean-up of containers, a minute later: one of two takes the network, and not its own.
    node.run_for(50 * S);
    let workers = [31_005, 31_006];
    begin(&mut node, workers);
    node.delete_entry(ETCD, NeighborCause::Admin);
    for (worker, code) in workers.into_iter().zip([0, 1]) {
        node.observe(exit(worker, code));
        node.run_for(30 * MS);
    }
    node.run_for(S);
    let (stale, lost) = (node.of_kind(KIND), node.of_kind("gateway-neighbor-lost"));
    assert_eq!((stale.len(), lost.len()), (1, 1), "{:?}", node.kinds());
    assert_eq!(lost[0].caused_by, [stale[0].id.as_str()]);
    assert!(stale[0].summary.contains("static gateway ARP"), "{}", stale[0].summary);
}
