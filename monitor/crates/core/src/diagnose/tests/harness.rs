//! A simulated node: it answers the core's requests from tables that a test can change.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kevtmon_event::{Event, Incident, Kind};
use kevtmon_observation::*;
use kevtmon_testing::same::assert_same;
use kevtmon_testing::schema::assert_valid;
pub(in crate::diagnose) use kevtmon_types::clock::{MS, SECOND as S};
use kevtmon_types::settings::Settings;
use kevtmon_types::settings::{Cmdline, EventRate, Thresholds};

pub(in crate::diagnose) use super::calls::*;
pub(in crate::diagnose) use super::runtimes::*;
pub(in crate::diagnose) use super::volumes::*;
use crate::{Core, Output, Resume};

pub(in crate::diagnose) const HOST: NsInum = 4_026_531_833;
/// The new sandbox of lijiaob/etcd1-0, and its namespace.
pub(in crate::diagnose) const ETCD: NsInum = 4_026_532_253;
pub(in crate::diagnose) const SANDBOX: &str =
    "291716a39be991716a39be991716a39be991716a39be991716a39be991716a39";
pub(in crate::diagnose) const CAM_UID: &str = "5c948341-c030-4996-b888-f032577d97b0";
pub(in crate::diagnose) const WEB_UID: &str = "0b7a2f50-9d1c-4a3e-8f6d-2c5b1e0a9d84";

/// Points of each scenario at which the core is saved, restored and run to the end.
const CONTINUATIONS: usize = 12;
/// Points at which the restored core is compared with the running one.
const COMPARISONS: usize = 100;

/// The wall clock of the boot: 2018-03-05T20:00:00Z.
pub(in crate::diagnose) const BOOTED_AT: i64 = 1_520_280_000_000_000_000;

pub(in crate::diagnose) struct TestNode {
    pub(in crate::diagnose) core: Core,
    /// State at the start.
    resume: Resume,
    pub(in crate::diagnose) events: Vec<Event>,
    pub(in crate::diagnose) requests: Vec<Request>,
    pub(in crate::diagnose) observed: Vec<Observation>,
    pub(in crate::diagnose) tables: BTreeMap<NsInum, NetnsSnapshot>,
    pub(in crate::diagnose) mounted: bool,
    pub(in crate::diagnose) scan: fn(u64, &str) -> HolderReport,
    /// Whether those hold it still who did.
    pub(in crate::diagnose) still_held: bool,
    /// Mounts on top of it.
    pub(in crate::diagnose) covers: u32,
    pub(in crate::diagnose) presence_known: bool,
    /// Whether there are checkpoints of sandboxes.
    pub(in crate::diagnose) checkpoint: Option<bool>,
    /// What is found behind veth devices of the host, by index, where the tables do not show it.
    pub(in crate::diagnose) peers: BTreeMap<u32, VethPeer>,
    /// Where the kernel finds that packets to addresses of pods go, if not to the pods.
    pub(in crate::diagnose) elsewhere: BTreeMap<IpAddr, FoundRoute>,
    pub(in crate::diagnose) now: BootNs,
}

pub(in crate::diagnose) fn settings() -> Settings {
    Settings {
        node: "slave-197".into(),
        boot_id: "5a3c6b5e-0d0f-4d5c-9c58-0f2b6a1f7c11".into(),
        version: "0".into(),
        host_netns: HOST,
        cmdline: Cmdline::Host,
        incidents: Thresholds::default(),
        user_events: EventRate { rate: 4, burst: 64 },
        container_events: EventRate { rate: 16, burst: 512 },
        sources: BTreeMap::from([("netlink".into(), false), ("docker".into(), true)]),
    }
}

impl TestNode {
    /// A node that has just booted, without containers.
    pub(in crate::diagnose) fn booted(resume: Resume) -> Self {
        Self::with_settings(settings(), resume)
    }

    /// The same, with these settings.
    pub(in crate::diagnose) fn with_settings(settings: Settings, resume: Resume) -> Self {
        let mut node = Self {
            core: Core::new(settings, resume.clone()),
            resume,
            events: Vec::new(),
            requests: Vec::new(),
            observed: Vec::new(),
            tables: BTreeMap::new(),
            mounted: true,
            scan: holders,
            still_held: true,
            covers: 0,
            presence_known: true,
            checkpoint: Some(false),
            peers: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            now: 0,
        };
        node.tables.insert(HOST, empty(HOST));
        node.observe(Fact::Clock { realtime_offset_ns: BOOTED_AT });
        node
    }

    /// All sources report, the runtime with these containers; then a second passes.
    pub(in crate::diagnose) fn start(&mut self, containers: Vec<ContainerFacts>) {
        for netns in self.tables.keys().copied().collect::<Vec<_>>() {
            self.observe_netns(netns);
        }
        self.observe(Fact::RuntimeSnapshot {
            runtime: "docker".into(),
            source: "docker".into(),
            read: None,
            containers,
        });
        for source in ["netlink", "docker"] {
            self.observe(up(source));
        }
        self.run_until(S);
    }

    /// A ready node on which lijiaob/etcd1-0 runs with a static gateway entry; earlier events are dropped.
    pub(in crate::diagnose) fn with_running_pod() -> Self {
        let mut node = Self::booted(Resume::default());
        node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
        node.start(vec![etcd_sandbox()]);
        node.observe(calico());
        node.events.clear();
        node
    }

    /// Gives a namespace the tables of a Calico pod: eth0, a default route, and a gateway entry.
    pub(in crate::diagnose) fn add_pod(&mut self, netns: NsInum, host_end: &str, state: NudState) {
        let ifindex = u32::try_from(self.tables.len()).unwrap() + 10;
        let mut end = veth(HOST, ifindex, host_end, netns, 2);
        end.mac = Some(host_mac());
        self.tables.get_mut(&HOST).unwrap().links.push(end);
        let mut tables = empty(netns);
        tables.links.push(veth(netns, 2, "eth0", HOST, ifindex));
        tables.routes.push(RouteFacts::default_via(netns, gateway(), 2));
        self.tables.insert(netns, tables);
        self.set_entry(netns, Some((state, Some(host_mac()))));
    }

    /// Changes the gateway's entry without an observation.
    pub(in crate::diagnose) fn set_entry(
        &mut self,
        netns: NsInum,
        entry: Option<(NudState, Option<LlAddr>)>,
    ) {
        let tables = self.tables.get_mut(&netns).unwrap();
        tables.neighbors = entry
            .into_iter()
            .map(|(state, lladdr)| NeighborEntry { ifindex: 2, address: gateway(), state, lladdr })
            .collect();
    }

    pub(in crate::diagnose) fn observe_netns(&mut self, netns: NsInum) {
        let fact = match self.tables.get(&netns) {
            Some(tables) => Fact::Netns(Box::new(tables.clone())),
            None => Fact::NetnsGone { netns },
        };
        self.observe_now(fact);
    }

    /// Deletes the entry as `ip neigh del` does, seen by the kernel hook.
    /// The network namespace of a pod ends, and both ends of its veth pair with it.
    pub(in crate::diagnose) fn end_network(&mut self, netns: NsInum) {
        self.tables.remove(&netns);
        let Some(host) = self.tables.get_mut(&HOST) else { return };
        let is_of_it = |link: &LinkFacts| link.peer.as_ref().is_some_and(|peer| peer.netns == Some(netns));
        let gone: Vec<u32> =
            host.links.iter().filter(|link| is_of_it(link)).map(|link| link.ifindex).collect();
        host.links.retain(|link| !gone.contains(&link.ifindex));
        for ifindex in gone {
            self.observe(Fact::LinkGone { netns: HOST, ifindex, moved_to: None });
        }
    }

    pub(in crate::diagnose) fn delete_entry(&mut self, netns: NsInum, cause: NeighborCause) {
        self.set_entry(netns, None);
        self.observe(Fact::Neighbor(Box::new(deletion(netns, cause))));
    }

    /// One observation, a millisecond after the one before.
    pub(in crate::diagnose) fn observe(&mut self, fact: Fact) {
        self.now += MS;
        if let Fact::Umount(attempt) = &fact
            && attempt.mntns == MNTNS
        {
            match (attempt.errno, self.covers) {
                (Some(_), _) => self.mounted = true,
                (None, 0) => self.mounted = false,
                (None, _) => self.covers -= 1,
            }
        }
        self.observe_now(fact);
    }

    fn observe_now(&mut self, fact: Fact) {
        let observation = Observation { at: self.now, source: Source::Daemon, fact };
        self.observed.push(observation.clone());
        self.core.observe(observation);
        let mut requests = Vec::new();
        for output in self.core.take_output() {
            match output {
                Output::Event(event) => {
                    assert_valid(&event);
                    self.events.push(*event);
                }
                Output::Request(request) => requests.push(request),
            }
        }
        for request in requests {
            self.requests.push(request.clone());
            self.answer(request);
        }
    }

    fn answer(&mut self, request: Request) {
        match request {
            Request::CniNetns { .. }
            | Request::Component { .. }
            | Request::PodProcesses { .. }
            | Request::PodMounts { .. }
            | Request::Container { .. }
            | Request::DetachedUsers { .. }
            | Request::Obstacle { .. }
            | Request::RbdUses { .. }
            | Request::FuseMounts
            | Request::NfsMounts { .. }
            | Request::DeviceUsers { .. }
            | Request::MountCopies => {}
            Request::Kubelet => self.observe(Fact::Kubelet(KubeletFacts::default())),
            Request::Netns { netns } => self.observe_netns(netns),
            Request::ProcessState { tgid, .. } => {
                self.observe(Fact::ProcessState(ProcessState { tgid, alive: true }));
            }
            Request::VethPeers { links } => {
                let found = links.into_iter().map(|link| self.veth_peer(link.ifindex)).collect();
                self.observe(Fact::VethPeers(found));
            }
            Request::PodRoutes { id, addresses } => {
                let elsewhere = self.pod_routes(&addresses);
                self.observe(Fact::PodRoutes { id, elsewhere });
            }
            Request::SandboxCheckpoints { sandboxes } => {
                let found = self.checkpoint;
                let found = sandboxes.into_iter().map(|sandbox| SandboxCheckpoint { sandbox, found });
                self.observe(Fact::SandboxCheckpoints(found.collect()));
            }
            Request::Holders { id, path, .. } => {
                let path = path.replace(LINK, KUBELET);
                let report = if self.mounted { (self.scan)(id, &path) } else { not_a_mount(id, &path) };
                self.observe(Fact::Holders(Box::new(report)));
            }
            Request::MountPresence { id, .. } | Request::MountAt { id, .. } => {
                self.observe(Fact::MountPresence(match self.presence_known {
                    true => MountPresence::known(id, self.mounted),
                    false => MountPresence::unknown(id, "no process is left"),
                }));
            }
            Request::StillHeld { id, mount, mut holders, .. } => {
                holders.retain(|_| self.still_held);
                self.observe(Fact::Holders(Box::new(HolderReport {
                    holders,
                    complete: true,
                    verdict: Verdict::Processes,
                    ..HolderReport::skipped(id, mount.mountpoint)
                })));
            }
        }
    }

    /// Lets time pass: ticks come exactly when they are due.
    pub(in crate::diagnose) fn run_until(&mut self, until: BootNs) {
        let mut at_once = 0;
        while let Some(deadline) = self.core.deadline().filter(|deadline| *deadline <= until) {
            at_once = if deadline <= self.now { at_once + 1 } else { 0 };
            assert!(at_once < 100, "a deadline that is never met: {deadline}");
            self.now = self.now.max(deadline);
            self.observe_now(Fact::Tick);
        }
        self.now = self.now.max(until);
    }

    pub(in crate::diagnose) fn run_for(&mut self, span: BootNs) {
        self.run_until(self.now + span);
    }

    /// The incident events so far.
    pub(in crate::diagnose) fn incidents(&self) -> Vec<(Kind, &Incident)> {
        self.events.iter().filter_map(|event| Some((event.kind, event.incident.as_deref()?))).collect()
    }

    pub(in crate::diagnose) fn kinds(&self) -> Vec<&'static str> {
        self.incidents().iter().map(|(kind, _)| kind.name()).collect()
    }

    /// The newest event of an incident.
    pub(in crate::diagnose) fn last_incident(&self) -> &Event {
        self.events.iter().rfind(|event| event.incident.is_some()).expect("no incident event")
    }

    pub(in crate::diagnose) fn open(&self) -> Vec<Incident> {
        self.core.incidents().map(|(incident, _)| incident).collect()
    }

    /// The state that the store would pass to the next run.
    pub(in crate::diagnose) fn resume_state(&self) -> Resume {
        let open: Vec<String> = self.open().into_iter().map(|incident| incident.id).collect();
        let newest = |id: &String| {
            let of_it = |event: &&Event| event.incident.as_ref().is_some_and(|incident| incident.id == *id);
            let json = serde_json::to_string(self.events.iter().rfind(of_it).unwrap()).unwrap();
            serde_json::from_str(&json).unwrap()
        };
        Resume {
            last_seq: self.events.last().unwrap().seq,
            incidents: open.iter().map(newest).collect(),
            ..Resume::default()
        }
    }
}

/// Checks at the end of each test that the core can be restored at any observation: a restored core must emit the same
/// output for the remaining observations.
impl Drop for TestNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let mut core = Core::new(settings(), self.resume.clone());
        let mut output = Vec::new();
        let mut saved = Vec::new();
        let restore = |saved: &str| Core::restore(settings(), serde_json::from_str(saved).unwrap()).unwrap();
        // Comparing a large node is slow.
        let comparisons = if self.observed.len() < 1_000 { COMPARISONS } else { 2 };
        let every = |cuts| self.observed.len() / cuts + 1;
        for (index, observation) in self.observed.iter().enumerate() {
            let written = || serde_json::to_string(&core.save().unwrap()).unwrap();
            if index % every(comparisons) == 0 {
                assert_same(&restore(&written()), &core, &format!("cut at {index}"));
            }
            if index % every(CONTINUATIONS) == 0 {
                saved.push((index, output.len(), written()));
            }
            core.observe(observation.clone());
            output.extend(core.take_output());
        }
        for (index, output_len, saved) in saved {
            let mut restored = restore(&saved);
            let mut again = Vec::new();
            for observation in &self.observed[index..] {
                restored.observe(observation.clone());
                again.extend(restored.take_output());
            }
            assert!(
                again == output[output_len..],
                "cut at {index}: {again:#?} instead of {:#?}",
                &output[output_len..]
            );
        }
    }
}

pub(in crate::diagnose) fn gateway() -> IpAddr {
    "169.254.1.1".parse().unwrap()
}

pub(in crate::diagnose) fn host_mac() -> LlAddr {
    LlAddr(vec![0xee; 6])
}

pub(in crate::diagnose) fn mac(last: u8) -> LlAddr {
    LlAddr(vec![0x32, 0x76, 0xe6, 0x6f, 0xff, last])
}

pub(in crate::diagnose) fn up(source: &str) -> Fact {
    let kind = if source == "docker" { SourceKind::Runtime } else { SourceKind::Netlink };
    Fact::Source(SourceStatus::up(kind, source))
}

fn empty(netns: NsInum) -> NetnsSnapshot {
    NetnsSnapshot::empty(netns)
}

pub(in crate::diagnose) fn veth(
    netns: NsInum,
    ifindex: u32,
    ifname: &str,
    peer_netns: NsInum,
    peer: u32,
) -> LinkFacts {
    LinkFacts {
        netns,
        ifindex,
        ifname: ifname.into(),
        kind: Some("veth".into()),
        flags: iff::UP | iff::LOWER_UP,
        mac: Some(mac(1)),
        master: None,
        peer: Some(PeerLink { ifindex: peer, netns: Some(peer_netns) }),
        lower: None,
    }
}

pub(in crate::diagnose) fn sandbox(
    id: &str,
    netns: NsInum,
    namespace: &str,
    name: &str,
    uid: &str,
) -> ContainerFacts {
    ContainerFacts {
        id: id.into(),
        name: format!("k8s_POD_{name}_{namespace}_{uid}_0"),
        runtime: "docker".into(),
        source: "docker".into(),
        image: "pause".into(),
        state: ContainerState::Running,
        tgid: Some(16_707),
        netns: Some(netns),
        mntns: Some(8),
        addresses: vec!["192.168.252.66".parse().unwrap()],
        pod: Some(PodIdentity {
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
            sandbox_id: Some(id.into()),
            container_name: Some("POD".into()),
            proof: PodProof::Cgroup,
            labels: None,
        }),
        sandbox: true,
        ..ContainerFacts::default()
    }
}

/// The sandbox of lijiaob/etcd1-0.
pub(in crate::diagnose) fn etcd_sandbox() -> ContainerFacts {
    sandbox(SANDBOX, ETCD, "lijiaob", "etcd1-0", "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f")
}

pub(in crate::diagnose) fn etcd(state: ContainerState) -> Fact {
    Fact::Container(Box::new(ContainerFacts { state, ..etcd_sandbox() }))
}

pub(in crate::diagnose) fn task_key(tgid: u32) -> TaskKey {
    TaskKey { tgid, start_ns: 5, exec_id: 2 }
}

pub(in crate::diagnose) fn task(tgid: u32, exe: &str) -> Fact {
    Fact::Task(Box::new(TaskFacts {
        key: task_key(tgid),
        exe: Some(exe.into()),
        cmdline: Some(exe.into()),
        netns: HOST,
        mntns: 2,
        cgroup: Some("/system.slice/kubelet.service".into()),
        ..TaskFacts::default()
    }))
}

/// The stale CNI DEL of the old sandbox runs this.
pub(in crate::diagnose) fn calico() -> Fact {
    task(28_997, "/opt/cni/bin/calico")
}

pub(in crate::diagnose) fn deletion(netns: NsInum, cause: NeighborCause) -> NeighborChange {
    NeighborChange {
        key: NeighborKey { netns, ifindex: 2, address: gateway() },
        ifname: "eth0".into(),
        op: NeighborOp::Deleted,
        cause,
        old_state: Some(NudState::PERMANENT),
        new_state: None,
        lladdr: Some(host_mac()),
        new_lladdr: None,
        device_lladdr: None,
        actor: Some(TaskRef { key: task_key(28_997), tid: 28_997, comm: "calico".into(), context: None }),
        netlink_port: None,
        netns_cookie: None,
        netns_of_user: false,
    }
}

pub(in crate::diagnose) fn failure(netns: NsInum) -> Fact {
    Fact::Neighbor(Box::new(NeighborChange {
        op: NeighborOp::Failed,
        cause: NeighborCause::Unknown,
        old_state: None,
        new_state: Some(NudState::FAILED),
        lladdr: None,
        actor: None,
        ..deletion(netns, NeighborCause::Unknown)
    }))
}
