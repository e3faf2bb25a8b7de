//! Random routes, rules, tables, nexthop objects, links and addresses, random moves and deletions: what the daemon says
//! about gateways is compared with the routes that the kernel itself selects.
//!
//! The seeds are those that once showed something false. `KEVTMON_TEST_SEED` is another one (`random`: another one each time,
//! which is printed), `KEVTMON_TEST_ROUNDS` makes it longer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::patience::within_patience;
use kevtmon_tests::random::{Random, rounds, seeds};
use serde_json::Value;

mod change;
mod world;

use change::{change, disturbance};
use world::{Gateway, World};

const KIND: &str = "gateway-neighbor-lost";
const SEEDS: [u64; 8] = [
    229_788_237_943_525, 1_335_699_881_375_521, 1_773_831_872_976_622, 1_927_846_660_972_653_366,
    5_954_166_462_780_826, 7_378_285_383_166_027, 10_942_171_922_790_830, 15_071_135_612_649_147,
];
/// Of each of them.
const ROUNDS: u64 = 16;
/// An end of the test, whatever the machine is doing.
const LIMIT: Duration = Duration::from_secs(40);
/// So that what is lost for a while is confirmed within the test.
const IMPATIENT: &str = "[incidents]\ngateway_teardown_seconds = 1\ngateway_confirm_seconds = 1\n";
/// A route that was deleted by itself so shortly before its link may have gone with it.
const TOGETHER: Duration = Duration::from_secs(3);
/// A namespace is read again after this time at the latest: once a second, and a reading takes its time.
const READ_AGAIN: Duration = Duration::from_millis(1500);

/// A run of the test.
struct Run {
    random: Random,
    world: World,
    daemon: Daemon,
    history: Vec<String>,
    /// Gateways that went with their link or address: those that are missed for certain as long as packets have no other one,
    /// and those that may be.
    stranded: BTreeSet<Gateway>,
    perhaps_stranded: BTreeSet<Gateway>,
    /// Those that came into use when their entry had gone: that the kernel has to resolve them is no loss.
    unresolved: BTreeSet<Gateway>,
    /// All that ever went so.
    disturbed: BTreeSet<Gateway>,
    /// Those that were in use at a time.
    lately: Vec<(Instant, BTreeSet<Gateway>)>,
    /// Losses of which nothing was said at once, since routes had not been heard of.
    unsaid: BTreeSet<Gateway>,
    /// When rules changed: they are read again, and a route that goes before that was never known to be used.
    ruled: Option<Instant>,
    paused: usize,
    unknown: usize,
}

fn is_v6(gateway: &Gateway) -> bool {
    gateway.1.contains(':')
}

/// The gateways of the incidents that are open, by what was printed.
fn open(events: &[Event], world: &World) -> BTreeMap<Gateway, Event> {
    let mut open = BTreeMap::new();
    for event in events.iter().filter(|event| event.is_in(world.inum())) {
        if event.is_incident("incident.opened", KIND) {
            open.insert(gateway_of(event), event.clone());
        } else if event.is_incident("incident.closed", KIND) {
            open.remove(&gateway_of(event));
        }
    }
    open
}

fn gateway_of(event: &Event) -> Gateway {
    (event.text("/neighbor/ifname").to_owned(), event.text("/neighbor/address").to_owned())
}

impl Run {
    fn new(mut random: Random) -> Self {
        let mut world = World::new(random.below(2) == 1);
        world.repair();
        Self {
            history: vec![format!("KEVTMON_TEST_SEED={}", random.seed())],
            random,
            world,
            daemon: launch().config(IMPATIENT).start(),
            stranded: BTreeSet::new(),
            perhaps_stranded: BTreeSet::new(),
            unresolved: BTreeSet::new(),
            disturbed: BTreeSet::new(),
            lately: Vec::new(),
            unsaid: BTreeSet::new(),
            ruled: None,
            paused: 0,
            unknown: 0,
        }
    }

    fn shown(&self) -> String {
        format!("{}\nwith\n{}", self.history.join("\n"), self.world.shown(&self.daemon))
    }

    /// A random change of routes.
    fn change(&mut self) {
        let line = change(&mut self.random, &self.world);
        if line.contains(" rule ") {
            self.ruled = Some(Instant::now());
        }
        let mark = if self.world.ip(&line) { " " } else { "!" };
        self.history.push(format!("{mark} {line}"));
        self.perhaps_stranded.append(&mut self.stranded);
    }

    /// The gateways that packets go to now.
    fn in_use(&mut self) -> BTreeSet<Gateway> {
        let in_use = self.world.truth();
        self.lately.retain(|(at, _)| at.elapsed() < TOGETHER);
        self.lately.push((Instant::now(), in_use.clone()));
        in_use
    }

    /// Waits until the open incidents are those of gateways without an entry that are in use, or went with their link and
    /// have no successor.
    #[track_caller]
    fn settle(&mut self) {
        let in_use = self.world.truth();
        let by_turns = self.world.by_turns();
        let replaced = self.world.families_with_gateway(&in_use);
        let is_missing = |gateway: &&Gateway| !self.world.entries.contains(*gateway);
        let is_alone = |gateway: &&Gateway| in_use.iter().all(|other| is_v6(other) != is_v6(gateway));
        let is_told =
            |gateway: &&Gateway| by_turns.get(*gateway) != Some(&true) && !self.unresolved.contains(*gateway);
        let used = in_use.iter().filter(is_told);
        let needed = used.chain(self.stranded.iter().filter(is_alone));
        let needed: BTreeSet<&Gateway> = needed.filter(is_missing).collect();
        let is_replaced = |gateway: &&Gateway| replaced.contains(&is_v6(gateway));
        let left = self.stranded.iter().chain(&self.perhaps_stranded);
        let left: Vec<&Gateway> = left.filter(|gateway| !is_replaced(gateway)).collect();
        let perhaps = in_use.iter().chain(by_turns.keys()).chain(left.iter().copied());
        let possible: BTreeSet<&Gateway> = perhaps.filter(is_missing).chain(needed.iter().copied()).collect();
        let opened =
            || -> BTreeSet<Gateway> { open(&self.daemon.events(), &self.world).into_keys().collect() };
        let is_settled = || {
            let opened = opened();
            let opened: BTreeSet<&Gateway> = opened.iter().collect();
            (needed.is_subset(&opened) && opened.is_subset(&possible)).then_some(())
        };
        assert!(
            within_patience(is_settled).is_some(),
            "incidents of {needed:?}, perhaps of {possible:?}, and no others, but {:?} after\n{}",
            opened(),
            self.shown()
        );
        // One that is in use again, or has a successor, is like any other.
        self.perhaps_stranded =
            left.into_iter().filter(|gateway| !in_use.contains(*gateway)).cloned().collect();
        self.stranded.clear();
        self.unresolved.clear();
    }

    /// What is said for certain is so: no packet finds another way as long as the gateway cannot be resolved.
    #[track_caller]
    fn assert_confidence(&self, gateway: &Gateway) {
        let Some(opened) = open(&self.daemon.events(), &self.world).remove(gateway) else { return };
        if opened.text("/incident/confidence") == "certain" {
            assert!(
                !self.world.depends_on_others(gateway),
                "others take its place: {opened} after\n{}",
                self.shown()
            );
        }
    }

    /// Somebody deletes an entry.
    fn delete_one(&mut self, has_paused: bool) {
        let gateway = self.random.pick(&self.world.routers).gateway.clone();
        let in_use = self.in_use();
        let (link, address) = &gateway;
        let ip = self.world.netns.path().run(&format!("ip neigh del {address} dev {link}"));
        self.history.push(format!("  neigh del {address} dev {link}: in use are {in_use:?}"));
        self.world.entries.remove(&gateway);
        let event = self.daemon.wait_for_deletion_by(ip.pid, self.world.inum(), address);
        let said = event.get("/neighbor/gateway").and_then(Value::as_bool);
        self.settle();
        if said.is_none() {
            // Without a pause routes may not have been heard of in time: then nothing is said.
            self.unknown += usize::from(has_paused && !self.world.depends_on_others(&gateway));
            self.unsaid.insert(gateway);
            return;
        }
        assert!(said == Some(in_use.contains(&gateway)), "{event} after\n{}", self.shown());
        self.assert_confidence(&gateway);
        if self.random.below(3) == 0 {
            // The routes move away from what is lost, or back to it.
            self.change();
        }
    }

    /// A link or an address goes, and what depends on it goes along.
    fn disturb(&mut self) {
        let in_use = self.in_use();
        let (by_turns, alternates) = (self.world.by_turns(), self.world.alternates());
        let lines = disturbance(&mut self.random);
        let seen = self.daemon.events().len();
        let ip = self.world.netns.path().ip_batch(&lines);
        self.history.push(format!("  {} : in use are {in_use:?}", lines.replace('\n', "; ")));
        let gone = self.world.read_entries();
        for gateway in &gone {
            let (link, address) = gateway;
            let pid = u64::from(ip.pid);
            let inum = self.world.inum();
            let found = within_patience(|| {
                let events = self.daemon.events();
                let mut later = events[seen..].iter();
                later.find(|event| event.is_deletion(inum, address) && gateway_of(event) == *gateway).cloned()
            });
            assert!(found.is_some(), "{address} on {link} went after\n{}", self.shown());
            let Some(event) = found else { continue };
            assert_eq!(event.number("/actor/pid"), Some(pid), "{event} after\n{}", self.shown());
            let was = |(_, used): &(Instant, BTreeSet<Gateway>)| used.contains(gateway);
            let said = event.get("/neighbor/gateway").and_then(Value::as_bool);
            let is_true = said.is_none_or(|said| match said {
                true => self.lately.iter().any(was),
                false => !in_use.contains(gateway),
            });
            assert!(is_true, "{event} after\n{}", self.shown());
        }
        let left = self.world.truth();
        let ruled = self.ruled.is_some_and(|changed| changed.elapsed() < READ_AGAIN);
        let is_in_turn = |gateway: &Gateway| by_turns.contains_key(gateway) || alternates.contains(gateway);
        let is_told = |gateway: &&Gateway| !ruled && gone.contains(*gateway) && !is_in_turn(gateway);
        self.stranded.extend(in_use.difference(&left).filter(is_told).cloned());
        self.perhaps_stranded.extend(in_use.difference(&left).cloned());
        self.unresolved =
            left.difference(&in_use).filter(|gateway| gone.contains(*gateway)).cloned().collect();
        self.disturbed.extend(in_use.difference(&left).cloned());
        self.settle();
    }

    fn round(&mut self) {
        for _ in 0..=self.random.below(4) {
            self.change();
        }
        // What happens without any pause is judged as well, but not always.
        let has_paused = !self.random.one_in(4);
        if has_paused {
            self.world.await_announced(&self.daemon);
        }
        self.paused += usize::from(has_paused);
        if self.random.one_in(4) && has_paused {
            self.disturb();
        } else {
            self.delete_one(has_paused);
        }
        self.world.repair();
        self.history.push("  all links, addresses and entries set".to_owned());
        self.settle();
    }
}

#[test]
fn what_is_said_about_gateways_is_what_the_kernel_does() {
    let began = Instant::now();
    for (place, random) in seeds(&SEEDS).into_iter().enumerate() {
        if place == 0 || began.elapsed() < LIMIT {
            judge(Run::new(random));
        }
    }
}

fn judge(mut run: Run) {
    for _ in 0..rounds(ROUNDS) {
        run.round();
    }
    let Run { world, daemon, unknown, paused, unsaid, disturbed, .. } = &run;
    assert!(*paused < 10 || *unknown < *paused / 2, "of {unknown} of {paused} deletions nothing was said");
    let events = daemon.events();
    let opened = events.iter().filter(|event| event.is_incident("incident.opened", KIND));
    for opened in opened.filter(|event| event.is_in(world.inum())) {
        // What went with its link is found by the routes that are missing, too.
        let gateway = gateway_of(opened);
        if unsaid.contains(&gateway) || disturbed.contains(&gateway) {
            continue;
        }
        assert!(opened.has("/actor/pid"), "nobody is named: {opened}");
    }
}
