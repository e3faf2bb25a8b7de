//! Looks by readers that are real processes.

use kevtmon_observation::Observation;
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::own::Own;

use super::*;

fn follower() -> (Follower, mpsc::Receiver<Observation>) {
    let (tx, observations) = mpsc::channel(8);
    let follower = Follower {
        readers: Readers::from(Proc::default()),
        tx,
        metrics: Arc::new(Metrics::new("0", "0", Own::default()).unwrap()),
        kernel: kernel(),
        memory: Memory::default(),
        attached: Attached::default(),
        patience: Duration::ZERO,
        budget: BUDGET,
        is_degraded: false,
        is_restored: false,
        partial: 0,
        calm: PAUSE,
    };
    (follower, observations)
}

#[tokio::test]
async fn looks_that_are_not_at_all_are_told_unless_it_was_one() {
    let (mut follower, mut observations) = follower();
    let [whole, late, crowded] = [(true, 0), (false, 0), (true, 1)].map(|(finished, displaced)| Found {
        finished,
        displaced,
        host: Some(Vec::new()),
        ..Found::default()
    });
    for (found, expected) in [
        (&late, None),
        (&whole, None),
        (&late, None),
        (&crowded, Some(false)),
        (&late, None),
        (&whole, Some(true)),
        (&whole, None),
    ] {
        follower.tell_whether_whole(found).await;
        let told = observations.try_recv().ok().map(|observation| match observation.fact {
            Fact::Source(status) => status.up,
            other => panic!("{other:?}"),
        });
        assert_eq!(told, expected);
    }
}

#[tokio::test]
async fn while_no_reader_answers_the_source_is_down_and_then_up_again() {
    let (mut follower, mut observations) = follower();
    let mut states = Vec::new();
    for patience in [Duration::ZERO, PATIENCE, PATIENCE] {
        follower.patience = patience;
        follower.look(false).await;
        while let Ok(observation) = observations.try_recv() {
            if let Fact::Source(status) = observation.fact {
                states.push((status.source, status.up, status.reason.is_some()));
            }
        }
    }
    assert_eq!(states, [(SOURCE.to_owned(), false, true), (SOURCE.to_owned(), true, false)]);
}

#[tokio::test]
async fn what_an_earlier_run_had_found_is_not_gone_before_a_look_had_time_for_all() {
    let (mut follower, mut observations) = follower();
    (follower.patience, follower.is_restored) = (PATIENCE, true);
    let mut told = Vec::new();
    for budget in [Duration::ZERO, PATIENCE] {
        follower.budget = budget;
        follower.look(true).await;
        let observed = std::iter::from_fn(|| observations.try_recv().ok());
        told.extend(observed.filter_map(|observation| match observation.fact {
            Fact::MountCopies(copies) => Some(copies.is_partial),
            _ => None,
        }));
    }
    assert_eq!(told, [true, false]);
}

#[tokio::test]
async fn as_long_as_anything_is_left_it_is_looked_for_often() {
    let (mut follower, _observations) = follower();
    let rest = Instant::now();
    // Just after a beat, the next one is far.
    assert!(follower.next(rest) > rest);
    follower.memory = memory::tests::left();
    assert_eq!(follower.next(rest), rest);
}
