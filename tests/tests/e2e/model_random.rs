//! Thousands of random changes of links, addresses, routes and neighbor entries in several namespaces: the model is what the
//! kernel lists in the end, and whoever is named is who did it. Also where messages of the kernel were lost, where the daemon
//! starts meanwhile, and where namespaces and indexes are used again.
//!
//! The seeds are those that once showed something false. `KEVTMON_TEST_SEED` is another one (`random`: another one each time,
//! which is printed), `KEVTMON_TEST_ROUNDS` makes it longer.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::patience::within_patience;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::process::Finished;
use kevtmon_tests::random::{Random, rounds, seeds};
use nix::sys::signal::Signal;

mod kernel;
mod script;

use script::{Script, Thing};

const SEEDS: [u64; 2] = [4_711, 1_335_699_881_375_521];
/// Namespaces in which something is changed, by one process each at a time.
const NAMESPACES: usize = 4;
/// Of each seed, each with a script for each namespace.
const ROUNDS: u64 = 6;
/// Lines of a script.
const LINES: usize = 80;
/// Addresses that come and go while the daemon does not read: in all namespaces more messages than any receive buffer of it has
/// room for.
const BURST: usize = 12_000;

/// Who did something to what: processes, by namespace and thing.
type Deeds = BTreeMap<(u64, Thing), BTreeSet<u64>>;

struct World {
    random: Random,
    pods: Vec<Pod>,
    scripts: u64,
    deeds: Deeds,
}

impl World {
    fn new(random: Random) -> Self {
        let pods = (0..NAMESPACES).map(|_| Pod::new()).collect();
        Self { random, pods, scripts: 0, deeds: Deeds::new() }
    }

    /// One script for each namespace.
    fn scripts(&mut self) -> Vec<Script> {
        let names: Vec<String> = self.pods.iter().map(|pod| pod.netns_name().to_owned()).collect();
        let mut make = || {
            self.scripts += 1;
            Script::new(&mut self.random, self.scripts, LINES, &names)
        };
        (0..NAMESPACES).map(|_| make()).collect()
    }

    /// One process in each namespace, all at once, and who they were.
    fn run(&mut self, scripts: &[Script], meanwhile: impl FnOnce()) {
        let done: Vec<(u64, u32)> = thread::scope(|scope| {
            let run = |(pod, script): (&Pod, &Script)| {
                let (netns, text) = (pod.netns().clone(), script.text());
                scope.spawn(move || (netns.inum(), forced(&netns, &text).pid))
            };
            let all: Vec<_> = self.pods.iter().zip(scripts).map(run).collect();
            meanwhile();
            all.into_iter().map(|one| one.join().expect("no script panics")).collect()
        });
        for ((inum, pid), script) in done.into_iter().zip(scripts) {
            for thing in script.things() {
                self.deeds.entry((inum, thing.clone())).or_default().insert(pid.into());
            }
        }
    }

    /// Where the model is not what the kernel lists.
    fn differences(&self, daemon: &Daemon) -> Vec<String> {
        let mut differences = Vec::new();
        for pod in &self.pods {
            match daemon.model_of(pod.inum()) {
                Some(model) => differences.extend(kernel::differences(pod, &model)),
                None => differences.push(format!("{} is not known", pod.inum())),
            }
        }
        differences
    }

    #[track_caller]
    fn expect_equal(&self, daemon: &Daemon, when: &str) {
        let is_equal = within_patience(|| self.differences(daemon).is_empty().then_some(()));
        let seed = self.random.seed();
        assert!(is_equal.is_some(), "{when}, KEVTMON_TEST_SEED={seed}: {:#?}", self.differences(daemon));
    }

    /// Nobody is named for what he did not do; and how many are named.
    fn expect_no_wrong_name(&self, events: &[Event]) -> usize {
        let mut named = 0;
        let ours: BTreeSet<u64> = self.pods.iter().map(Pod::inum).collect();
        for event in events {
            let is_ours = |(netns, _): &(u64, Thing)| ours.contains(netns) && event.is_in(*netns);
            let Some((netns, thing)) = thing_of(event).filter(is_ours) else {
                continue;
            };
            let (Some(pid), Some(who)) = (event.number("/actor/pid"), self.deeds.get(&(netns, thing))) else {
                continue;
            };
            assert!(who.contains(&pid), "KEVTMON_TEST_SEED={}: it was {who:?}: {event}", self.random.seed());
            named += 1;
        }
        named
    }
}

/// What an event is about.
fn thing_of(event: &Event) -> Option<(u64, Thing)> {
    match event.kind() {
        "link.created" | "link.deleted" | "link.changed" | "link.moved" => {
            Some((event.number("/link/netns")?, Thing::Link(event.text("/link/ifname").to_owned())))
        }
        "neighbor.deleted" | "neighbor.changed" => Some((
            event.number("/neighbor/netns")?,
            Thing::Neighbor(event.text("/neighbor/address").to_owned()),
        )),
        _ => None,
    }
}

/// One `ip` process that executes all lines, and goes on after one that is refused.
fn forced(netns: &NetnsPath, text: &str) -> Finished {
    netns.ip(&["-force", "-batch", "-"], text)
}

fn overruns(daemon: &Daemon) -> f64 {
    daemon.metrics().count("kevtmon_netlink_resyncs_total", &[("reason", "overrun")])
}

/// Addresses that come and go, of which a few stay; so many that not all messages about them are kept for who does not read.
fn burst(number: usize) -> String {
    let address =
        |index: usize| format!("10.{}.{}.{}/32 dev eth0", 100 + number, index / 250, index % 250 + 1);
    let all = (0..BURST).flat_map(|index| {
        let gone = (index % 1_000 != 0).then(|| format!("address del {}", address(index)));
        std::iter::once(format!("address add {}", address(index))).chain(gone)
    });
    all.collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn the_model_is_what_the_kernel_lists_and_nobody_is_named_who_did_not_do_it() {
    for random in seeds(&SEEDS) {
        let mut world = World::new(random);
        // It starts in the middle of that.
        let scripts = world.scripts();
        let mut started = None;
        world.run(&scripts, || started = Some(launch().config(WITHOUT_BUDGETS).start()));
        let daemon = started.expect("it was started");
        world.expect_equal(&daemon, "after the start");
        for _ in 0..rounds(ROUNDS) {
            let scripts = world.scripts();
            world.run(&scripts, || {});
        }
        world.expect_equal(&daemon, "after all rounds");
        let deleted = |events: &[Event]| {
            let of_us =
                |event: &&Event| thing_of(event).is_some_and(|thing| world.deeds.contains_key(&thing));
            events.iter().filter(of_us).filter(|event| event.kind() == "neighbor.deleted").count()
        };
        eventually!(deleted(&daemon.events()) > 0, "deletions are told");
        let named = world.expect_no_wrong_name(&daemon.events());
        assert!(named > 0, "nobody was named at all");
    }
}

#[test]
fn after_messages_were_lost_the_model_is_what_the_kernel_lists_again() {
    for random in seeds(&SEEDS).into_iter().take(1) {
        let mut world = World::new(random);
        let mut daemon = launch().config(WITHOUT_BUDGETS).start();
        world.pods[0].ip("link add lost type veth peer name lost-too");
        world.expect_equal(&daemon, "at the start");
        let before = overruns(&daemon);
        daemon.signal(Signal::SIGSTOP);
        let texts: Vec<String> = (0..NAMESPACES).map(burst).collect();
        thread::scope(|scope| {
            for (pod, text) in world.pods.iter().zip(&texts) {
                scope.spawn(move || forced(pod.netns(), text));
            }
        });
        world.pods[0].ip("link del lost");
        let scripts = world.scripts();
        world.run(&scripts, || {});
        // Its inode, its number in the host's namespace and its indexes may be those of the next one.
        let mut gone = world.pods.pop().expect("there are some");
        let (inum, indexes) = (gone.inum(), kernel::links(gone.netns()));
        gone.delete_netns();
        drop(gone);
        let next = Pod::new();
        next.ip("address add 10.200.0.1/32 dev eth0");
        world.deeds.retain(|(netns, _), _| *netns != inum);
        assert!(!indexes.is_empty());
        world.pods.push(next);
        daemon.signal(Signal::SIGCONT);
        eventually!(overruns(&daemon) > before, "messages were lost");
        // No message told of it: it is found by what the kernel lists, and nobody is named.
        let gone = daemon.wait_for("the link that was deleted meanwhile", |event| {
            event.kind() == "link.deleted" && event.text("/link/ifname") == "lost"
        });
        gone.expect("/resync", true);
        gone.expect_none("/actor");
        world.expect_equal(&daemon, "after the loss");
        world.expect_no_wrong_name(&daemon.events());
        // It goes on as if nothing had been.
        let scripts = world.scripts();
        world.run(&scripts, || {});
        world.expect_equal(&daemon, "after the loss and another round");
        world.expect_no_wrong_name(&daemon.events());
    }
}

#[test]
fn a_namespace_and_an_index_that_are_used_again_are_taken_for_the_new_ones() {
    let daemon = launch().config(WITHOUT_BUDGETS).start();
    for turn in 0..12 {
        let pod = Pod::new();
        // The same index, another link.
        pod.ip(&format!("link add a{turn} index 900 type veth peer name b{turn} index 901"));
        pod.ip(&format!("link del a{turn}"));
        pod.ip(&format!("link add c{turn} index 900 type veth peer name d{turn} index 901"));
        pod.ip(&format!("address add 10.201.{turn}.1/32 dev c{turn}"));
        let differences = || match daemon.model_of(pod.inum()) {
            Some(model) => kernel::differences(&pod, &model),
            None => vec!["it is not known".to_owned()],
        };
        let is_equal = within_patience(|| differences().is_empty().then_some(()));
        assert!(is_equal.is_some(), "turn {turn}: {:#?}", differences());
        let model = daemon.model_of(pod.inum()).expect("it is known");
        assert!(
            model["links"]
                .as_array()
                .is_some_and(|links| links.iter().any(|link| link["ifname"] == *format!("c{turn}")))
        );
    }
}
