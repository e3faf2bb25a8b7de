//! What could not be seen: sources that were down, records that were lost, times without a daemon.
//!
//! The daemon's events about itself enter, with its state now; the list leaves that qualifies a story.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kevtmon_core::state::NodeState;
use kevtmon_event::{Kind, Lost, SourceStates, Unreadable};
use kevtmon_observation::{SourceKind, SourceStatus};
use serde::{Deserialize, Serialize};

use super::history::Extent;
use super::record::{Record, timestamp};

/// Nothing is seen by these, so that nothing is hidden while they are down: the clock, the configuration file, and recordings.
const UNSEEING: [&str; 4] = ["clock", "configuration", "record", "recorder"];

/// A gap in what could be seen.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unseen {
    #[serde(flatten)]
    pub what: Missing,
    /// Since when, RFC 3339; absent where that is unknown.
    pub from: Option<String>,
    pub to: Option<String>,
}

/// Why something could not be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "missing", rename_all = "kebab-case")]
pub enum Missing {
    Daemon,
    /// The daemon did not run.
    Gap,
    /// A source or hook is down, or degraded to a lower attach mode.
    Source {
        source: String,
        reason: String,
    },
    /// Records were lost or discarded.
    Lost {
        source: String,
        reason: String,
        /// How many; at least as many where some losses could not be counted.
        count: u64,
        /// Whether that is all of them.
        exact: bool,
    },
    /// An event has no actor.
    Actor {
        /// The kind of the event.
        kind: String,
        seq: u64,
    },
    /// Not everything could be read that may have held a mount.
    Holders {
        /// Where it was mounted.
        path: String,
        /// The number of the event.
        seq: u64,
        /// What could not be read.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        unreadable: Vec<Unreadable>,
    },
    /// The subject has more events than are read.
    Older {
        looked_at: usize,
    },
    /// Earlier events are not kept.
    Forgotten,
}

/// What the daemon reported about itself, and its state now.
#[derive(Debug, Clone, Copy)]
pub struct Coverage<'a> {
    /// Its `daemon.*` and `events.lost` events, in order, from the last one before the story on.
    pub daemon_events: &'a [Record],
    /// Its state, if it runs.
    pub state: Option<&'a NodeState>,
    /// How far the history reaches.
    pub extent: &'a Extent,
}

impl Coverage<'_> {
    /// All gaps since a time.
    pub fn unseen(&self, since: Timestamp) -> Vec<Unseen> {
        let mut unseen = self.sources(since);
        unseen.extend(self.losses(since));
        unseen.extend(self.gaps(since));
        if self.state.is_none() {
            unseen.push(Unseen { what: Missing::Daemon, from: self.extent.to.clone(), to: None });
        }
        if let Some(from) = &self.extent.from {
            unseen.push(Unseen { what: Missing::Forgotten, from: None, to: Some(from.clone()) });
        }
        unseen
    }

    /// What is not watched on this node now, each with the reason.
    pub fn unwatched(&self) -> Vec<String> {
        let mut unwatched = self.state.map_or_else(
            || vec!["anything now (no daemon answers)".to_owned()],
            |state| state.sources.iter().filter_map(unwatched_by).collect(),
        );
        let names_containers =
            |state: &NodeState| state.sources.iter().any(|status| status.kind == SourceKind::Runtime);
        if self.state.is_some_and(|state| !names_containers(state)) {
            unwatched.push("the names of containers and pods (no runtime is configured)".to_owned());
        }
        if let Some(from) = &self.extent.from {
            let from = timestamp(from).strftime("%Y-%m-%d %H:%M:%SZ");
            unwatched.push(format!("anything before {from} (not remembered)"));
        }
        unwatched
    }

    /// Sources that are degraded now, or were meanwhile.
    fn sources(&self, since: Timestamp) -> Vec<Unseen> {
        let mut missing: BTreeMap<(String, String), (Option<String>, Option<String>)> = BTreeMap::new();
        let mut current = SourceStates::new();
        for record in self.daemon_events {
            let Some(daemon) = &record.event.daemon else { continue };
            let time = &record.event.time;
            for (source, reason) in &daemon.degraded {
                if current.get(source) != Some(reason) {
                    let since = (record.time() >= since).then(|| time.clone());
                    missing.entry((source.clone(), reason.clone())).or_insert((since, None));
                }
            }
            for (source, reason) in &current {
                if daemon.degraded.get(source) != Some(reason)
                    && let Some((_, until)) = missing.get_mut(&(source.clone(), reason.clone()))
                {
                    *until = Some(time.clone());
                }
            }
            current = daemon.degraded.clone();
        }
        if let Some(state) = self.state {
            for status in state.sources.iter().filter(|status| !status.up || status.reason.is_some()) {
                let reason = status.reason.clone().unwrap_or_else(|| "no reason given".to_owned());
                let entry = missing.entry((status.source.clone(), reason)).or_default();
                entry.1 = None;
            }
        }
        missing
            .into_iter()
            .filter(|((source, _), _)| !UNSEEING.contains(&source.as_str()))
            .filter(|(_, (_, to))| to.as_ref().is_none_or(|to| timestamp(to) >= since))
            .map(|((source, reason), (from, to))| Unseen {
                what: Missing::Source { source, reason },
                from,
                to,
            })
            .collect()
    }

    fn losses(&self, since: Timestamp) -> Vec<Unseen> {
        let mut sums: BTreeMap<(String, String), (u64, bool, String, String)> = BTreeMap::new();
        for record in self.daemon_events.iter().filter(|record| record.time() >= since) {
            // While the daemon did not run there were no records.
            let Some(lost) = record.event.lost.as_ref().filter(|lost| !is_restart(lost)) else { continue };
            let time = &record.event.time;
            let from = lost.from.as_ref().unwrap_or(time).clone();
            let (count, exact, _, to) = sums
                .entry((lost.source.clone(), lost.reason.clone()))
                .or_insert_with(|| (0, true, from, String::new()));
            let known = lost.count.parse::<u64>();
            *exact &= known.is_ok();
            *count = count.saturating_add(known.unwrap_or(1));
            *to = lost.to.as_ref().unwrap_or(time).clone();
        }
        sums.into_iter()
            .map(|((source, reason), (count, exact, from, to))| Unseen {
                what: Missing::Lost { source, reason, count, exact },
                from: Some(from),
                to: Some(to),
            })
            .collect()
    }

    fn gaps(&self, since: Timestamp) -> Vec<Unseen> {
        let ends = |record: &Record| record.event.kind == Kind::DaemonStopping;
        let before = std::iter::once(None).chain(self.daemon_events.iter().map(Some));
        before
            .zip(self.daemon_events)
            .filter(|(_, record)| record.time() >= since)
            .filter_map(|(before, record)| {
                let end =
                    before.filter(|before| ends(before) || before.event.boot_id != record.event.boot_id);
                // One that was killed has not said when it ended.
                let end = end.map(|end| &end.event.time);
                let alive = || restart(record).map(|lost| lost.from.as_ref());
                let end = end.map(Some).or_else(alive)?;
                let (from, to) = (end.cloned(), Some(record.event.time.clone()));
                Some(Unseen { what: Missing::Gap, from, to })
            })
            .collect()
    }
}

/// What the daemon says at its start of the time since the run before.
fn restart(record: &Record) -> Option<&Lost> {
    record.event.lost.as_ref().filter(|lost| is_restart(lost))
}

fn is_restart(lost: &Lost) -> bool {
    (lost.source.as_str(), lost.reason.as_str()) == ("daemon", "restart")
}

/// What a source would show, if it does not.
fn unwatched_by(status: &SourceStatus) -> Option<String> {
    let name = status.source.as_str();
    let is_blind =
        !status.up || (name == "hook.neighbor" && status.attach_mode.as_deref() == Some("netlink"));
    if !is_blind {
        return None;
    }
    let what = match (status.kind, name) {
        (SourceKind::Hook, "hook.neighbor") => "who changes neighbor entries".to_owned(),
        (SourceKind::Hook, "hook.umount") => "unmounts that are refused".to_owned(),
        (SourceKind::Hook, "hook.remove") => "mount points that cannot be removed or renamed".to_owned(),
        (SourceKind::Hook, _) => format!("what {name} would see"),
        (SourceKind::Netlink, _) => "links, addresses, routes and neighbor entries".to_owned(),
        (SourceKind::Runtime, _) => format!("the containers of {name}"),
        (SourceKind::Sink | SourceKind::Configuration | SourceKind::Processes, _) => return None,
        (SourceKind::Kubelet | SourceKind::Logs | SourceKind::Clock, _) => return None,
    };
    let reason = status.reason.as_deref().unwrap_or("no reason given");
    Some(match status.kind {
        SourceKind::Runtime => format!("{what} ({reason})"),
        _ => format!("{what} ({name}: {reason})"),
    })
}

#[cfg(test)]
mod tests {
    use kevtmon_event::{Event, Severity};
    use kevtmon_testing::sample;

    use super::*;
    use crate::test_support::memory::{event, numbered, time};

    fn daemon(seq: u64, kind: Kind, degraded: &[(&str, &str)]) -> Record {
        let mut event = numbered(seq, sample::daemon(Severity::Info));
        event.kind = kind;
        let degraded = degraded.iter().map(|(source, why)| ((*source).to_owned(), (*why).to_owned()));
        event.daemon.as_mut().unwrap().degraded = degraded.collect();
        record(&event)
    }

    fn record(event: &Event) -> Record {
        Record::read(serde_json::to_string(event).unwrap()).unwrap()
    }

    fn unseen(said: &[Record], since: u64) -> Vec<Unseen> {
        let state = crate::test_support::node_state::state();
        let extent = Extent::default();
        Coverage { daemon_events: said, state: Some(&state), extent: &extent }.unseen(timestamp(&time(since)))
    }

    #[test]
    fn a_daemon_that_saw_everything_has_no_gaps() {
        assert_eq!(unseen(&[daemon(1, Kind::DaemonReady, &[])], 0), []);
        assert_eq!(unseen(&[], 0), []);
    }

    #[test]
    fn a_source_that_was_down_meanwhile_is_listed_with_its_time() {
        let said = [
            daemon(1, Kind::DaemonReady, &[]),
            daemon(5, Kind::DaemonDegraded, &[("docker", "gone")]),
            daemon(9, Kind::DaemonReady, &[]),
        ];
        let source = Missing::Source { source: "docker".into(), reason: "gone".into() };
        let expected = Unseen { what: source, from: Some(time(5)), to: Some(time(9)) };
        assert_eq!(unseen(&said, 3), [expected]);
        assert_eq!(unseen(&said, 10), [], "it was back before");
    }

    #[test]
    fn a_recording_or_configuration_that_is_down_hides_nothing() {
        let down = [("configuration", "no regular file"), ("recorder", "cannot write"), ("record", "full")];
        assert_eq!(unseen(&[daemon(1, Kind::DaemonReady, &down)], 0), []);
    }

    #[test]
    fn a_source_that_is_degraded_now_is_listed_even_without_an_event() {
        let mut state = crate::test_support::node_state::state();
        state.sources = vec![SourceStatus {
            lacks: None,
            absent: false,
            vacant: false,
            source: "hook.neighbor".into(),
            kind: SourceKind::Hook,
            up: true,
            attach_mode: Some("netlink".into()),
            reason: Some("no BTF".into()),
        }];
        let extent = Extent::default();
        let unseen = Coverage { daemon_events: &[], state: Some(&state), extent: &extent }
            .unseen(Timestamp::UNIX_EPOCH);
        let source = Missing::Source { source: "hook.neighbor".into(), reason: "no BTF".into() };
        assert_eq!(unseen, [Unseen { what: source, from: None, to: None }]);
    }

    #[test]
    fn losses_of_one_kind_are_added_up() {
        let lost = |seq, count: &str| {
            let mut event = sample::all().into_iter().find(|event| event.lost.is_some()).unwrap();
            let lost = event.lost.as_mut().unwrap();
            lost.count = count.into();
            (lost.from, lost.to) = (None, None);
            record(&numbered(seq, event))
        };
        let said = [lost(1, "5"), lost(4, "10"), lost(6, "unknown")];
        let Unseen { what: Missing::Lost { count, exact, .. }, from, to } = &unseen(&said, 2)[0] else {
            panic!()
        };
        assert_eq!((*count, *exact, from, to), (11, false, &Some(time(4)), &Some(time(6))));
    }

    #[test]
    fn a_time_without_a_daemon_is_listed() {
        let said = [
            daemon(1, Kind::DaemonReady, &[]),
            daemon(5, Kind::DaemonStopping, &[]),
            daemon(8, Kind::DaemonReady, &[]),
        ];
        assert_eq!(unseen(&said, 3), [Unseen { what: Missing::Gap, from: Some(time(5)), to: Some(time(8)) }]);
        // One that was killed has told when it was last alive.
        let mut restarted = sample::all().into_iter().find(|event| event.lost.is_some()).unwrap();
        let lost = restarted.lost.as_mut().unwrap();
        (lost.source, lost.reason, lost.count) = ("daemon".into(), "restart".into(), "unknown".into());
        (lost.from, lost.to) = (Some(time(4)), Some(time(7)));
        let restarted = record(&numbered(7, restarted));
        let gap = |from| Unseen { what: Missing::Gap, from: Some(time(from)), to: Some(time(7)) };
        let ready = |seq| daemon(seq, Kind::DaemonReady, &[]);
        assert_eq!(unseen(&[ready(1), restarted.clone(), ready(8)], 3), [gap(4)]);
        let stopped = daemon(5, Kind::DaemonStopping, &[]);
        assert_eq!(unseen(&[ready(1), stopped, restarted, ready(8)], 3), [gap(5)]);
        let mut rebooted = numbered(8, sample::daemon(Severity::Info));
        rebooted.boot_id = "another".into();
        rebooted.daemon.as_mut().unwrap().degraded.clear();
        let said = [daemon(1, Kind::DaemonReady, &[]), record(&rebooted)];
        assert!(matches!(unseen(&said, 3)[..], [Unseen { what: Missing::Gap, .. }]));
    }

    #[test]
    fn a_dead_daemon_and_the_limit_of_the_history_are_listed() {
        let extent = Extent { from: Some(time(2)), to: Some(time(7)), ..Extent::default() };
        let said = [record(&event(3))];
        let unseen =
            Coverage { daemon_events: &said, state: None, extent: &extent }.unseen(Timestamp::UNIX_EPOCH);
        assert_eq!(unseen[0], Unseen { what: Missing::Daemon, from: Some(time(7)), to: None });
        assert_eq!(unseen[1], Unseen { what: Missing::Forgotten, from: None, to: Some(time(2)) });
    }
}
