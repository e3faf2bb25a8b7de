//! Looks by readers that are real processes.

use super::*;
use crate::sources::procfs::Proc;
use crate::sources::procfs::own::Own;

#[tokio::test]
async fn while_no_reader_answers_the_source_is_down_and_then_up_again() {
    let (tx, mut observations) = mpsc::channel(8);
    let mut follower = Follower {
        readers: Readers::from(Proc::default()),
        tx,
        metrics: Arc::new(Metrics::new("0", "0", Own::default()).unwrap()),
        kernel: kernel(),
        memory: Memory::default(),
        patience: Duration::ZERO,
        is_degraded: false,
    };
    let mut states = Vec::new();
    for patience in [Duration::ZERO, PATIENCE, PATIENCE] {
        follower.patience = patience;
        assert!(follower.look(false).await.is_ok());
        while let Ok(observation) = observations.try_recv() {
            if let Fact::Source(status) = observation.fact {
                states.push((status.source, status.up, status.reason.is_some()));
            }
        }
    }
    assert_eq!(states, [(SOURCE.to_owned(), false, true), (SOURCE.to_owned(), true, false)]);
}
