//! A node's life as events, the same in every run: pods come and go, some of them crash all the time, gateways
//! lose their ARP entry, volumes stay busy, there are storms, the daemon restarts. Few things happen to most pods,
//! and a great deal to some.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use kevtmon_event::{
    Action, Actor, Advice, CloseReason, Confidence, Container, Daemon, Event, Incident, Kind, Lost, Pod,
    Risk, Severity,
};
use serde::Serialize;

use super::pod::{Instance, kubelet, name, of_node, volume_path};

pub(super) const BOOT: &str = "5a3c6b5e-0d0f-4d5c-9c58-0f2b6a1f7c11";
/// Pods at one time.
const PODS: u64 = 250;
/// Events between two on average, in nanoseconds: a million in six days and a half.
const STEP_NS: i128 = 560_000_000;
/// The same in a storm, with 10,000 events a second.
const STORM_NS: i128 = 100_000;
const STORM: u64 = 2_000;
const CALICO: &str = "/opt/cni/bin/calico";

/// Words that `why` can be asked for.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Words {
    /// A pod to which something happens all the time.
    busy_pod: String,
    /// A pod that came and went, long ago.
    rare_pod: String,
    /// A pod whose gateway entry was lost now and then.
    struck_pod: String,
    ip: String,
    /// The first twelve digits.
    container: String,
    veth: String,
    /// The first process of a container.
    pid: u32,
    /// A process that did a lot.
    busy_pid: u32,
    /// A mount that was busy again and again.
    path: String,
}

pub(super) struct Node {
    random: u64,
    /// Of the first event, in nanoseconds since the epoch.
    begin: i128,
    /// Of the last event.
    time: i128,
    /// Events of a storm that are still to come.
    stormy: u64,
    seq: u64,
    born: u64,
    incidents: u64,
    pods: Vec<Instance>,
    waiting: VecDeque<Event>,
    rare: Option<String>,
}

impl Node {
    /// A node whose first event happens at this time, in nanoseconds since the epoch.
    pub(super) fn new(time: i128) -> Self {
        let mut node = Self {
            random: 1,
            begin: time,
            time,
            stormy: 0,
            seq: 0,
            born: 0,
            incidents: 0,
            pods: Vec::new(),
            waiting: VecDeque::new(),
            rare: None,
        };
        node.say(node.daemon(Kind::DaemonReady));
        for _ in 0..PODS {
            let pod = node.instance();
            node.start(&pod);
            node.pods.push(pod);
        }
        node
    }

    /// How long this many events take, in nanoseconds.
    pub(super) fn span(events: u64) -> i128 {
        i128::from(events) * STEP_NS
    }

    pub(super) fn words(&self) -> Words {
        let (busy, struck) = (&self.pods[0], &self.pods[7]);
        let full = |pod: &Instance| name(&pod.pod);
        Words {
            busy_pod: full(busy),
            rare_pod: self.rare.clone().unwrap_or_default(),
            struck_pod: full(struck),
            ip: self.pods[40].pod.ip[0].to_string(),
            container: self.pods[41].main.id[..12].to_owned(),
            veth: self.pods[42].veth.clone(),
            pid: self.pods[43].main.pid.unwrap_or_default(),
            busy_pid: 1893,
            path: volume_path(struck),
        }
    }

    pub(super) fn next(&mut self) -> Event {
        while self.waiting.is_empty() {
            self.happen();
        }
        let mut event = self.waiting.pop_front().unwrap_or_else(|| self.daemon(Kind::DaemonReady));
        self.seq += 1;
        self.time = match self.stormy.checked_sub(1) {
            Some(left) => {
                self.stormy = left;
                self.time + STORM_NS
            }
            // After a storm it is calm until it is made up for.
            None => {
                let drift = i128::from(self.chance(1 << 20)) * STEP_NS / (1 << 20);
                (self.time + STORM_NS).max(self.begin + i128::from(self.seq) * STEP_NS - drift)
            }
        };
        event.seq = self.seq;
        event.time = stamp(self.time);
        if let Some(incident) = &mut event.incident {
            let now = event.time.clone();
            incident.evidence.iter_mut().for_each(|back| *back = self.seq.saturating_sub(*back));
            incident.last_seen.clone_from(&now);
            if event.kind == Kind::IncidentClosed {
                incident.closed = Some(now);
                incident.close_reason = Some(CloseReason::Resolved);
            }
        }
        event
    }

    fn chance(&mut self, of: u64) -> u64 {
        // Xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 8) % of
    }

    /// A pod: the first ones by far the most often.
    fn some_pod(&mut self) -> usize {
        let (a, b, c) = (self.chance(PODS), self.chance(PODS), self.chance(PODS));
        usize::try_from(a * b * c / (PODS * PODS)).unwrap_or(0)
    }

    fn say(&mut self, event: Event) {
        self.waiting.push_back(event);
    }

    fn happen(&mut self) {
        let index = self.some_pod();
        match self.chance(10_000) {
            0..2_500 => self.crash(index),
            2_500..5_000 => self.flap(index),
            5_000..5_600 => self.replace(),
            5_600..7_500 => self.busy(index),
            7_500..7_700 => self.strike(index),
            7_700..7_705 => self.storm(index),
            7_705..7_715 => self.restart(),
            _ => self.learn(index),
        }
    }

    /// Pods with a name end and begin; the first of all keep theirs.
    fn replace(&mut self) {
        let index = usize::try_from(60 + self.chance(PODS - 60)).unwrap_or(0);
        let old = self.pods.swap_remove(index);
        for container in [&old.main, &old.sandbox] {
            self.say(old.container(Kind::ContainerExited, container));
        }
        self.say(old.link(Kind::LinkDeleted));
        self.say(old.neighbor(Kind::NeighborDeleted, "link-deleted", None));
        self.say(old.route(Kind::RouteDeleted));
        for container in [&old.main, &old.sandbox] {
            self.say(old.container(Kind::ContainerRemoved, container));
        }
        if self.born == PODS + 300 {
            self.rare = Some(name(&old.pod));
        }
        let new = self.instance();
        self.start(&new);
        self.pods.push(new);
    }

    fn instance(&mut self) -> Instance {
        self.born += 1;
        let number = self.born;
        let small = u32::try_from(number).unwrap_or(0);
        let container = |role: u64, name: &str, pid: u32| Container {
            id: format!("{:016x}", (2 * number + role).wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(4),
            name: Some(format!("k8s_{name}_service-{number}-0_team-{}_0", number % 10)),
            runtime: Some("docker".to_owned()),
            image: Some("registry.example/team/service:1.2.3".to_owned()),
            pid: Some(pid),
            state: Some("running".to_owned()),
            exit_code: None,
            oom_killed: None,
        };
        let sandbox = container(0, "POD", 10_000 + small * 8);
        Instance {
            number,
            pod: Pod {
                namespace: Some(format!("team-{}", number % 10)),
                name: Some(format!("service-{number}-0")),
                uid: format!("3f0f6a0e-2f6a-4d4e-9d1f-{number:012x}"),
                claimed: false,
                sandbox_id: Some(sandbox.id.clone()),
                ip: vec![IpAddr::V4(Ipv4Addr::from(0x0a2a_0000 + small))],
                labels: None,
            },
            sandbox,
            main: container(1, "service", 10_004 + small * 8),
            netns: 4_026_540_000 + small,
            ifindex: 100 + small,
            veth: format!("cali{:011x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20),
        }
    }

    fn start(&mut self, pod: &Instance) {
        self.say(pod.container(Kind::ContainerCreated, &pod.sandbox));
        self.say(pod.link(Kind::LinkCreated));
        self.say(pod.link(Kind::LinkMoved));
        self.say(pod.route(Kind::RouteAdded));
        self.say(pod.neighbor(Kind::NeighborAdded, "admin", Some(self.calico())));
        for container in [&pod.sandbox, &pod.main] {
            self.say(pod.container(Kind::ContainerStarted, container));
        }
    }

    fn crash(&mut self, index: usize) {
        let pod = &self.pods[index];
        let events =
            [Kind::ContainerExited, Kind::ContainerStarted].map(|kind| pod.container(kind, &pod.main));
        self.waiting.extend(events);
    }

    fn flap(&mut self, index: usize) {
        self.waiting.push_back(self.pods[index].link(Kind::LinkChanged));
    }

    /// An entry that is no gateway's.
    fn learn(&mut self, index: usize) {
        let mut event = self.pods[index].neighbor(Kind::NeighborAdded, "admin", Some(kubelet("ip")));
        if let Some(neighbor) = &mut event.neighbor {
            neighbor.address =
                Ipv4Addr::from(0x0a63_0000 + u32::try_from(self.seq % 100_000).unwrap_or(0)).into();
            neighbor.gateway = Some(false);
        }
        self.say(event);
    }

    fn calico(&self) -> Actor {
        let pid = u32::try_from(20_000 + self.seq % 400_000).unwrap_or(0);
        Actor { pid, tid: pid, comm: "calico".to_owned(), exe: Some(CALICO.to_owned()), ..kubelet("calico") }
    }

    /// The gateway entry of a pod goes, and comes back.
    fn strike(&mut self, index: usize) {
        let actor = self.calico();
        let pod = &self.pods[index];
        let deleted = pod.neighbor(Kind::NeighborDeleted, "admin", Some(actor.clone()));
        let added = pod.neighbor(Kind::NeighborAdded, "admin", Some(actor));
        let incident = self.incident("gateway-neighbor-lost", &deleted);
        let told = |kind, evidence: &[u64]| about(kind, &deleted, &incident, evidence);
        let opened = told(Kind::IncidentOpened, &[1]);
        let closed = told(Kind::IncidentClosed, &[3, 1]);
        self.waiting.extend([deleted, opened, added, closed]);
    }

    /// An unmount is refused again and again.
    fn busy(&mut self, index: usize) {
        let attempts = 1 + self.chance(4);
        let busy = self.pods[index].busy(1);
        let incident = self.incident("volume-busy", &busy);
        for attempt in 1..=attempts {
            self.waiting.push_back(self.pods[index].busy(attempt));
            let kind = if attempt == 1 { Kind::IncidentOpened } else { Kind::IncidentUpdated };
            let evidence: Vec<u64> = (1..=attempt).map(|back| 2 * back - 1).collect();
            self.waiting.push_back(about(kind, &busy, &incident, &evidence));
        }
        // One in four hundred is never unmounted.
        if self.chance(400) > 0 {
            let mut released = self.pods[index].busy(attempts);
            (released.kind, released.severity, released.holders) =
                (Kind::MountReleased, Severity::Info, None);
            self.waiting.push_back(released);
            let evidence: Vec<u64> = (1..=attempts).map(|back| 2 * back).collect();
            self.waiting.push_back(about(Kind::IncidentClosed, &busy, &incident, &evidence));
        }
    }

    fn incident(&mut self, kind: &str, event: &Event) -> Incident {
        self.incidents += 1;
        let time = stamp(self.time);
        let advice = |text: &str, command: &str, risk| Advice {
            text: text.to_owned(),
            command: command.to_owned(),
            risk,
            action: Action::None,
            form: String::new(),
            process: None,
        };
        Incident {
            id: format!("{:016x}", self.incidents.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            kind: kind.to_owned(),
            severity: Severity::Warning,
            confidence: Confidence::Certain,
            opened: time.clone(),
            closed: None,
            first_seen: time.clone(),
            last_seen: time,
            count: 1,
            counted: String::new(),
            counted_since: None,
            episode: 1,
            clock_set_ms: 0,
            ruled_out: Vec::new(),
            close_reason: None,
            found_at_start: false,
            caused_by: Vec::new(),
            host_cause: None,
            summary: event.message.clone(),
            advice: vec![
                advice(
                    "look at the neighbors of the pod",
                    "nsenter -t 4100 -n ip neigh show dev eth0",
                    Risk::Read,
                ),
                advice("restart the pod", "kubectl delete pod -n team-1 service-1-0", Risk::Restart),
            ],
            evidence: Vec::new(),
            evidence_omitted: 0,
        }
    }

    /// Entries of one pod go as fast as one core deletes them.
    fn storm(&mut self, index: usize) {
        self.stormy = STORM;
        let actor = kubelet("ip");
        for number in 0..u32::try_from(STORM).unwrap_or(0) {
            let mut event = self.pods[index].neighbor(Kind::NeighborDeleted, "admin", Some(actor.clone()));
            if let Some(neighbor) = &mut event.neighbor {
                neighbor.address = Ipv4Addr::from(0x0a63_0000 + number).into();
                neighbor.gateway = Some(false);
            }
            self.waiting.push_back(event);
        }
        let mut event =
            Event::new(Kind::EventsLost, Severity::Warning, "1234 records lost: the ring was full".into());
        let lost = ("bpf".to_owned(), "ring-full".to_owned(), "1234".to_owned());
        event.lost = Some(Lost { source: lost.0, reason: lost.1, count: lost.2, from: None, to: None });
        self.say(of_node(event));
    }

    fn restart(&mut self) {
        for kind in [Kind::DaemonStopping, Kind::DaemonReady, Kind::DaemonDegraded] {
            self.say(self.daemon(kind));
        }
    }

    fn daemon(&self, kind: Kind) -> Event {
        let states = |states: &[(&str, &str)]| -> BTreeMap<String, String> {
            states.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect()
        };
        let mut event = Event::new(kind, Severity::Notice, "watching slave-197".to_owned());
        event.daemon = Some(Daemon {
            version: "0.1.0".to_owned(),
            sources: states(&[
                ("docker", "up"),
                ("hook.neighbor", "tp_btf"),
                ("hook.umount", "fexit"),
                ("netlink", "up"),
            ]),
            degraded: match kind {
                Kind::DaemonDegraded => states(&[("docker", "no socket at /run/docker.sock")]),
                _ => BTreeMap::new(),
            },
        });
        of_node(event)
    }
}

/// An event of an incident; its evidence counts back from its own number.
fn about(kind: Kind, of: &Event, incident: &Incident, evidence: &[u64]) -> Event {
    let count = u64::try_from(evidence.len()).unwrap_or(1);
    let incident = Incident { evidence: evidence.to_vec(), count, ..incident.clone() };
    Event { kind, incident: Some(Box::new(incident)), ..of.clone() }
}

fn stamp(time: i128) -> String {
    jiff::Timestamp::from_nanosecond(time).map(|time| format!("{time:.9}")).unwrap_or_default()
}
