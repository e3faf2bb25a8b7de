//! Bounds, gaps, order, pace and end of a queue.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use kevtmon_event::{Event, Lost, Severity};
use kevtmon_sources::procfs::own::Own;
use kevtmon_testing::sample;

use super::*;
use crate::sinks::Sinks;

const ALL: Severity = Severity::Debug;

/// Hands every event out, and waits at each for a permit.
struct Gated {
    delivered: SyncSender<Event>,
    permits: Receiver<io::Result<()>>,
    share: Option<Duration>,
    unwritten: usize,
}

impl Sink for Gated {
    fn deliver(&mut self, event: &Arc<SharedEvent>) -> io::Result<()> {
        self.delivered.send(Event::clone(event)).unwrap();
        let permit = self.permits.recv().unwrap_or(Ok(()));
        self.unwritten = usize::from(permit.is_err());
        permit
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn unwritten(&self) -> usize {
        self.unwritten
    }

    fn time_per_event(&self) -> Option<Duration> {
        self.share
    }
}

struct Rig {
    metrics: Arc<Metrics>,
    queue: EventQueue,
    delivered: Receiver<Event>,
    permits: SyncSender<io::Result<()>>,
}

fn rig(min_severity: Severity, capacity: usize) -> Rig {
    rig_with_share(min_severity, capacity, None)
}

fn rig_with_share(min_severity: Severity, capacity: usize, share: Option<Duration>) -> Rig {
    let metrics = Arc::new(Metrics::new("0", "0", Own::default()).unwrap());
    let (delivered_in, delivered) = sync_channel(1000);
    let (permits, permits_out) = sync_channel(1000);
    let sink = Gated { delivered: delivered_in, permits: permits_out, share, unwritten: 0 };
    // One may fill half of the places.
    let bounds = Bounds { capacity: 2 * capacity, reserved: 256 };
    let queue =
        EventQueue::start_with_bounds("test", min_severity, Arc::clone(&metrics), sink, bounds).unwrap();
    Rig { metrics, queue, delivered, permits }
}

fn event(seq: u64) -> Arc<SharedEvent> {
    Arc::new(Event { seq, time: format!("t{seq}"), ..sample::link(Severity::Info) }.into())
}

fn discarded(metrics: &Metrics, reason: &str) -> u64 {
    let line = format!("kevtmon_events_discarded_total{{reason=\"{reason}\",sink=\"test\"}} ");
    let text = metrics.gather().unwrap();
    text.lines().find_map(|text| text.strip_prefix(&line)).map_or(0, |count| count.parse().unwrap())
}

fn finish(queue: EventQueue) {
    let mut sinks = Sinks::default();
    sinks.add(queue);
    sinks.finish(Duration::from_secs(30));
}

#[test]
fn an_event_offered_to_an_idle_sink_is_delivered_at_once() {
    let rig = rig(ALL, 8);
    for seq in 1..=3 {
        rig.queue.offer(&event(seq));
        assert_eq!(rig.delivered.recv().unwrap().seq, seq);
        rig.permits.send(Ok(())).unwrap();
    }
    finish(rig.queue);
    assert_eq!(discarded(&rig.metrics, "queue-full"), 0);
}

#[test]
fn an_event_that_takes_much_memory_takes_more_places() {
    let rig = rig(ALL, 16);
    let holder = sample::busy().holders.unwrap().remove(0);
    let large = |seq| {
        let holders = Some(vec![holder.clone(); 5 * HOLDERS_PER_PLACE - 1]);
        Arc::new(SharedEvent::from(Event { seq, holders, holders_unreadable: Vec::new(), ..sample::busy() }))
    };
    rig.queue.offer(&large(1));
    assert_eq!(rig.delivered.recv().unwrap().seq, 1);
    // Five places each of 32, of which one may fill half.
    (2..=9).for_each(|seq| rig.queue.offer(&large(seq)));
    assert_eq!(discarded(&rig.metrics, "queue-full"), 4);
    drop(rig.permits);
    finish(rig.queue);
    let seqs: Vec<u64> = rig.delivered.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, [2, 3, 4, 5, 9], "the last one tells of four that are not there");
}

#[test]
fn paths_of_mounts_below_take_places() {
    let mut busy = sample::busy();
    let mount = busy.mount.as_mut().unwrap();
    mount.child_mounts = vec!["/".repeat(4096); 3];
    let without = Event { mount: None, ..busy.clone() };
    assert_eq!(places(&busy), places(&without) + 4);
}

#[test]
fn what_does_not_fit_is_counted_and_summed_up_once_in_its_place() {
    let rig = rig(ALL, 4);
    rig.queue.offer(&event(1));
    assert_eq!(rig.delivered.recv().unwrap().seq, 1);
    // The thread now holds number 1; four more fit, ten do not.
    for seq in 2..=15 {
        rig.queue.offer(&event(seq));
    }
    assert_eq!(discarded(&rig.metrics, "queue-full"), 10);
    drop(rig.permits);
    for seq in 2..=5 {
        assert_eq!(rig.delivered.recv().unwrap().seq, seq);
    }
    let summary = rig.delivered.recv().unwrap();
    assert_eq!((summary.kind, summary.seq), (Kind::EventsLost, 15));
    assert_eq!(
        summary.lost.unwrap(),
        Lost {
            source: "sink.test".into(),
            reason: "queue-full".into(),
            count: "10".into(),
            from: Some("t6".into()),
            to: Some("t15".into()),
        }
    );
    rig.queue.offer(&event(16));
    assert_eq!(rig.delivered.recv().unwrap().seq, 16, "then the stream goes on");
    finish(rig.queue);
    assert!(rig.delivered.recv().is_err());
}

#[test]
fn a_storm_does_not_displace_incidents_nor_events_about_the_daemon() {
    let rig = rig(ALL, 4);
    rig.queue.offer(&event(1));
    assert_eq!(rig.delivered.recv().unwrap().seq, 1);
    for seq in 2..=8 {
        rig.queue.offer(&event(seq));
    }
    rig.queue
        .offer(&Arc::new(Event { seq: 9, kind: Kind::IncidentOpened, ..Event::clone(&event(9)) }.into()));
    rig.queue.offer(&event(10));
    drop(rig.permits);
    let rest: Vec<(u64, Kind)> = rig.delivered.iter().take(7).map(|event| (event.seq, event.kind)).collect();
    let expected = [
        (2, Kind::LinkCreated),
        (3, Kind::LinkCreated),
        (4, Kind::LinkCreated),
        (5, Kind::LinkCreated),
        (8, Kind::EventsLost),
        (9, Kind::IncidentOpened),
        (10, Kind::EventsLost),
    ];
    let plain = |(seq, kind): &(u64, Kind)| (*seq, *kind == Kind::EventsLost, *kind == Kind::IncidentOpened);
    assert_eq!(rest.iter().map(plain).collect::<Vec<_>>(), expected.iter().map(plain).collect::<Vec<_>>());
    finish(rig.queue);
}

#[test]
fn a_sink_that_fails_is_closed_and_counts_what_it_is_offered() {
    let rig = rig(ALL, 4);
    rig.queue.offer(&event(1));
    rig.delivered.recv().unwrap();
    rig.queue.offer(&event(2));
    rig.permits.send(Err(io::ErrorKind::BrokenPipe.into())).unwrap();
    // The thread lets go of its end when it is closed.
    assert!(rig.delivered.recv().is_err());
    while rig.queue.queue.put(|_| ()).is_some() {
        std::thread::yield_now();
    }
    rig.queue.offer(&event(3));
    let metrics = Arc::clone(&rig.metrics);
    finish(rig.queue);
    assert_eq!(discarded(&metrics, "closed"), 3);
}

#[test]
fn what_was_delivered_before_a_sink_fails_is_not_counted_as_discarded() {
    let rig = rig(ALL, 8);
    rig.queue.offer(&event(1));
    rig.delivered.recv().unwrap();
    // One batch, the third of which fails.
    (2..=6).for_each(|seq| rig.queue.offer(&event(seq)));
    for permit in [Ok(()), Ok(()), Ok(()), Err(io::ErrorKind::BrokenPipe.into())] {
        rig.permits.send(permit).unwrap();
    }
    assert_eq!(rig.delivered.iter().map(|event| event.seq).collect::<Vec<_>>(), [2, 3, 4]);
    let metrics = Arc::clone(&rig.metrics);
    finish(rig.queue);
    assert_eq!(discarded(&metrics, "closed"), 3);
}

#[test]
fn a_sink_gets_only_what_it_wants_but_always_events_about_the_daemon() {
    let rig = rig(Severity::Notice, 8);
    rig.queue.offer(&event(1));
    rig.queue.offer(&Arc::new(Event { seq: 2, ..sample::daemon(Severity::Info) }.into()));
    rig.queue.offer(&Arc::new(Event { seq: 3, ..sample::link(Severity::Notice) }.into()));
    drop(rig.permits);
    finish(rig.queue);
    assert_eq!(rig.delivered.iter().map(|event| event.seq).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(discarded(&rig.metrics, "queue-full"), 0);
}

#[test]
fn finishing_delivers_what_waits() {
    let rig = rig(ALL, 100);
    for seq in 1..=50 {
        rig.queue.offer(&event(seq));
    }
    drop(rig.permits);
    finish(rig.queue);
    assert_eq!(rig.delivered.iter().count(), 50);
}

#[test]
fn finishing_gives_up_on_a_sink_that_is_stuck() {
    let rig = rig(ALL, 4);
    rig.queue.offer(&event(1));
    rig.delivered.recv().unwrap();
    rig.queue.finish(Instant::now() + Duration::from_millis(1));
    rig.permits.send(Ok(())).unwrap();
}

#[test]
fn after_a_storm_a_sink_with_a_share_rests_but_not_before_an_incident_nor_the_end() {
    let rig = rig_with_share(ALL, 1000, Some(Duration::from_secs(3600)));
    rig.queue.offer(&event(1));
    assert_eq!(rig.delivered.recv().unwrap().seq, 1);
    let storm = 2 + SMALL_BATCH as u64;
    for seq in 2..=storm {
        rig.queue.offer(&event(seq));
    }
    drop(rig.permits);
    for seq in 2..=storm {
        assert_eq!(rig.delivered.recv().unwrap().seq, seq);
    }
    rig.queue.offer(&event(100));
    let nothing = rig.delivered.recv_timeout(Duration::from_millis(50));
    assert!(nothing.is_err(), "the storm took its share for days: {nothing:?}");
    rig.queue
        .offer(&Arc::new(Event { seq: 101, kind: Kind::IncidentOpened, ..Event::clone(&event(101)) }.into()));
    assert_eq!(rig.delivered.recv().unwrap().seq, 100);
    assert_eq!(rig.delivered.recv().unwrap().seq, 101);
    for seq in 200..=200 + storm {
        rig.queue.offer(&event(seq));
    }
    finish(rig.queue);
    assert_eq!(rig.delivered.iter().last().unwrap().seq, 200 + storm);
    assert_eq!(discarded(&rig.metrics, "queue-full"), 0);
}

#[test]
fn a_flood_leaves_places_for_everybody_else() {
    let rig = rig(ALL, 32);
    rig.queue.offer(&event(1));
    assert_eq!(rig.delivered.recv().unwrap().seq, 1);
    let of = |seq, priority, account: &str| -> Arc<SharedEvent> {
        let tenant = Tenant { priority, name: account.into() };
        Arc::new(Event { tenant, ..Event::clone(&event(seq)) }.into())
    };
    let mut seq = 1;
    let mut wanted = Vec::new();
    for round in 0..20 {
        for _ in 0..100 {
            seq += 1;
            rig.queue.offer(&of(seq, Priority::Foreign, "users"));
        }
        seq += 1;
        wanted.push(seq);
        rig.queue.offer(&of(seq, Priority::Known, if round % 2 == 0 { "calico" } else { "kubelet" }));
    }
    drop(rig.permits);
    finish(rig.queue);
    let delivered: Vec<Event> = rig.delivered.iter().collect();
    let known = delivered.iter().filter(|event| event.tenant.priority == Priority::Known);
    assert_eq!(known.map(|event| event.seq).collect::<Vec<_>>(), wanted);
    assert!(delivered.is_sorted_by_key(|event| event.seq), "in order");
    let lost = delivered.iter().filter_map(|event| event.lost.as_ref());
    let lost: u64 = lost.map(|lost| lost.count.parse::<u64>().unwrap()).sum();
    assert_eq!(lost, discarded(&rig.metrics, "queue-full"));
    let told = delivered.iter().filter(|event| event.kind != Kind::EventsLost).count() as u64;
    assert_eq!(1 + told + lost, seq, "each is delivered or accounted for");
}

/// Not random, but different with each seed.
fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

#[test]
fn whatever_is_offered_is_delivered_waits_or_is_accounted_for_and_nobody_is_left_without_a_place() {
    for seed in 0..200 {
        let mut random = numbers(seed);
        let bounds = Bounds { capacity: 8 + usize::try_from(random(200)).unwrap(), reserved: 4 };
        let accounts = 1 + random(6);
        let (mut waiting, mut batch) = (Events::default(), Events::default());
        let (mut delivered, mut summed, mut last) = (0, 0, 0);
        let offered = 2000;
        for seq in 1..=offered {
            let number = random(accounts * accounts);
            // The first cause most of them.
            let account = number.isqrt();
            let priority = Priority::ALL[(account % 4) as usize];
            let tenant = Tenant { priority, name: format!("account {account}").into() };
            let waits = waiting.tenants.get(&tenant).copied().unwrap_or(0);
            let kind = if random(20) == 0 { Kind::IncidentUpdated } else { Kind::LinkCreated };
            let event = Event { tenant, kind, ..Event::clone(&event(seq)) };
            let is_full = waiting.events.len() >= bounds.capacity;
            let taken = waiting.push(&Arc::new(event.into()), bounds, "test").is_ok();
            assert!(taken || waits > 0 || is_full, "seed {seed}: {account} finds no place for one event");
            if random(100) == 0 || seq == offered {
                waiting.take_into(&mut batch);
                let gap = batch.gap.take().map(|gap| Arc::new(gap.summary("test").into()));
                for event in batch.events.drain(..).chain(gap) {
                    let event: Arc<SharedEvent> = event;
                    assert!(event.seq > last, "seed {seed}: in order");
                    last = event.seq;
                    match &event.lost {
                        Some(lost) => summed += lost.count.parse::<u64>().unwrap(),
                        None => delivered += 1,
                    }
                    assert_eq!(delivered + summed, last, "seed {seed}: each number up to here");
                }
            }
        }
        assert_eq!(delivered + summed, offered, "seed {seed}");
    }
}
