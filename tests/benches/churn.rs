//! What many containers cost, and whether any is missed when they come and go: 250 of three runtimes that run all the time, and
//! 50 more each second that are started, delete a neighbor entry at once, and are removed.
//!
//! The runtimes are sockets of this process; the processes of the containers, their control groups and what they do are real.
//! Then the same with a Docker daemon, which starts and removes as many as it can.
//!
//! It takes some thousand containers until all that is bounded is full: what is remembered of removed containers, the events
//! in memory, and the store, which is the last. Only after that does memory show whether it grows, and that is told by itself.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "it prints figures, measures over a span of time, and a set-up that fails must end it"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use kevtmon_tests::actor::Actor;
use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS};
use kevtmon_tests::dockerd::{Dockerd, IMAGE};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::fake_dockerd::FakeDockerd;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::process::{Running, idle};
use kevtmon_tests::random::rounds;
use kevtmon_tests::storm::ipv4;
use kevtmon_tests::unique;
use kevtmon_tests::usage::Usage;

const RUNTIMES: usize = 3;
const CONTAINERS: usize = 250;
const SETTLE: Duration = Duration::from_secs(10);
const CHURN: Duration = Duration::from_secs(60);
const PER_SECOND: u32 = 50;
/// Unless `KEVTMON_TEST_ROUNDS` says otherwise. About half of them fill the store.
const ROUNDS: u64 = 10;
/// Threads that start and remove containers.
const WORKERS: u32 = 5;
/// Clients of the Docker daemon at once: more make it no faster.
const WORKERS_OF_DOCKER: usize = 4;
/// How long a container is there after it has acted.
const LIFE: Duration = Duration::from_millis(20);

fn main() -> io::Result<()> {
    let runtimes: Vec<FakeDockerd> = (0..RUNTIMES).map(|_| FakeDockerd::start()).collect();
    let processes: Vec<Running> = (0..CONTAINERS).map(|_| Running::spawn(&mut idle())).collect();
    for (process, runtime) in processes.iter().zip(runtimes.iter().cycle()) {
        runtime.put(&unique::container_id(), process.pid());
    }
    let [first, others @ ..] = &runtimes[..] else { unreachable!("there are three") };
    let usage = Usage::new();
    let launch = others.iter().fold(usage.launch().runtime(first.runtime()), |launch, other| {
        launch.argument("--runtime").argument(other.runtime())
    });
    let daemon = launch.config(WITHOUT_BUDGETS).start();
    let running = || daemon.metrics().count("kevtmon_containers", &[("state", "running")]);
    eventually!(running() >= CONTAINERS as f64, "all containers are known");
    let spans = runtimes.iter().filter_map(FakeDockerd::asked);
    let (from, to) =
        spans.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))).expect("they were asked");
    let inspects: usize = runtimes.iter().map(FakeDockerd::inspects).sum();
    println!("{CONTAINERS} containers of {RUNTIMES} runtimes: {inspects} inspected within {:?}", to - from);
    sleep(SETTLE);
    println!("  memory: {}", usage.memory(&daemon)?);
    let mut after = Vec::new();
    for _ in 0..rounds(ROUNDS) {
        after.push(churn(&daemon, &usage, &runtimes)?);
    }
    tell_growth(&after);
    drop(daemon);
    churn_of_docker()
}

/// A control group for the containers, in which each has its own.
struct Place {
    parent: Cgroup,
    /// In whose network they act: it is none of theirs, so that nothing in it ends with them.
    pod: Pod,
}

/// What there is a minute after a round.
#[derive(Clone, Copy)]
struct After {
    /// Private memory of the daemon, in KiB.
    anonymous: f64,
    /// Bytes of the store.
    stored: f64,
}

impl After {
    fn of(daemon: &Daemon) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid()))?;
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let anonymous = anonymous.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let stored = daemon.metrics().count("kevtmon_store_bytes", &[]);
        Ok(Self { anonymous: anonymous.expect("the kernel tells it"), stored })
    }

    /// Whether the store has not grown since the round before, but for its log.
    fn is_full(self, before: Self) -> bool {
        self.stored < before.stored * 1.1
    }
}

/// How memory grows from round to round, once nothing is left to be filled: the slope of the line that fits best.
fn tell_growth(after: &[After]) {
    let full = after.windows(2).position(|two| two[1].is_full(two[0])).map(|index| index + 1);
    let Some(full) = full.filter(|full| after.len() > full + 1) else {
        println!("memory: too few rounds to tell whether it grows once all that is bounded is full");
        return;
    };
    let since = &after[full..];
    let middle = (since.len() - 1) as f64 / 2.0;
    let deviations = since.iter().enumerate().map(|(index, after)| (index as f64 - middle, after.anonymous));
    let (above, below) = deviations.fold((0.0, 0.0), |(above, below), (by, anonymous)| {
        (by.mul_add(anonymous, above), by.mul_add(by, below))
    });
    let least = since.iter().map(|after| after.anonymous).fold(f64::INFINITY, f64::min);
    let most = since.iter().map(|after| after.anonymous).fold(0.0, f64::max);
    println!(
        "memory: the store is full from round {} on; RssAnon a minute after that round and the {} that followed: {least} to \
         {most} kB, by {:+.0} kB from one to the next",
        full + 1,
        since.len() - 1,
        above / below
    );
}

fn churn(daemon: &Daemon, usage: &Usage, runtimes: &[FakeDockerd]) -> io::Result<After> {
    let hierarchy = *Hierarchy::all().first().expect("there are control groups");
    let place = Place { parent: Cgroup::new(hierarchy), pod: Pod::new() };
    let number = PER_SECOND * u32::try_from(CHURN.as_secs()).expect("a short time");
    place.pod.netns().network(|network| network.set_neighbors("eth0", (0..number).map(ipv4)));
    daemon.wait_for_netns(place.pod.inum());
    eventually!(runtimes.iter().all(FakeDockerd::is_followed), "events are read");
    let (busy, began) = (usage.processor_seconds(), Instant::now());
    let ids: Vec<String> = (0..number).map(|_| unique::container_id()).collect();
    scope(|scope| {
        for worker in 0..WORKERS {
            let (place, ids) = (&place, &ids);
            scope.spawn(move || {
                for index in (worker..number).step_by(WORKERS as usize) {
                    sleep((began + CHURN * index / number).saturating_duration_since(Instant::now()));
                    let runtime = &runtimes[index as usize % RUNTIMES];
                    live(place, runtime, &ids[index as usize], &ipv4(index).to_string());
                }
            });
        }
        for quarter in 1..4 {
            sleep((began + CHURN * quarter / 4).saturating_duration_since(Instant::now()));
            println!("  after {} containers: {}", number * quarter / 4, usage.memory(daemon)?);
        }
        io::Result::Ok(())
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let busy = (usage.processor_seconds() - busy) / seconds;
    let deletions = || {
        let all = daemon.events().into_iter().filter(|event| event.kind() == "neighbor.deleted");
        all.filter(|event| event.is_in(place.pod.inum())).collect::<Vec<_>>()
    };
    eventually!(deletions().len() >= number as usize, "all deletions are told");
    let (mut named, mut late) = (0, 0);
    for event in deletions() {
        let index = (0..number).find(|index| ipv4(*index).to_string() == event.text("/neighbor/address"));
        let id = index.map(|index| &ids[index as usize]);
        let is_named = id.is_some_and(|id| event.text("/actor/container/id") == id);
        named += u32::from(is_named && event.text("/actor/join") != "missed");
        late += u32::from(is_named && event.text("/actor/join") == "late");
    }
    println!(
        "{number} containers started and removed in {seconds:.1} s ({:.1}/s): {named} named ({:.2} %), {late} of them late",
        f64::from(number) / seconds,
        100.0 * f64::from(named) / f64::from(number)
    );
    println!("  processor: {:.1} % of a core; memory: {}", 100.0 * busy, usage.memory(daemon)?);
    sleep(CHURN);
    let after = After::of(daemon)?;
    println!(
        "  a minute later: {}; store {:.1} MiB",
        usage.memory(daemon)?,
        after.stored / f64::from(1 << 20)
    );
    Ok(after)
}

/// As many containers as a Docker daemon can start and remove, each of which deletes an entry of its own network.
fn churn_of_docker() -> io::Result<()> {
    let (dockerd, scratch) = (Dockerd::start(), Scratch::new());
    let usage = Usage::new();
    let daemon = usage.launch().runtime(dockerd.runtime()).config(WITHOUT_BUDGETS).start();
    let (next, began) = (AtomicU32::new(0), Instant::now());
    let run = || {
        let mut ids = BTreeMap::new();
        while began.elapsed() < CHURN {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (address, file) = (ipv4(index).to_string(), scratch.path().join(index.to_string()));
            let script = format!(
                "ip=/bin/ip; $ip link add eth0 type veth peer name eth1 && $ip link set eth0 up && \
                 $ip neigh add {address} lladdr 02:00:00:00:00:01 nud permanent dev eth0 && \
                 $ip neigh del {address} dev eth0"
            );
            let cidfile = format!("--cidfile={}", file.display());
            let options = ["--rm", &cidfile, "--network", "none", "--cap-add", "NET_ADMIN", IMAGE];
            dockerd.docker(&[&["run"][..], &options, &["sh", "-c", &script]].concat());
            ids.insert(address, fs::read_to_string(file)?);
        }
        io::Result::Ok(ids)
    };
    let ids: BTreeMap<String, String> = scope(|scope| {
        let workers: Vec<_> = (0..WORKERS_OF_DOCKER).map(|_| scope.spawn(run)).collect();
        let joined = workers.into_iter().map(|worker| worker.join().expect("no worker panics"));
        joined.collect::<io::Result<Vec<_>>>().map(|all| all.into_iter().flatten().collect())
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let named = || {
        let events = daemon.events().into_iter().filter(|event| event.kind() == "neighbor.deleted");
        let is_of_it = |event: &Event| {
            let id = ids.get(event.text("/neighbor/address"));
            id.map(String::as_str) == Some(event.text("/actor/container/id"))
                && event.text("/actor/join") != "missed"
        };
        events.filter(is_of_it).count()
    };
    let last = || daemon.metrics().count("kevtmon_containers", &[("state", "running")]);
    eventually!(last() < 0.5, "all removed containers are known to be so");
    let number = ids.len();
    println!(
        "dockerd: {number} containers started and removed in {seconds:.1} s ({:.1}/s): {} named ({:.2} %)",
        number as f64 / seconds,
        named(),
        100.0 * named() as f64 / number as f64
    );
    println!("  memory: {}", usage.memory(&daemon)?);
    Ok(())
}

/// The life of one container.
fn live(place: &Place, runtime: &FakeDockerd, id: &str, address: &str) {
    let group = place.parent.procs().with_file_name(id);
    fs::create_dir(&group).expect("a control group can be made");
    let mut init = Actor::start();
    fs::write(group.join("cgroup.procs"), init.pid().to_string()).expect("it can be moved");
    runtime.start_container(id, init.pid());
    let netns = place.pod.netns().path().display();
    init.act(&format!("run nsenter --net={netns} ip neigh del {address} dev eth0"));
    sleep(LIFE);
    drop(init);
    runtime.remove_container(id);
    eventually!(fs::remove_dir(&group).is_ok(), "the control group is empty");
}
