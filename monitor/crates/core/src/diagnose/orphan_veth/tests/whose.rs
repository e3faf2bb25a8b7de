//! Whose a device is: by what was seen behind it, by its name, and by the result of the plugin; and who else is in its namespace.

use super::*;

/// A container of a pod that is not lijiaob/etcd1-0.
fn stranger(netns: NsInum) -> ContainerFacts {
    let of_it = sandbox(&"d".repeat(64), netns, "tools", "sniffer-0", CAM_UID);
    ContainerFacts { sandbox: false, ..of_it }
}

/// A process of that container in the namespace of the device.
fn inside() -> Holder {
    let group = format!("/kubepods/besteffort/pod{CAM_UID}/{}", "d".repeat(64));
    Holder { cgroup: Some(group), ..keeper(80, "sniff", Access::Netns) }
}

#[test]
fn a_namespace_that_a_container_of_another_pod_keeps_is_not_in_use_by_the_pod_of_the_device() {
    for ifname in [CALI, "veth1a2b3c4d"] {
        let mut node = started(node(ifname), vec![etcd_sandbox()]);
        node.peers.insert(END, found(vec![inside()]));
        node.observe(Fact::Container(Box::new(stranger(ETCD))));
        node.run_for(600 * S);
        assert_eq!(of_kind(&node), [""; 0], "its pod lives");
        exit(&mut node);
        node.run_for(70 * S);
        let incident = &open(&node)[0];
        assert_eq!(incident.confidence, Confidence::Certain);
        let expected = format!(
            "veth {ifname} of pod lijiaob/etcd1-0 is still on this node: its pod is gone, its other end is in network \
             namespace net:[4026532253], held by sniff (pid 80) of pod tools/sniffer-0 as its network namespace"
        );
        assert_eq!(incident.summary, expected);
        assert_eq!(incident.ruled_out, ["no container of its pod is in that network namespace"]);
        // It goes on over a restart, though the other pod alone is seen behind it then.
        let mut next = TestNode::booted(node.resume_state());
        next.tables.clone_from(&node.tables);
        next.peers.clone_from(&node.peers);
        let mut next = started(next, vec![stranger(ETCD)]);
        next.run_for(600 * S);
        assert_eq!(open(&next).len(), 1, "{ifname}");
        assert!(!of_kind(&next).iter().any(|kind| kind != "incident.updated"), "{:?}", of_kind(&next));
        node.observe(Fact::LinkGone { netns: HOST, ifindex: END, moved_to: None });
        let (kind, incident) = *node.incidents().last().unwrap();
        assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::Resolved)));
    }
}

#[test]
fn a_container_that_may_be_the_pods_own_keeps_the_namespace_in_use() {
    let claimed = |mut facts: ContainerFacts| {
        facts.pod.as_mut().unwrap().proof = PodProof::Claimed;
        facts
    };
    let another = ContainerFacts { id: "d".repeat(64), sandbox: false, ..etcd_sandbox() };
    for inside_too in [claimed(stranger(ETCD)), another] {
        let mut node = started(node(CALI), vec![etcd_sandbox(), inside_too]);
        node.peers.insert(END, found(vec![inside()]));
        exit(&mut node);
        node.run_for(600 * S);
        assert_eq!(of_kind(&node), [""; 0]);
    }
    // Of a device that is not called after any pod that is known, nobody knows whose it is.
    let mut node = started(node("cali0123456789a"), vec![stranger(ETCD)]);
    node.run_for(600 * S);
    assert_eq!(of_kind(&node), [""; 0]);
}

#[test]
fn a_device_that_leads_to_another_pod_than_its_name_tells_is_told_once_its_pod_is_known_to_be_elsewhere() {
    for (own, is_told) in [(Some(100), true), (None, false), (Some(ETCD), false)] {
        let own = ContainerFacts { netns: own, ..etcd_sandbox() };
        let mut misled = node(CALI);
        misled.peers.insert(END, found(vec![inside()]));
        let mut node = started(misled, vec![stranger(ETCD), own]);
        node.run_for(70 * S);
        let told: Vec<String> = open(&node).into_iter().map(|incident| incident.summary).collect();
        let expected = "veth cali9118ebbb10b of pod lijiaob/etcd1-0 is still on this node: its pod has another network \
                        namespace, its other end is in network namespace net:[4026532253], held by sniff (pid 80) of pod \
                        tools/sniffer-0 as its network namespace";
        assert_eq!(told, [expected].iter().filter(|_| is_told).copied().collect::<Vec<_>>());
    }
}

#[test]
fn a_pod_with_a_new_sandbox_is_not_said_to_be_gone() {
    let mut node = started(node("veth1a2b3c4d"), vec![etcd_sandbox()]);
    node.run_for(5 * S);
    node.peers.insert(END, found(vec![keeper(77, "tcpdump", Access::Fd)]));
    let new = ContainerFacts { id: "e".repeat(64), netns: Some(100), ..etcd_sandbox() };
    node.observe(Fact::Container(Box::new(new)));
    exit(&mut node);
    node.run_for(70 * S);
    let summary = &open(&node)[0].summary;
    assert!(
        summary.contains("of pod lijiaob/etcd1-0 is still on this node: its pod has another"),
        "{summary}"
    );
}

/// What libcni has written down of the `ADD` of a sandbox.
fn result(ifname: &str, container: &str) -> CniDevice {
    let (namespace, pod) = ("lijiaob".to_owned(), "etcd1-0".to_owned());
    CniDevice { ifname: ifname.into(), container: container.into(), namespace, pod }
}

fn write_down(node: &mut TestNode, device: CniDevice) {
    let files = IpamFiles { devices_added: vec![device], complete: true, ..IpamFiles::default() };
    node.observe(Fact::Ipam(files));
}

/// A name of the bridge plugin tells nothing, and no pod was seen behind it.
const BRIDGED: &str = "veth1a2b3c4d";

#[test]
fn the_result_of_a_plugin_tells_whose_a_device_is_that_no_pod_was_seen_behind() {
    for written in [true, false] {
        let mut node = started(node(BRIDGED), Vec::new());
        node.peers.insert(END, found(vec![keeper(77, "tcpdump", Access::Fd)]));
        if written {
            write_down(&mut node, result(BRIDGED, SANDBOX));
        }
        node.run_for(70 * S);
        assert_eq!(open(&node).len(), usize::from(written));
        if !written {
            continue;
        }
        let summary = &open(&node)[0].summary;
        assert!(
            summary.starts_with("veth veth1a2b3c4d is still on this node: no pod that runs here has it"),
            "{summary}"
        );
        // With the result goes what told it, and what was told is not over by that.
        node.observe(Fact::Ipam(IpamFiles { complete: true, ..IpamFiles::default() }));
        node.run_for(600 * S);
        assert_eq!(of_kind(&node), ["incident.opened"]);
        node.observe(Fact::LinkGone { netns: HOST, ifindex: END, moved_to: None });
        assert_eq!(open(&node).len(), 0);
    }
}

#[test]
fn a_device_is_in_use_while_the_sandbox_that_it_was_made_for_lives_wherever_that_is() {
    let unplaced = ContainerFacts { netns: None, tgid: None, ..etcd_sandbox() };
    let mut node = node(BRIDGED);
    node.peers.insert(END, found(Vec::new()));
    let mut node = started(node, vec![unplaced]);
    write_down(&mut node, result(BRIDGED, SANDBOX));
    node.run_for(600 * S);
    assert_eq!(of_kind(&node), [""; 0]);
    exit(&mut node);
    node.run_for(70 * S);
    let summary = &open(&node)[0].summary;
    assert!(summary.contains(" of pod lijiaob/etcd1-0 is still on this node: its pod is gone"), "{summary}");
}

#[test]
fn a_plugin_has_made_the_device_of_a_sandbox_of_which_no_runtime_has_told_yet() {
    let mut node = started(node(BRIDGED), vec![stranger(100)]);
    node.peers.insert(END, found(Vec::new()));
    let id = "f".repeat(64);
    node.call(CniCommand::Add, &id, 0);
    write_down(&mut node, result(BRIDGED, &id));
    node.run_for(300 * S);
    assert_eq!(of_kind(&node), [""; 0]);
}

#[test]
fn by_the_result_too_a_container_of_another_pod_does_not_use_the_device() {
    let mut node = node(BRIDGED);
    node.peers.insert(END, found(vec![inside()]));
    let mut node = started(node, Vec::new());
    write_down(&mut node, result(BRIDGED, SANDBOX));
    node.observe(Fact::Container(Box::new(stranger(ETCD))));
    node.run_for(70 * S);
    let summary = &open(&node)[0].summary;
    assert!(
        summary.ends_with("held by sniff (pid 80) of pod tools/sniffer-0 as its network namespace"),
        "{summary}"
    );
    // The pod that is written down may have another sandbox by now; then it is its own again.
    let mut own = stranger(ETCD);
    own.pod = etcd_sandbox().pod;
    node.observe(Fact::Container(Box::new(own)));
    node.run_for(30 * S);
    assert_eq!(open(&node).len(), 0);
}
