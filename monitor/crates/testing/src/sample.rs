//! Events for tests, one of each shape.

use std::collections::BTreeMap;

use kevtmon_event::{
    Actor, ActorSource, Address, AncestorRef, Cni, Component, Confidence, Container, Daemon, Event, Join,
    Kind, Link, LinkPeer, Lost, Mount, MountHolder, Neighbor, Pod, Recreation, RecreationReason, Route,
    Severity, Shared, SpecHash, Target, Throttled, Unreadable, Volume,
};
use kevtmon_observation::{Access, LoopDevice, MountIdentity, Verdict};

pub fn all() -> Vec<Event> {
    vec![
        deletion(),
        busy(),
        link(Severity::Info),
        route(),
        address(),
        lost(),
        throttled(),
        daemon(Severity::Notice),
        container_exited(),
        container_recreated(),
        cni(),
        component_exited(),
    ]
}

fn plain(kind: Kind, severity: Severity, message: &str) -> Event {
    Event {
        time: "2026-01-02T03:04:05.678901234Z".into(),
        at: 42_000_000_000,
        seq: 42,
        boot_id: "5a3c6b5e-0d0f-4d5c-9c58-0f2b6a1f7c11".into(),
        node: "slave-197".into(),
        ..Event::new(kind, severity, message.into())
    }
}

fn pod() -> Pod {
    Pod {
        namespace: Some("lijiaob".into()),
        name: Some("etcd1-0".into()),
        uid: "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f".into(),
        claimed: false,
        sandbox_id: None,
        ip: vec!["10.42.0.7".parse().unwrap()],
        labels: Some(Box::new([("app".to_owned(), "etcd".to_owned())].into())),
    }
}

fn container() -> Container {
    Container {
        id: "593d8a89ee37".repeat(6)[..64].into(),
        name: Some("etcd".into()),
        runtime: Some("docker".into()),
        image: Some("quay.io/coreos/etcd:v3.2".into()),
        pid: Some(4100),
        state: Some("running".into()),
        exit_code: None,
        oom_killed: None,
    }
}

fn actor() -> Actor {
    Actor {
        source: ActorSource::Kernel,
        confidence: Confidence::Certain,
        pid: 28997,
        tid: 28997,
        uid: Some(0),
        euid: None,
        comm: "calico".into(),
        exe: Some("/opt/cni/bin/calico".into()),
        cmdline: Some("/opt/cni/bin/calico --token=***".into()),
        start_time_ns: "41000000000".into(),
        cgroup: Some("/system.slice/kubelet.service".into()),
        unit: Some("kubelet.service".into()),
        netns: Some(4_026_531_833),
        mntns: Some(4_026_531_840),
        userns: None,
        ancestors: vec![
            AncestorRef {
                pid: 1893,
                comm: "kubelet".into(),
                exe: Some("/usr/bin/kubelet".into()),
                started: Some(true),
                ..AncestorRef::default()
            },
            AncestorRef { pid: 1, comm: "systemd".into(), ..AncestorRef::default() },
        ],
        container: None,
        pod: None,
        join: Join::Host,
    }
}

pub fn deletion() -> Event {
    Event {
        actor: Some(Shared::new(actor())),
        target: Some(Shared::new(Target {
            container: Some(container()),
            pod: Some(pod()),
            ..Target::unknown(Join::Ok)
        })),
        neighbor: Some(Box::new(Neighbor {
            address: "169.254.1.1".parse().unwrap(),
            lladdr: Some("ee:ee:ee:ee:ee:ee".into()),
            new_lladdr: None,
            ifindex: 2,
            ifname: "eth0".into(),
            netns: 4_026_532_253,
            state: Some("permanent".into()),
            new_state: None,
            cause: "admin".into(),
            gateway: Some(true),
            reason: None,
            ended_netns: None,
            ended_lower: false,
            link_moved: false,
            after_exit: false,
            other_netns: false,
        })),
        ..plain(
            Kind::NeighborDeleted,
            Severity::Warning,
            "static gateway ARP 169.254.1.1 on eth0 of pod lijiaob/etcd1-0 deleted by calico (pid 28997)",
        )
    }
}

fn volume_mount(path: &str) -> Mount {
    Mount {
        syscall: "umount2".into(),
        path: path.into(),
        errno: Some("EBUSY".into()),
        flags: vec!["UMOUNT_NOFOLLOW".into()],
        fstype: Some("fuse.glusterfs".into()),
        source: Some("10.0.0.5:vol1".into()),
        device: Some("0:48".into()),
        mntns: 4_026_531_840,
        identity: Some(MountIdentity {
            unique: None,
            mount_id: 410,
            parent_id: 29,
            device: "0:48".into(),
            root: "/".into(),
            mount_point: path.into(),
        }),
        attempts: Some(4),
        volume: Some(Volume {
            pod_uid: "3f0f".into(),
            plugin: "kubernetes.io/glusterfs".into(),
            name: "data".into(),
        }),
        ..Mount::default()
    }
}

/// A loop device that nothing uses.
pub fn loop_device(name: &str) -> LoopDevice {
    LoopDevice { name: name.to_owned(), mounts: Vec::new(), elsewhere: Vec::new(), devices: Vec::new() }
}

pub fn busy() -> Event {
    let holder = |pid, comm: &str, access| MountHolder {
        pid,
        uid: Some(0),
        init: false,
        comm: comm.into(),
        cmdline: None,
        exe: None,
        access,
        path: None,
        fd: None,
        tid: None,
        unit: None,
        mntns: None,
        container: None,
        pod: None,
        serves: None,
        possible: false,
        loop_device: None,
        source: None,
    };
    let path = "/var/lib/kubelet/pods/3f0f/volumes/kubernetes.io~glusterfs/data";
    Event {
        actor: Some(Shared::new(Actor {
            source: ActorSource::Proc,
            confidence: Confidence::Likely,
            comm: "umount".into(),
            exe: Some("/bin/umount".into()),
            cmdline: None,
            ancestors: vec![],
            ..actor()
        })),
        mount: Some(Box::new(volume_mount(path))),
        holders: Some(vec![
            MountHolder {
                path: Some(format!("{path}/member/wal/0.wal")),
                fd: Some(11),
                container: Some(container()),
                pod: Some(pod()),
                ..holder(4123, "etcd", Access::Fd)
            },
            MountHolder { path: Some(path.into()), ..holder(4123, "etcd", Access::Cwd) },
            MountHolder { unit: Some("backup.service".into()), ..holder(977, "rsync", Access::Mount) },
        ]),
        holders_age_ms: Some(1_500),
        holders_complete: Some(false),
        holders_unreadable: vec![Unreadable {
            pid: Some(1),
            comm: Some("systemd".into()),
            reason: "it may not be read".into(),
        }],
        holders_verdict: Some(Verdict::Processes),
        ..plain(
            Kind::MountBusy,
            Severity::Warning,
            "volume data of pod lijiaob/etcd1-0 is held by etcd (pid 4123)",
        )
    }
}

pub fn link(severity: Severity) -> Event {
    Event {
        link: Some(Box::new(Link {
            ifindex: 2,
            ifname: "eth0".into(),
            kind: Some("veth".into()),
            netns: 4_026_532_253,
            peer: Some(LinkPeer { ifindex: 9, netns: Some(4_026_531_833), ifname: Some("cali0123".into()) }),
            master: None,
            mac: Some("02:42:ac:11:00:02".into()),
            old_mac: None,
            up: Some(false),
            change: vec!["down".into()],
            moved_to: None,
        })),
        ..plain(Kind::LinkChanged, severity, "eth0 of pod lijiaob/etcd1-0 was set down")
    }
}

fn address() -> Event {
    Event {
        address: Some(Box::new(Address {
            address: "192.168.252.66".parse().unwrap(),
            prefix_len: 32,
            ifindex: 2,
            ifname: "eth0".into(),
            netns: 4_026_532_253,
        })),
        ..plain(Kind::AddressDeleted, Severity::Info, "address 192.168.252.66/32 deleted from eth0")
    }
}

fn route() -> Event {
    Event {
        route: Some(Box::new(Route {
            destination: "default".into(),
            gateway: Some("169.254.1.1".parse().unwrap()),
            ifindex: Some(2),
            netns: 4_026_532_253,
        })),
        target: Some(Shared::new(Target {
            netns_name: Some("blue\u{1b}[0m".into()),
            ..Target::unknown(Join::Missed)
        })),
        ..plain(Kind::RouteDeleted, Severity::Notice, "default route of an unknown container deleted")
    }
}

pub fn lost() -> Event {
    Event {
        lost: Some(Lost {
            source: "bpf".into(),
            reason: "ring-full".into(),
            count: "1234".into(),
            from: Some("2026-01-02T03:04:01.000000000Z".into()),
            to: Some("2026-01-02T03:04:05.000000000Z".into()),
        }),
        ..plain(Kind::EventsLost, Severity::Warning, "1234 records lost: the ring buffer was full")
    }
}

pub fn cni() -> Event {
    Event {
        actor: Some(Shared::new(actor())),
        target: Some(Shared::new(Target {
            container: Some(container()),
            pod: Some(pod()),
            ..Target::unknown(Join::Ok)
        })),
        cni: Some(Box::new(Cni {
            command: "DEL".into(),
            container_id: Some(container().id),
            netns: Some("/proc/16707/ns/net".into()),
            netns_inode: Some(4_026_532_253),
            ifname: Some("eth0".into()),
            namespace: Some("lijiaob".into()),
            pod: Some("etcd1-0".into()),
            plugin: "/opt/cni/bin/portmap".into(),
            plugins: vec!["/opt/cni/bin/calico".into(), "/opt/cni/bin/portmap".into()],
            exit_code: Some(1),
            signal: Some(9),
            duration_ms: Some(300),
            stale: Some(true),
            truncated: true,
        })),
        ..plain(
            Kind::CniFinished,
            Severity::Notice,
            "CNI DEL of sandbox 593d8a89ee37 of pod lijiaob/etcd1-0 failed",
        )
    }
}

fn throttled() -> Event {
    Event {
        target: Some(Shared::new(Target::unknown(Join::Host))),
        throttled: Some(Box::new(Throttled {
            lane: "namespace".into(),
            kind: Some("neighbor.deleted".into()),
            mntns: Some(4_026_531_832),
            count: 12_345,
            from: "2026-01-02T03:04:01.000000000Z".into(),
            to: "2026-01-02T03:04:05.000000000Z".into(),
            netns: Some(4_026_531_833),
            uid: Some(1000),
            cgroup: Some("/system.slice/storm.service".into()),
            unit: Some("storm.service".into()),
            container: Some(container()),
            pod: Some(Pod { claimed: true, sandbox_id: Some("6".repeat(64)), ..pod() }),
            last_pid: Some(28997),
        })),
        ..plain(
            Kind::EventsThrottled,
            Severity::Warning,
            "beyond the budget of one source, and only counted: 12345 neighbor changes of the host by storm.service",
        )
    }
}

pub fn daemon(severity: Severity) -> Event {
    Event {
        daemon: Some(Daemon {
            version: "0.1.0".into(),
            sources: BTreeMap::from([
                ("hook.neighbor".into(), "tp_btf".into()),
                ("netlink".into(), "up".into()),
            ]),
            degraded: BTreeMap::from([("docker".into(), "no socket at /run/docker.sock".into())]),
        }),
        ..plain(Kind::DaemonReady, severity, "watching slave-197")
    }
}

fn container_exited() -> Event {
    Event {
        target: Some(Shared::new(Target {
            container: Some(Container {
                state: Some("exited".into()),
                pid: None,
                exit_code: Some(137),
                oom_killed: Some(true),
                ..container()
            }),
            ..Target::unknown(Join::Ok)
        })),
        ..plain(
            Kind::ContainerExited,
            Severity::Info,
            "container etcd exited with code 137, after the kernel had killed a process of it for want of memory",
        )
    }
}

fn container_recreated() -> Event {
    let previous =
        Container { id: "41857f70ed13".repeat(6)[..64].into(), exit_code: Some(137), ..container() };
    let recreation = Recreation {
        name: "etcd".into(),
        reason: RecreationReason::SpecHashChanged,
        previous: Container { pid: None, state: Some("exited".into()), ..previous },
        attempt: Some(1),
        previous_attempt: Some(0),
        spec_hash: Some(SpecHash::from(1_428_860_573)),
        previous_spec_hash: Some(SpecHash::from(1_559_107_639)),
        previous_sandbox_id: Some("94feeebc95fb".repeat(6)[..64].into()),
        same_sandbox: Some(false),
        found_at_start: true,
    };
    let target = Target { container: Some(container()), pod: Some(pod()), ..Target::unknown(Join::Ok) };
    Event {
        target: Some(Shared::new(target)),
        recreation: Some(Box::new(recreation)),
        ..plain(
            Kind::ContainerRecreated,
            Severity::Notice,
            "container etcd of pod lijiaob/etcd1-0 was re-created before the daemon started: the hash of its \
             specification changed from 1559107639 to 1428860573",
        )
    }
}

fn component_exited() -> Event {
    let component = Component {
        name: "kubelet".into(),
        pid: 1893,
        start_time_ns: "42000000000".into(),
        exe: Some("/usr/bin/kubelet (deleted)".into()),
        version: Some("v1.28.3".into()),
        previous_version: Some("v1.27.0".into()),
        exit_code: Some(255),
        signal: None,
        lifetime_s: Some(6.25),
    };
    let message = format!("{} exited with code 255 after 6.3 s", component.label());
    Event { component: Some(Box::new(component)), ..plain(Kind::ComponentExited, Severity::Notice, &message) }
}
