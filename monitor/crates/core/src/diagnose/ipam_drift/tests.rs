use kevtmon_event::CloseReason;
use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

const WEB: NsInum = 4_026_532_300;
const WEB_SANDBOX: &str = "5b3c1f0e5b3c1f0e5b3c1f0e5b3c1f0e5b3c1f0e5b3c1f0e5b3c1f0e5b3c1f0e";
/// An earlier sandbox of lijiaob/etcd1-0.
const OLD: &str = "94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94fe";
const IP: &str = "10.88.0.5";

fn web() -> ContainerFacts {
    sandbox(WEB_SANDBOX, WEB, "web", "web-0", WEB_UID)
}

fn address(netns: NsInum, address: &str) -> AddressFacts {
    AddressFacts { netns, ifindex: 2, address: address.parse().unwrap(), prefix_len: 16 }
}

fn record(address: &str, container: Option<&str>) -> IpamRecord {
    IpamRecord {
        address: address.parse().unwrap(),
        network: "cbr0".into(),
        container: container.map(str::to_owned),
        file: IpamFile::Reservation,
    }
}

fn reserved(address: &str) -> IpamRecord {
    record(address, Some(SANDBOX))
}

fn given(address: &str) -> IpamRecord {
    IpamRecord { file: IpamFile::Result, ..reserved(address) }
}

/// lijiaob/etcd1-0 lives with these addresses, and web/web-0 with another one; nothing is written down.
fn with_addresses(addresses: &[&str]) -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    node.add_pod(WEB, "calib7c1f2d3e4a", NudState::PERMANENT);
    for own in addresses.iter().chain(&["127.0.0.1", "fe80::1"]) {
        node.tables.get_mut(&ETCD).unwrap().addresses.push(address(ETCD, own));
    }
    node.tables.get_mut(&WEB).unwrap().addresses.push(address(WEB, "10.88.0.7"));
    node.start(vec![etcd_sandbox(), web()]);
    node.events.clear();
    node
}

impl TestNode {
    /// All that is written down, at the first look.
    fn write_down(&mut self, records: &[IpamRecord]) {
        self.observe(Fact::Ipam(IpamFiles {
            added: records.to_vec(),
            complete: true,
            ..IpamFiles::default()
        }));
    }

    /// What has changed within the last 200 ms.
    fn change_files(&mut self, added: &[IpamRecord], removed: &[IpamRecord]) {
        let since = Some(self.now.saturating_sub(200 * MS));
        let (added, removed) = (added.to_vec(), removed.to_vec());
        self.observe(Fact::Ipam(IpamFiles { since, added, removed, complete: true, ..IpamFiles::default() }));
    }

    /// The address of the pod is reserved, and half a minute later no more.
    fn freed(addresses: &[&str]) -> Self {
        let mut node = with_addresses(addresses);
        let all: Vec<IpamRecord> = addresses.iter().map(|address| reserved(address)).collect();
        node.write_down(&all);
        node.run_for(30 * S);
        node.change_files(&[], &all);
        node
    }
}

fn kinds(node: &TestNode) -> Vec<&'static str> {
    let of_kind = node.incidents().into_iter().filter(|(_, incident)| incident.kind == KIND);
    of_kind.map(|(kind, _)| kind.name()).collect()
}

fn closed(node: &TestNode) -> Option<CloseReason> {
    node.incidents().last().and_then(|(_, incident)| incident.close_reason)
}

#[test]
fn an_address_that_was_freed_though_its_pod_lives_is_told_until_it_is_reserved_again() {
    let mut node = TestNode::freed(&[IP]);
    node.run_for(28 * S);
    assert_eq!(kinds(&node), [""; 0], "the pod may be on its way out");
    node.run_for(4 * S);
    let incident = &node.open()[0];
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Certain));
    assert_eq!(
        incident.summary,
        "address 10.88.0.5 is no longer reserved for pod lijiaob/etcd1-0, which still has it (eth0): network cbr0 of \
         host-local may give it to another pod"
    );
    assert!(!incident.found_at_start);
    assert_eq!(incident.advice[0].command, "kevtmon why lijiaob/etcd1-0");
    let reservation = node.last_incident().reservation.clone().unwrap();
    assert_eq!((reservation.container_id.as_str(), reservation.reserved_for), (SANDBOX, None));
    node.change_files(&[reserved(IP)], &[]);
    node.run_for(2 * S);
    assert_eq!((kinds(&node).len(), closed(&node)), (2, Some(CloseReason::Resolved)));
    let (_, incident) = *node.incidents().last().unwrap();
    assert_eq!(
        incident.summary,
        "address 10.88.0.5 is no longer reserved for pod lijiaob/etcd1-0, which still has it (eth0): network cbr0 of \
         host-local may give it to another pod"
    );
}

#[test]
fn an_address_that_is_reserved_for_another_sandbox_is_told_sooner_with_its_pod() {
    let mut node = with_addresses(&[IP]);
    node.write_down(&[reserved(IP)]);
    node.run_for(30 * S);
    node.change_files(&[record(IP, Some(WEB_SANDBOX))], &[reserved(IP)]);
    node.run_for(4 * S);
    assert_eq!(kinds(&node), [""; 0]);
    node.run_for(3 * S);
    let incident = &node.open()[0];
    assert_eq!(
        incident.summary,
        "network cbr0 of host-local has reserved address 10.88.0.5 for sandbox 5b3c1f0e5b3c of pod web/web-0, though pod \
         lijiaob/etcd1-0 still has it (eth0)"
    );
    // The other pod gets it.
    node.observe(Fact::Address(address(WEB, IP)));
    node.run_for(10 * S);
    let open = node.open();
    let duplicate =
        open.iter().find(|incident| incident.kind == crate::diagnose::duplicate_pod_ip::KIND).unwrap();
    let drift = open.iter().find(|incident| incident.kind == KIND).unwrap();
    assert_eq!(duplicate.caused_by, [drift.id.as_str()]);
    node.observe(Fact::AddressGone(address(ETCD, IP)));
    node.run_for(2 * S);
    assert!(node.open().is_empty());
}

#[test]
fn it_is_first_free_and_then_given_away() {
    let mut node = TestNode::freed(&[IP]);
    node.run_for(40 * S);
    assert_eq!(kinds(&node), ["incident.opened"]);
    node.change_files(&[record(IP, Some("c0ffee"))], &[]);
    node.run_for(2 * S);
    assert_eq!(kinds(&node), ["incident.opened", "incident.updated"]);
    assert!(node.open()[0].summary.contains("for sandbox c0ffee, though"), "{}", node.open()[0].summary);
    let reservation = node.last_incident().reservation.clone().unwrap();
    assert_eq!((reservation.reserved_for.as_deref(), reservation.reserved_for_pod), (Some("c0ffee"), None));
}

#[test]
fn it_is_found_after_the_fact_by_the_result_of_the_call_and_over_with_the_pod() {
    let mut node = with_addresses(&[IP]);
    node.write_down(&[given(IP)]);
    node.run_for(40 * S);
    let incident = &node.open()[0];
    assert_eq!((incident.found_at_start, incident.confidence), (true, Confidence::Likely));
    let mut next = TestNode::booted(node.resume_state());
    next.tables.clone_from(&node.tables);
    next.start(vec![etcd_sandbox(), web()]);
    next.run_for(40 * S);
    assert_eq!(next.open().len(), 1, "what was not read yet is not over");
    next.write_down(&[given(IP)]);
    next.run_for(40 * S);
    assert_eq!((kinds(&next), next.open().len()), (Vec::new(), 1), "it goes on without another word");
    next.observe(etcd(ContainerState::Exited));
    next.run_for(2 * S);
    assert_eq!(closed(&next), Some(CloseReason::SubjectGone));
}

#[test]
fn both_addresses_of_a_pod_count_each_for_itself() {
    let mut node = with_addresses(&[IP, "fd00::5"]);
    let both = [reserved(IP), reserved("fd00::5")];
    node.write_down(&both);
    node.run_for(30 * S);
    assert_eq!(kinds(&node), [""; 0]);
    node.change_files(&[], &both[1..]);
    node.run_for(40 * S);
    assert_eq!(node.open().len(), 1);
    assert!(node.open()[0].summary.starts_with("address fd00::5 is no longer reserved"));
}

#[test]
fn a_call_that_ran_while_the_reservation_went_is_named() {
    // Of a sandbox before, with the name of the pod; then of its own.
    for (id, own) in [(OLD, "another sandbox of that name"), (SANDBOX, "its own sandbox")] {
        let mut node = with_addresses(&[IP]);
        node.write_down(&[reserved(IP)]);
        node.run_for(30 * S);
        node.call_with(CniCommand::Del, id, 0, |node| node.change_files(&[], &[reserved(IP)]));
        node.run_for(35 * S);
        assert_eq!(kinds(&node).is_empty(), id == SANDBOX, "its own network goes first");
        node.run_for(30 * S);
        let open = node.open();
        let incident = open.iter().find(|incident| incident.kind == KIND).unwrap();
        assert_eq!(incident.confidence, Confidence::Likely);
        let expected = format!("; it was freed while the CNI DEL of {own} {} ran, by calico", short_id(id));
        assert!(incident.summary.contains(&expected), "{}", incident.summary);
        let event = node.last_incident();
        let actor = event.actor.as_deref().unwrap();
        assert_eq!((actor.source, actor.confidence), (ActorSource::CniWindow, Confidence::Likely));
        assert_eq!(event.cni.as_ref().unwrap().container_id.as_deref(), Some(id));
    }
}

#[test]
fn a_call_of_another_pod_or_of_another_time_is_not_named() {
    let mut node = with_addresses(&[IP]);
    node.write_down(&[reserved(IP)]);
    node.call(CniCommand::Del, OLD, 0);
    node.run_for(30 * S);
    node.change_files(&[], &[reserved(IP)]);
    node.run_for(S);
    node.call(CniCommand::Del, OLD, 0);
    node.run_for(40 * S);
    assert!(node.last_incident().actor.is_none());
    assert_eq!(node.open()[0].confidence, Confidence::Certain);
}

#[test]
fn the_stale_call_behind_it_is_its_cause() {
    let mut node = with_addresses(&[IP]);
    node.write_down(&[reserved(IP)]);
    // It fails first, and so opens before there is harm.
    node.call(CniCommand::Del, OLD, 1);
    node.call(CniCommand::Add, SANDBOX, 0);
    node.run_for(20 * S);
    node.call_with(CniCommand::Del, OLD, 0, |node| node.change_files(&[], &[reserved(IP)]));
    node.run_for(40 * S);
    let open = node.open();
    let of = |kind| open.iter().find(|incident| incident.kind == kind).unwrap();
    assert_eq!(of(KIND).caused_by, [of("stale-cni-del").id.as_str()]);
}

#[test]
fn what_is_reserved_for_the_pod_in_whatever_way_is_no_drift() {
    let other_network = || IpamRecord { network: "storage".into(), ..reserved(IP) };
    let of_web = || IpamRecord { network: "storage".into(), ..record(IP, Some(WEB_SANDBOX)) };
    for (files, why) in [
        (vec![reserved(IP), given(IP)], "it is reserved"),
        (vec![other_network(), given(IP)], "it is reserved in another network"),
        (vec![record(IP, None), given(IP)], "whose it is could not be read"),
        (vec![of_web()], "nobody says that this network gave it to the pod"),
        (vec![record("10.88.0.6", Some(WEB_SANDBOX))], "another plugin manages it"),
    ] {
        let mut node = with_addresses(&[IP]);
        node.write_down(&files);
        node.run_for(100 * S);
        assert_eq!(kinds(&node), [""; 0], "{why}");
    }
}

#[test]
fn a_pod_that_goes_or_is_made_anew_is_no_drift() {
    type End<'a> = (&'a str, &'a dyn Fn(&mut TestNode));
    let ends: [End<'_>; 3] = [
        ("its container ends", &|node| node.observe(etcd(ContainerState::Exited))),
        ("its interface goes", &|node| node.observe(Fact::AddressGone(address(ETCD, IP)))),
        ("a newer sandbox of it has the address", &|node| {
            let pod = etcd_sandbox().pod;
            let newer = sandbox(OLD, WEB, "lijiaob", "etcd1-0", &pod.unwrap().uid);
            node.observe(Fact::Container(Box::new(newer)));
            node.change_files(&[record(IP, Some(OLD))], &[]);
        }),
    ];
    for (why, end) in ends {
        let mut node = TestNode::freed(&[IP]);
        node.run_for(2 * S);
        end(&mut node);
        node.run_for(100 * S);
        assert_eq!(kinds(&node), [""; 0], "{why}");
    }
}

#[test]
fn a_container_that_only_claims_to_be_of_a_pod_is_none() {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    node.tables.get_mut(&ETCD).unwrap().addresses.push(address(ETCD, IP));
    let claim = etcd_sandbox().pod.map(|pod| PodIdentity { proof: PodProof::Claimed, ..pod });
    node.start(vec![ContainerFacts { pod: claim, ..etcd_sandbox() }]);
    node.write_down(&[given(IP)]);
    node.run_for(100 * S);
    assert_eq!(kinds(&node), [""; 0]);
}

#[test]
fn the_network_of_the_host_has_addresses_of_its_own() {
    let mut node = TestNode::booted(Resume::default());
    node.tables.get_mut(&HOST).unwrap().addresses.push(address(HOST, IP));
    let on_host = ContainerFacts { netns: Some(HOST), ..etcd_sandbox() };
    node.start(vec![on_host]);
    node.write_down(&[given(IP)]);
    node.run_for(100 * S);
    assert_eq!(kinds(&node), [""; 0]);
}

#[test]
fn what_could_not_be_read_neither_opens_nor_closes() {
    let mut node = with_addresses(&[IP]);
    node.write_down(&[reserved(IP)]);
    let unread = |node: &mut TestNode, removed: &[IpamRecord]| {
        let since = Some(node.now);
        node.observe(Fact::Ipam(IpamFiles { since, removed: removed.to_vec(), ..IpamFiles::default() }));
    };
    unread(&mut node, &[reserved(IP)]);
    node.run_for(100 * S);
    assert_eq!(kinds(&node), [""; 0]);
    node.change_files(&[], &[]);
    node.run_for(2 * S);
    assert_eq!(kinds(&node), ["incident.opened"]);
    node.observe(Fact::IpamUnread);
    node.run_for(100 * S);
    assert_eq!(node.open().len(), 1);
    node.write_down(&[reserved(IP)]);
    node.run_for(2 * S);
    assert_eq!(closed(&node), Some(CloseReason::Resolved));
}

#[test]
fn a_restart_that_forgets_what_was_freed_resolves_nothing() {
    let mut node = TestNode::freed(&[IP]);
    node.run_for(40 * S);
    let mut next = TestNode::booted(node.resume_state());
    next.tables.clone_from(&node.tables);
    next.start(vec![etcd_sandbox(), web()]);
    next.write_down(&[]);
    next.run_for(40 * S);
    assert_eq!((kinds(&next), next.open().len()), (Vec::new(), 1));
    next.change_files(&[record(IP, Some("c0ffee"))], &[]);
    next.run_for(2 * S);
    assert!(next.open()[0].summary.contains("for sandbox c0ffee, though"), "{}", next.open()[0].summary);
    next.change_files(&[reserved(IP)], &[record(IP, Some("c0ffee"))]);
    next.run_for(2 * S);
    assert_eq!(closed(&next), Some(CloseReason::Resolved));
}

#[test]
fn what_many_other_pods_have_freed_since_resolves_nothing() {
    let mut node = TestNode::freed(&[IP]);
    node.run_for(40 * S);
    let others: Vec<IpamRecord> = (0..1_050_u32)
        .map(|number| record(&std::net::Ipv4Addr::from(0x0a59_0000 + number).to_string(), Some("c0ffee")))
        .collect();
    node.change_files(&others, &[]);
    node.run_for(S);
    node.change_files(&[], &others);
    node.run_for(40 * S);
    assert_eq!((kinds(&node), node.open().len()), (vec!["incident.opened"], 1));
    node.observe(Fact::AddressGone(address(ETCD, IP)));
    node.run_for(2 * S);
    assert_eq!(closed(&node), Some(CloseReason::Resolved));
}

#[test]
fn a_reservation_of_which_nobody_knows_whose_it_is_resolves_nothing() {
    let mut node = TestNode::freed(&[IP]);
    node.run_for(40 * S);
    node.change_files(&[record(IP, None)], &[]);
    node.run_for(40 * S);
    assert_eq!(node.open().len(), 1);
    node.observe(etcd(ContainerState::Exited));
    node.run_for(2 * S);
    assert_eq!(closed(&node), Some(CloseReason::SubjectGone));
}

#[test]
fn another_sandbox_is_not_named_where_it_went_at_some_time_in_a_long_one() {
    for (length, expected) in [(2 * S, true), (4 * S, false)] {
        let mut node = with_addresses(&[IP]);
        node.write_down(&[reserved(IP)]);
        node.run_for(30 * S);
        node.call_with(CniCommand::Del, OLD, 0, |node| {
            let files = IpamFiles { removed: vec![reserved(IP)], complete: true, ..IpamFiles::default() };
            node.observe(Fact::Ipam(IpamFiles { since: Some(node.now - length), ..files }));
        });
        node.run_for(70 * S);
        let event = node.events.iter().rfind(|event| event.reservation.is_some()).unwrap();
        assert_eq!(event.actor.is_some(), expected);
        assert_eq!(event.incident.as_ref().unwrap().summary.contains("it was freed while"), expected);
    }
}
