//! Several sockets of runtimes: each a source of its own, one container however many report it.

use super::*;

const A: &str = "docker:/run/docker.sock";
const B: &str = "docker:/run/other.sock";
const SECOND: u64 = 1_000 * MS;

/// A core that gets reports of runtimes, and its events.
struct Node {
    core: Core,
}

impl Node {
    /// Both sockets are declared; nothing was reported yet.
    fn new() -> Self {
        let mut core = core();
        core.settings.sources = BTreeMap::from([(A.to_owned(), false), (B.to_owned(), false)]);
        Self { core }
    }

    /// Both sockets listed these containers at the start.
    fn watching(on_a: &[&ContainerFacts], on_b: &[&ContainerFacts]) -> Self {
        let mut node = Self::new();
        node.lists(1, A, on_a);
        node.says(2, up(A));
        node.lists(3, B, on_b);
        node.says(4, up(B));
        assert_eq!(kinds(&mut node.core), [Kind::DaemonReady], "what is there at the start is no news");
        node
    }

    fn says(&mut self, time: BootNs, fact: Fact) {
        self.core.observe(at(time, fact));
    }

    fn reports(&mut self, time: BootNs, source: &str, facts: &ContainerFacts) {
        self.says(time, Fact::Container(Box::new(by(source, facts))));
    }

    fn lists(&mut self, time: BootNs, source: &str, all: &[&ContainerFacts]) {
        self.lists_what_it_read(time, time, source, all);
    }

    fn lists_what_it_read(&mut self, time: BootNs, read: BootNs, source: &str, all: &[&ContainerFacts]) {
        let containers = all.iter().map(|facts| by(source, facts)).collect();
        let runtime = "docker".to_owned();
        self.says(
            time,
            Fact::RuntimeSnapshot { runtime, source: source.to_owned(), read: Some(read), containers },
        );
    }

    fn loses(&mut self, time: BootNs, source: &str, facts: &ContainerFacts) {
        self.says(time, Fact::ContainerGone { id: facts.id.clone(), source: source.to_owned() });
    }

    fn kinds(&mut self) -> Vec<Kind> {
        kinds(&mut self.core)
    }

    fn count(&self) -> i64 {
        self.core.gauges().containers.values().sum()
    }

    /// Whether each container in the state is stale, by id.
    fn stale(&self) -> Vec<bool> {
        self.core.state(9).containers.iter().map(|place| place.stale).collect()
    }
}

fn kinds(core: &mut Core) -> Vec<Kind> {
    events(core).into_iter().map(|event| event.kind).collect()
}

fn up(source: &str) -> Fact {
    Fact::Source(SourceStatus::up(SourceKind::Runtime, source))
}

fn down(source: &str) -> Fact {
    Fact::Source(SourceStatus::down(SourceKind::Runtime, source, "gone"))
}

fn by(source: &str, facts: &ContainerFacts) -> ContainerFacts {
    ContainerFacts { source: source.to_owned(), ..facts.clone() }
}

fn running(digit: char) -> ContainerFacts {
    let Fact::Container(facts) = container(ContainerState::Running) else { unreachable!() };
    ContainerFacts { id: digit.to_string().repeat(64), pod: None, sandbox: false, ..*facts }
}

fn exited(facts: &ContainerFacts) -> ContainerFacts {
    ContainerFacts { state: ContainerState::Exited, tgid: None, ..facts.clone() }
}

#[test]
fn a_snapshot_replaces_only_what_came_through_its_own_socket() {
    let (a, b) = (running('a'), running('b'));
    let mut node = Node::watching(&[&a], &[&b]);
    for round in 1..4 {
        node.lists(round * 60 * SECOND, A, &[&a]);
        node.lists(round * 60 * SECOND, B, &[&b]);
    }
    assert_eq!(node.kinds(), []);
    assert_eq!(node.count(), 2);
    node.lists(300 * SECOND, B, &[]);
    assert_eq!(node.kinds(), [Kind::ContainerRemoved]);
    assert_eq!(node.core.state(9).containers[0].container.id, a.id);
}

#[test]
fn a_dead_socket_is_down_beside_one_that_is_up_and_its_containers_are_stale() {
    let (a, b) = (running('a'), running('b'));
    let mut node = Node::watching(&[&a], &[&b]);
    node.says(5, down(B));
    let event = &events(&mut node.core)[0];
    assert_eq!(event.kind, Kind::DaemonDegraded);
    let daemon = event.daemon.as_ref().unwrap();
    assert!(daemon.sources.contains_key(A) && !daemon.sources.contains_key(B), "{daemon:?}");
    assert_eq!(daemon.degraded.keys().collect::<Vec<_>>(), [B]);
    assert_eq!((node.count(), node.stale()), (2, vec![false, true]), "the last that was known stays");
    node.lists(60 * SECOND, A, &[&a]);
    assert_eq!((node.kinds(), node.count()), (vec![], 2));
}

#[test]
fn a_second_socket_that_was_never_up_does_not_show_as_up() {
    let mut node = Node::new();
    node.says(1, down(B));
    node.lists(2, A, &[&running('a')]);
    node.says(3, up(A));
    let ready = events(&mut node.core).remove(0);
    assert_eq!(
        (ready.kind, ready.message.as_str()),
        (Kind::DaemonReady, "ready without docker:/run/other.sock")
    );
}

#[test]
fn a_container_that_two_sockets_report_is_one() {
    let a = running('a');
    let mut node = Node::watching(&[&a], &[&a]);
    assert_eq!(node.count(), 1);
    assert_eq!(node.core.state(9).containers[0].sources, [A, B]);
    node.says(5, down(A));
    assert_eq!((node.kinds(), node.stale()), (vec![Kind::DaemonDegraded], vec![false]));
}

#[test]
fn its_lifecycle_is_emitted_once_whichever_socket_is_ahead() {
    for (first, second) in [(A, B), (B, A)] {
        let (a, mut node) = (running('a'), Node::watching(&[], &[]));
        let created = ContainerFacts { state: ContainerState::Created, tgid: None, ..a.clone() };
        let life = [(10, created), (20, a.clone()), (30, exited(&a)), (40, a.clone()), (50, exited(&a))];
        // Conversion to the boot clock differs by some nanoseconds each time.
        for (time, facts) in &life {
            node.reports(time * MS, first, facts);
        }
        for (time, facts) in &life[..4] {
            node.reports(time * MS + 700, second, facts);
        }
        node.reports(50 * MS - 700, second, &life[4].1);
        let once = [
            Kind::ContainerCreated,
            Kind::ContainerStarted,
            Kind::ContainerExited,
            Kind::ContainerStarted,
            Kind::ContainerExited,
        ];
        assert_eq!(node.kinds(), once);
        node.loses(60 * MS, first, &a);
        assert_eq!((node.kinds(), node.count()), (vec![Kind::ContainerRemoved], 0));
        node.loses(60 * MS + 700, second, &a);
        assert_eq!((node.kinds(), node.count()), (vec![], 0));
    }
}

#[test]
fn what_the_first_list_of_a_second_socket_knows_sooner_is_news() {
    let (a, b) = (running('a'), running('b'));
    let mut node = Node::new();
    node.lists(1, A, &[&a]);
    node.says(2, up(A));
    node.lists(3, B, &[&exited(&a), &b]);
    node.reports(4, A, &exited(&a));
    assert_eq!(node.kinds(), [Kind::ContainerExited]);
}

#[test]
fn a_socket_that_lags_behind_brings_no_container_back() {
    let a = running('a');
    let mut node = Node::watching(&[&a], &[&a]);
    node.reports(10 * SECOND, A, &exited(&a));
    // Listed before it exited, delivered after.
    node.lists_what_it_read(10 * SECOND + 5, 10 * SECOND - 5, B, &[&a]);
    assert_eq!(node.kinds(), [Kind::ContainerExited]);
    node.loses(11 * SECOND, A, &a);
    node.reports(11 * SECOND - 5, B, &a);
    node.lists(11 * SECOND + 5, B, &[&exited(&a)]);
    node.loses(11 * SECOND + 9, B, &a);
    assert_eq!((node.kinds(), node.count()), (vec![Kind::ContainerRemoved], 0));
    // One that is not even known through the second socket before it is gone from the first.
    let b = running('b');
    node.reports(12 * SECOND, A, &b);
    node.loses(13 * SECOND, A, &b);
    node.reports(12 * SECOND + 7, B, &b);
    assert_eq!(node.kinds(), [Kind::ContainerStarted, Kind::ContainerRemoved]);
}

#[test]
fn two_sockets_that_disagree_do_not_have_a_container_exit_with_each_list() {
    let a = running('a');
    // Nobody could look for its process.
    let unseen = ContainerFacts { started_ns: None, ..a.clone() };
    for (shown, on_a, on_b) in [(true, &a, &exited(&a)), (false, &unseen, &exited(&a))] {
        let mut node = Node::watching(&[on_a], &[]);
        let states = |node: &Node| node.core.state(9).containers.remove(0).container.state;
        for round in 1..6 {
            node.lists(round * 60 * SECOND, A, &[on_a]);
            node.lists(round * 60 * SECOND + 5, B, &[on_b]);
        }
        // What the second one says first may be news; the process that still runs shows that it is not.
        let (kinds, state) = match shown {
            true => (vec![Kind::ContainerExited, Kind::ContainerStarted], "running"),
            false => (vec![Kind::ContainerExited], "exited"),
        };
        assert_eq!((node.kinds(), states(&node).as_deref()), (kinds, Some(state)));
        // Whichever of them is the first to change: that is news.
        let (source, facts, kind) = match shown {
            true => (A, exited(&a), Kind::ContainerExited),
            false => (B, a.clone(), Kind::ContainerStarted),
        };
        node.reports(400 * SECOND, source, &facts);
        assert_eq!(node.kinds(), [kind]);
        for round in 7..9 {
            node.lists(round * 60 * SECOND, A, &[if shown { &facts } else { on_a }]);
            node.lists(round * 60 * SECOND + 5, B, &[if shown { on_b } else { &facts }]);
        }
        assert_eq!(node.kinds(), [], "they agree");
        node.reports(600 * SECOND, B, &exited(&a));
        node.reports(600 * SECOND + 5, A, &exited(&a));
        node.reports(601 * SECOND, A, &ContainerFacts { tgid: Some(99), ..a.clone() });
        let next = [Kind::ContainerExited, Kind::ContainerStarted];
        assert_eq!(node.kinds(), next[usize::from(shown)..], "the next run is news, too");
    }
}

#[test]
fn a_container_that_another_socket_lists_long_after_its_removal_exists() {
    let a = running('a');
    let mut node = Node::watching(&[&a], &[&a]);
    // A proxy that may show it no longer.
    node.lists(60 * SECOND, A, &[]);
    node.lists(61 * SECOND, B, &[&a]);
    assert_eq!((node.kinds(), node.count()), (vec![Kind::ContainerRemoved], 0));
    node.lists(121 * SECOND, B, &[&a]);
    node.lists(122 * SECOND, A, &[]);
    assert_eq!((node.kinds(), node.count()), (vec![Kind::ContainerStarted], 1));
    assert_eq!(node.core.state(9).containers[0].sources, [B]);
}

#[test]
fn the_first_source_describes_a_container_and_any_reports_its_state() {
    let cri = "cri:/run/containerd.sock";
    let a = running('a');
    let mut node = Node::watching(&[&a], &[]);
    let other = ContainerFacts { name: "etcd".into(), runtime: "other".into(), tgid: None, ..a.clone() };
    node.reports(10 * SECOND, cri, &other);
    let known = |node: &Node| node.core.state(9).containers.remove(0).container;
    assert_eq!(known(&node).name.as_deref(), Some(a.name.as_str()));
    assert_eq!((known(&node).runtime.as_deref(), known(&node).pid), (Some("docker"), a.tgid));
    node.reports(20 * SECOND, cri, &exited(&other));
    assert_eq!(node.kinds(), [Kind::ContainerExited]);
    assert_eq!((known(&node).name.as_deref(), known(&node).pid), (Some(a.name.as_str()), None));
}

#[test]
fn an_unknown_container_may_belong_to_the_runtime_that_is_down() {
    let mut node = Node::watching(&[], &[]);
    assert_eq!(node.core.runtimes(), RuntimeAvailability::All);
    node.says(5, down(B));
    assert_eq!(node.core.runtimes(), RuntimeAvailability::Some);
    node.says(6, down(A));
    assert_eq!(node.core.runtimes(), RuntimeAvailability::None);
}

#[test]
fn a_runtime_that_nobody_named_and_that_was_never_found_is_none() {
    let mut node = Node::watching(&[], &[]);
    let vacant = |source: &str| {
        let down = SourceStatus::down(SourceKind::Runtime, source, "there is no socket");
        Fact::Source(SourceStatus { vacant: true, ..down })
    };
    node.says(5, vacant(B));
    assert_eq!(node.core.runtimes(), RuntimeAvailability::All, "the other one is all there is");
    node.says(6, vacant(A));
    assert_eq!(node.core.runtimes(), RuntimeAvailability::Absent);
    node.says(7, down(A));
    assert_eq!(node.core.runtimes(), RuntimeAvailability::None);
}

#[test]
fn the_sources_of_a_container_are_saved_and_restored() {
    let a = running('a');
    let mut node = Node::watching(&[&a], &[&a]);
    node.loses(11 * SECOND, A, &a);
    let saved = serde_json::to_string(&node.core.save().unwrap()).unwrap();
    let mut resumed =
        Core::restore(node.core.settings().clone(), serde_json::from_str(&saved).unwrap()).unwrap();
    for core in [&mut node.core, &mut resumed] {
        kinds(core);
        core.observe(at(12 * SECOND, Fact::Container(Box::new(by(B, &a)))));
        assert_eq!(kinds(core), [], "the second socket lags behind");
    }
    assert_same(&resumed, &node.core, "a container of two sources");
}

#[test]
fn the_state_of_a_container_has_its_attempt_and_the_hash_of_its_specification() {
    let mut core = core();
    let Fact::Container(mut facts) = container(ContainerState::Running) else { unreachable!() };
    (facts.incarnation.attempt, facts.incarnation.spec_hash) = (Some(2), Some(0x5cf0_cfcf));
    core.observe(at(1, Fact::Container(facts)));
    let state = core.state(2);
    let [container] = &state.containers[..] else { panic!("{state:?}") };
    let hash = container.spec_hash.clone().unwrap();
    assert_eq!((container.attempt, &*hash.hex, &*hash.decimal), (Some(2), "5cf0cfcf", "1559285711"));
}

const UID: &str = "5c948341-c030-4996-b888-f032577d97b0";

/// A namespace with a process of this control group.
fn lived_in(netns: NsInum, cgroup: &str) -> Fact {
    let owner = NetnsOwner { tgid: 16_707, start_ns: 5, comm: "pause".into(), cgroup: Some(cgroup.into()) };
    Fact::Netns(Box::new(NetnsSnapshot { owner: Some(owner), ..NetnsSnapshot::empty(netns) }))
}

fn directory_of(uid: &str) -> PodRemains {
    PodRemains {
        uid: uid.into(),
        directory: format!("/var/lib/kubelet/pods/{uid}"),
        mntns: 2,
        cgroup: PodCgroup::Populated,
        name: Some(("lijiaob".into(), "web-0".into())),
        ..PodRemains::default()
    }
}

#[test]
fn pods_are_known_by_their_processes_and_directories_while_no_runtime_answers() {
    use state::KnownBy::{Cgroup, Directory, Runtime};
    let mut core = core();
    core.observe(at(1, status("netlink", true)));
    core.observe(at(1, status("docker", false)));
    core.observe(at(2, snapshot(HOST)));
    let cgroup = format!("/kubepods/burstable/pod{UID}/{ID}");
    core.observe(at(2, lived_in(POD, &cgroup)));
    // Users may name control groups of their own as they like.
    let Fact::Netns(of_user) = lived_in(8, &format!("/user.slice{}", cgroup.replace("5c94", "6c94"))) else {
        unreachable!()
    };
    core.observe(at(2, Fact::Netns(Box::new(NetnsSnapshot { foreign_userns: true, ..*of_user }))));
    let pods = |core: &Core| {
        let name = |pod: &state::PodStatus| pod.pod.name.clone().unwrap_or_default();
        let state = core.state(3);
        state.pods.iter().map(|pod| (name(pod), pod.known_by, pod.netns)).collect::<Vec<_>>()
    };
    assert_eq!(pods(&core), [(String::new(), Cgroup, Some(POD))]);
    let state = core.state(3);
    assert_eq!((state.pods[0].pod.uid.as_str(), &state.pods[0].containers[..]), (UID, &[ID.to_owned()][..]));
    assert_eq!(state.pods_incomplete().as_deref(), Some("no container runtime answers (docker: gone)"));
    core.observe(at(4, Fact::PodRemains { pods: vec![directory_of("dd"), directory_of(UID)] }));
    let by_directory = ("web-0".to_owned(), Directory, None);
    assert_eq!(pods(&core), [("web-0".to_owned(), Cgroup, Some(POD)), by_directory.clone()]);
    // The runtime is back, and knows one of them.
    core.observe(at(5, container(ContainerState::Running)));
    core.observe(at(5, status("docker", true)));
    assert_eq!(pods(&core), [("etcd1-0".to_owned(), Runtime, Some(POD))]);
    assert_eq!(core.state(6).pods_incomplete(), None);
}

#[test]
fn the_pod_of_a_sandbox_is_named_as_its_network_was_asked_for_while_no_runtime_answers() {
    let name = |called: &str, uid: Option<&str>| {
        let mut core = core();
        core.observe(at(1, status("docker", false)));
        core.observe(at(2, lived_in(POD, &format!("/kubepods/burstable/pod{UID}/{ID}"))));
        core.observe(at(2, task("/system.slice/kubelet.service")));
        let actor = TaskRef { key: key(), tid: 28_997, comm: "calico".into(), context: None };
        let exec = CniExec {
            actor,
            plugin: "/opt/cni/bin/calico".into(),
            command: CniCommand::Add,
            container_id: Some(called.into()),
            netns: None,
            ifname: Some("eth0".into()),
            pod: Some(CniPod {
                namespace: "lijiaob".into(),
                name: "etcd1-0".into(),
                uid: uid.map(str::to_owned),
            }),
            truncated: false,
        };
        core.observe(at(3, Fact::CniExec(Box::new(exec))));
        core.state(4).pods.remove(0).pod.name
    };
    assert_eq!(name(ID, None).as_deref(), Some("etcd1-0"));
    assert_eq!(name(ID, Some(UID)).as_deref(), Some("etcd1-0"));
    assert_eq!(name(ID, Some("another")), None);
    assert_eq!(name(&"a".repeat(64), None), None, "of another sandbox");
}

#[test]
fn a_pod_that_no_runtime_tells_has_the_name_that_its_kubelet_tells() {
    let mut core = core();
    core.observe(at(1, status("docker", false)));
    core.observe(at(2, lived_in(POD, &format!("/kubepods/burstable/pod{UID}/{ID}"))));
    let name = |core: &Core| core.state(4).pods.remove(0).pod.name;
    assert_eq!(name(&core), None);
    let pod =
        KubeletPod { uid: UID.into(), namespace: "lijiaob".into(), name: "etcd1-0".into(), ends_s: None };
    core.observe(at(3, Fact::KubeletPods { pods: vec![pod], all: false }));
    assert_eq!(name(&core).as_deref(), Some("etcd1-0"));
}
