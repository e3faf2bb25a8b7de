//! A source under test, and what it reports.

use std::path::PathBuf;
use std::time::Duration;

use kevtmon_observation::{ContainerFacts, Fact, Observation, SourceStatus};
use kevtmon_types::clock::{BootNs, boot_now};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::procfs::Proc;
use crate::runtime::{Options, RuntimeClient, run};

/// How long a condition may take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Reports {
    rx: mpsc::Receiver<Observation>,
    pub(crate) seen: Vec<Fact>,
    /// Time of the newest.
    pub(crate) at: BootNs,
    task: JoinHandle<()>,
}

impl Reports {
    /// Of a source of this name.
    pub(crate) fn of<C: RuntimeClient>(
        name: &'static str,
        socket: PathBuf,
        timing: Options,
        proc: Proc,
    ) -> Self {
        let (tx, rx) = mpsc::channel(8);
        let source = async move { run::<C>(name.to_owned(), &socket, timing, proc.into(), tx).await };
        Self { rx, seen: Vec::new(), at: 0, task: tokio::spawn(source) }
    }

    pub(crate) async fn next(&mut self) -> Fact {
        match tokio::time::timeout(PATIENCE, self.rx.recv()).await {
            Ok(Some(observation)) => {
                assert!(observation.at <= boot_now());
                self.at = observation.at;
                self.seen.push(observation.fact.clone());
                observation.fact
            }
            other => panic!("{other:?} after {:#?}", self.seen),
        }
    }

    /// Skips facts until one that `wanted` makes something of.
    pub(crate) async fn until<T>(&mut self, wanted: impl Fn(&Fact) -> Option<T>) -> T {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Some(found) = wanted(&self.next().await) {
                return found;
            }
            assert!(tokio::time::Instant::now() < deadline, "never, the last one is {:?}", self.seen.last());
        }
    }

    pub(crate) async fn read_or_refused(&mut self) {
        let is_either = |fact: &Fact| matches!(fact, Fact::RuntimeSnapshot { .. } | Fact::Malformed { .. });
        self.until(|fact| is_either(fact).then_some(())).await;
    }

    /// Waits for such a list of containers.
    pub(crate) async fn until_listed(&mut self, is_such: impl Fn(&[ContainerFacts]) -> bool) {
        self.until(|fact| match fact {
            Fact::RuntimeSnapshot { containers, .. } => is_such(containers).then_some(()),
            _ => None,
        })
        .await;
    }

    pub(crate) async fn snapshot(&mut self) -> Vec<ContainerFacts> {
        self.until(|fact| match fact {
            Fact::RuntimeSnapshot { containers, .. } => Some(containers.clone()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn up(&mut self) {
        self.until(|fact| matches!(fact, Fact::Source(SourceStatus { up: true, .. })).then_some(())).await;
    }

    /// The reason of the next status `down`.
    pub(crate) async fn down(&mut self) -> String {
        self.until(|fact| match fact {
            Fact::Source(SourceStatus { up: false, reason, .. }) => Some(reason.clone().unwrap_or_default()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn container(&mut self) -> ContainerFacts {
        self.until(|fact| match fact {
            Fact::Container(facts) => Some((**facts).clone()),
            _ => None,
        })
        .await
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers that were none.
#[derive(Default)]
pub(crate) struct Refused {
    refused: u64,
    counted: u64,
}

impl Refused {
    /// Takes what was reported since: nothing but containers, states of the source, and its malformed answers.
    pub(crate) fn take(&mut self, reports: &mut Reports, of: &str) {
        for fact in reports.seen.drain(..) {
            match fact {
                Fact::Malformed { source, count } => {
                    assert_eq!(source, of);
                    self.counted += count;
                }
                Fact::Source(SourceStatus { up: false, reason, .. }) => {
                    self.refused += u64::from(reason.unwrap().contains("invalid response"));
                }
                Fact::Source(_) | Fact::Resync { .. } | Fact::RuntimeSnapshot { .. } => {}
                Fact::Container(_) | Fact::ContainerGone { .. } => {}
                fact => panic!("{fact:?}"),
            }
        }
    }

    pub(crate) fn assert_counted(&self) {
        let Self { refused, counted } = self;
        assert!(refused <= counted, "{refused} were refused, {counted} counted");
    }
}
