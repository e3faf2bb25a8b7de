//! Saving and restoring the state.

use super::*;

const PODS: u32 = 250;
const GIB: u64 = 1 << 30;

fn veth(netns: NsInum, ifindex: u32, ifname: String, peer_netns: NsInum, peer: u32) -> LinkFacts {
    LinkFacts {
        netns,
        ifindex,
        ifname,
        kind: Some("veth".into()),
        flags: iff::UP | iff::LOWER_UP,
        mac: Some(LlAddr(vec![0xce, 0xa1, 0x6b, 2, 0x52, 0x42])),
        master: None,
        peer: Some(PeerLink { ifindex: peer, netns: Some(peer_netns) }),
        lower: None,
    }
}

fn inum(pod: u32) -> NsInum {
    4_026_532_253 + pod
}

fn id(pod: u32, number: u64) -> String {
    format!("{:016x}", (u64::from(pod) * 2 + number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(4)
}

fn of_pod(pod: u32, sandbox: bool) -> ContainerFacts {
    let Fact::Container(facts) = container(ContainerState::Running) else { unreachable!() };
    let uid = format!("3f0f6a0e-2f6a-4d4e-9d1f-{pod:012x}");
    let name = format!("service-{pod}-78b6fc6bc8-cjsw5");
    ContainerFacts {
        id: id(pod, u64::from(sandbox)),
        name: format!("k8s_{}_{name}_team-{}_{uid}_0", if sandbox { "POD" } else { "app" }, pod % 10),
        image: "registry.example/team/service@sha256:".to_owned() + &id(pod, 7),
        tgid: Some(20_000 + pod),
        started_ns: None,
        netns: Some(inum(pod)),
        pod: Some(PodIdentity {
            namespace: format!("team-{}", pod % 10),
            name,
            uid,
            sandbox_id: Some(id(pod, 1)),
            container_name: Some(if sandbox { "POD" } else { "app" }.into()),
            proof: PodProof::Cgroup,
            labels: None,
        }),
        sandbox,
        joined_netns: !sandbox,
        ..*facts
    }
}

fn of_node(number: u32) -> TaskFacts {
    let ancestor = |tgid, comm: &str| Ancestor {
        tgid,
        start_ns: 31_000_000_000 + u64::from(tgid),
        comm: comm.into(),
        exe: Some(format!("/usr/local/bin/{comm}")),
        started: Some(true),
        ..Ancestor::default()
    };
    let pod = number % PODS;
    TaskFacts {
        key: TaskKey { tgid: 100_000 + number, start_ns: 9_000 * GIB + u64::from(number), exec_id: 2 },
        place: TaskPlace::default(),
        uid: 0,
        exe: Some("/usr/bin/umount".into()),
        cmdline: Some(format!(
            "umount /var/lib/kubelet/pods/3f0f6a0e-2f6a-4d4e-9d1f-{pod:012x}/volumes/kubernetes.io~glusterfs/pv-{pod}"
        )),
        netns: HOST,
        mntns: 4_026_531_840,
        cgroup: Some("/system.slice/kubelet.service".into()),
        ancestors: vec![
            ancestor(50_000 + number / 16, "bash"),
            ancestor(1893, "kubelet"),
            ancestor(1, "systemd"),
        ],
    }
}

/// A node with 250 pods that has been up for a while.
fn full() -> Core {
    let mut core = core();
    let mut now = 9_000 * GIB;
    let mut observe = |core: &mut Core, fact| {
        now += MS;
        core.observe(at(now, fact));
        core.take_output().for_each(drop);
    };
    let Fact::Netns(bare) = snapshot(HOST) else { unreachable!() };
    let ends = (0..PODS).map(|pod| veth(HOST, 100 + pod, format!("cali{pod:011x}"), inum(pod), 4));
    observe(&mut core, Fact::Netns(Box::new(NetnsSnapshot { links: ends.collect(), ..*bare.clone() })));
    for pod in 0..PODS {
        let netns = inum(pod);
        let Fact::Netns(bare) = snapshot(netns) else { unreachable!() };
        let entry = NeighborEntry {
            ifindex: 2,
            address: "169.254.1.1".parse().unwrap(),
            state: NudState::PERMANENT,
            lladdr: Some(LlAddr(vec![0xee; 6])),
        };
        let address = AddressFacts {
            netns,
            ifindex: 4,
            address: std::net::Ipv4Addr::from(0x0a2a_0000 + pod).into(),
            prefix_len: 32,
        };
        let owner = NetnsOwner {
            tgid: 20_000 + pod,
            start_ns: 5_000_000_000,
            comm: "pause".into(),
            cgroup: Some(format!("/kubepods/burstable/pod3f0f6a0e-2f6a-4d4e-9d1f-{pod:012x}/{}", id(pod, 1))),
        };
        let snapshot = NetnsSnapshot {
            owner: Some(owner),
            links: vec![
                LinkFacts { kind: None, peer: None, ..veth(netns, 1, "lo".into(), 0, 0) },
                veth(netns, 4, "eth0".into(), HOST, 100 + pod),
            ],
            addresses: vec![address],
            neighbors: vec![entry],
            ..*bare
        };
        observe(&mut core, Fact::Netns(Box::new(snapshot)));
    }
    let containers = (0..PODS).flat_map(|pod| [of_pod(pod, true), of_pod(pod, false)]).collect();
    observe(
        &mut core,
        Fact::RuntimeSnapshot { runtime: "docker".into(), source: "docker".into(), read: None, containers },
    );
    for source in ["netlink", "docker"] {
        observe(&mut core, status(source, true));
    }
    for number in 0..1_279 {
        observe(&mut core, Fact::Task(Box::new(of_node(number))));
    }
    core
}

#[test]
fn a_full_node_is_saved_in_less_than_a_mebibyte() {
    let core = full();
    let written = serde_json::to_value(core.save().unwrap()).unwrap();
    let parts = written.as_object().unwrap().iter();
    let sizes: BTreeMap<&str, usize> =
        parts.map(|(name, part)| (name.as_str(), part.to_string().len())).collect();
    assert!(sizes.values().sum::<usize>() < 910_000, "{sizes:?}");
}

#[test]
fn a_full_node_with_pending_events_is_saved_and_restored() {
    let mut core = full();
    let now = 9_001 * GIB;
    let mut unknown = change(NeighborOp::Deleted, NeighborCause::Admin);
    unknown.key.netns = 99;
    let attempt = UmountAttempt {
        syscall: MountSyscall::Umount2,
        actor: TaskRef { key: of_node(1_000).key, tid: 1, comm: "umount".into(), context: None },
        mntns: 4_026_531_840,
        path: "/mnt/x".into(),
        origin: None,
        flags: 0,
        errno: Some(16),
        second: None,
    };
    let facts = [
        Fact::Lost(Loss { source: "bpf".into(), reason: "ring-full".into(), count: Some(1) }),
        Fact::Tick,
        Fact::Neighbor(Box::new(unknown)),
        Fact::Umount(Box::new(attempt)),
        Fact::LinkGone { netns: HOST, ifindex: 100, moved_to: None },
        Fact::ContainerGone { id: id(3, 0), source: "docker".into() },
    ];
    for fact in facts {
        core.observe(at(now, fact));
    }
    core.take_output().for_each(drop);
    let written = serde_json::to_string(&core.save().unwrap()).unwrap();
    let restored = Core::restore(core.settings().clone(), serde_json::from_str(&written).unwrap()).unwrap();
    assert_same(&restored, &core, "a full node");
    assert!(core.deadline().is_some_and(|deadline| deadline < now + 1_000 * MS), "events are pending");
}

#[test]
fn a_saved_state_that_a_diagnosis_cannot_read_is_an_error_that_names_it() {
    let core = core();
    let written = serde_json::to_string(&core.save().unwrap()).unwrap();
    let other = written.replace("\"faults\":", "\"unknown\":");
    assert_ne!(written, other);
    let refused = Core::restore(core.settings().clone(), serde_json::from_str(&other).unwrap()).unwrap_err();
    assert_eq!(refused.to_string(), "cannot read the saved state of diagnosis gateway-neighbor-lost");
}

#[test]
fn thresholds_keep_their_values_when_settings_change() {
    let mut core = core();
    let mut settings = core.settings().clone();
    settings.cmdline = Cmdline::Off;
    let threshold = diagnose::thresholds().next().unwrap();
    settings.incidents.set(threshold, threshold.default + 1);
    core.observe(at(1, Fact::Settings(Box::new(settings))));
    assert_eq!((core.settings().cmdline, &core.settings().incidents), (Cmdline::Off, &Thresholds::default()));
}
