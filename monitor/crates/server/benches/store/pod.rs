//! A pod of the generated node, and what happens to it, as events.

use std::net::Ipv4Addr;

use kevtmon_event::{
    Actor, ActorSource, AncestorRef, Confidence, Container, Event, Join, Kind, Link, LinkPeer, Mount,
    MountHolder, Neighbor, Pod, Route, Severity, Shared, Target, Volume,
};
use kevtmon_observation::{Access, Verdict};

use super::node::BOOT;

const HOST: u32 = 4_026_531_833;
const HOST_MNTNS: u32 = 4_026_531_840;

pub(super) struct Instance {
    pub(super) number: u64,
    pub(super) pod: Pod,
    pub(super) sandbox: Container,
    pub(super) main: Container,
    pub(super) netns: u32,
    pub(super) ifindex: u32,
    pub(super) veth: String,
}

impl Instance {
    fn event(&self, kind: Kind, severity: Severity, what: &str) -> Event {
        let mut event = Event::new(kind, severity, format!("{what} of pod {}", name(&self.pod)));
        event.target = Some(Shared::new(Target {
            container: Some(self.sandbox.clone()),
            pod: Some(self.pod.clone()),
            ..Target::unknown(Join::Ok)
        }));
        of_node(event)
    }

    pub(super) fn container(&self, kind: Kind, container: &Container) -> Event {
        let severity = if kind == Kind::ContainerCreated { Severity::Debug } else { Severity::Info };
        let mut event = self.event(kind, severity, "a container");
        if let Some(target) = &mut event.target {
            target.container = Some(container.clone());
        }
        event
    }

    pub(super) fn link(&self, kind: Kind) -> Event {
        let mut event = self.event(kind, Severity::Info, "eth0");
        event.link = Some(Box::new(Link {
            ifindex: self.ifindex,
            ifname: self.veth.clone(),
            kind: Some("veth".to_owned()),
            netns: HOST,
            peer: Some(LinkPeer { ifindex: 2, netns: Some(self.netns), ifname: Some("eth0".to_owned()) }),
            master: None,
            mac: Some("ee:ee:ee:ee:ee:ee".to_owned()),
            old_mac: None,
            up: Some(true),
            change: if kind == Kind::LinkChanged { vec!["carrier-down".to_owned()] } else { Vec::new() },
            moved_to: None,
        }));
        event
    }

    pub(super) fn route(&self, kind: Kind) -> Event {
        let mut event = self.event(kind, Severity::Info, "the default route");
        event.route = Some(Box::new(Route {
            destination: "default".to_owned(),
            gateway: Some(Ipv4Addr::new(169, 254, 1, 1).into()),
            ifindex: Some(2),
            netns: self.netns,
        }));
        event
    }

    pub(super) fn neighbor(&self, kind: Kind, cause: &str, actor: Option<Actor>) -> Event {
        let severity =
            if kind == Kind::NeighborDeleted && actor.is_some() { Severity::Warning } else { Severity::Info };
        let mut event = self.event(kind, severity, "static gateway ARP 169.254.1.1 on eth0");
        event.neighbor = Some(Box::new(Neighbor {
            address: Ipv4Addr::new(169, 254, 1, 1).into(),
            lladdr: Some("ee:ee:ee:ee:ee:ee".to_owned()),
            new_lladdr: None,
            ifindex: 2,
            ifname: "eth0".to_owned(),
            netns: self.netns,
            state: Some("permanent".to_owned()),
            new_state: None,
            cause: cause.to_owned(),
            gateway: Some(true),
            reason: None,
            ended_netns: None,
            ended_lower: false,
            link_moved: false,
            after_exit: false,
            other_netns: false,
        }));
        event.actor = actor.map(Shared::new);
        event
    }

    pub(super) fn busy(&self, attempt: u64) -> Event {
        let path = volume_path(self);
        let mut event = self.event(Kind::MountBusy, Severity::Warning, "volume data is held by etcd");
        event.actor = Some(Shared::new(kubelet("umount")));
        event.mount = Some(Box::new(Mount {
            syscall: "umount2".to_owned(),
            path: path.clone(),
            errno: Some("EBUSY".to_owned()),
            flags: vec!["UMOUNT_NOFOLLOW".to_owned()],
            fstype: Some("fuse.glusterfs".to_owned()),
            source: Some("10.0.0.5:vol1".to_owned()),
            device: Some("0:48".to_owned()),
            mntns: HOST_MNTNS,
            attempts: Some(attempt),
            volume: Some(Volume {
                pod_uid: self.pod.uid.clone(),
                plugin: "kubernetes.io/glusterfs".to_owned(),
                name: "data".to_owned(),
            }),
            ..Mount::default()
        }));
        let holder = |number: u32| MountHolder {
            pid: self.main.pid.unwrap_or_default() + number,
            uid: Some(0),
            init: false,
            comm: "etcd".to_owned(),
            cmdline: None,
            exe: Some("/usr/local/bin/etcd".to_owned()),
            access: Access::Fd,
            path: Some(format!("{path}/member/wal/{number}.wal")),
            fd: Some(11 + number),
            tid: None,
            unit: None,
            mntns: Some(HOST_MNTNS + 7),
            container: Some(self.main.clone()),
            pod: Some(self.pod.clone()),
            serves: None,
            possible: false,
            loop_device: None,
            source: None,
        };
        event.holders = Some((0..u32::try_from(1 + self.number % 4).unwrap_or(1)).map(holder).collect());
        (event.holders_complete, event.holders_verdict) = (Some(true), Some(Verdict::Processes));
        event
    }
}

pub(super) fn of_node(event: Event) -> Event {
    Event { boot_id: BOOT.to_owned(), node: "slave-197".to_owned(), ..event }
}

pub(super) fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace.as_deref().unwrap_or_default(), pod.name.as_deref().unwrap_or_default())
}

pub(super) fn volume_path(pod: &Instance) -> String {
    format!("/var/lib/kubelet/pods/{}/volumes/kubernetes.io~glusterfs/data", pod.pod.uid)
}

pub(super) fn kubelet(comm: &str) -> Actor {
    let ancestor = |pid, comm: &str, exe: Option<&str>| AncestorRef {
        pid,
        comm: comm.to_owned(),
        exe: exe.map(str::to_owned),
        started: Some(true),
        ..AncestorRef::default()
    };
    Actor {
        source: ActorSource::Kernel,
        confidence: Confidence::Certain,
        pid: 1893,
        tid: 1907,
        uid: Some(0),
        euid: None,
        comm: comm.to_owned(),
        exe: Some(format!("/usr/sbin/{comm}")),
        cmdline: Some(format!("{comm} --for=service")),
        start_time_ns: "41000000000".to_owned(),
        cgroup: Some("/system.slice/kubelet.service".to_owned()),
        unit: Some("kubelet.service".to_owned()),
        netns: Some(HOST),
        mntns: Some(HOST_MNTNS),
        userns: None,
        ancestors: vec![ancestor(1893, "kubelet", Some("/usr/bin/kubelet")), ancestor(1, "systemd", None)],
        container: None,
        pod: None,
        join: Join::Host,
    }
}
