//! Which containers are to be inspected: one inspect at a time for each, a bounded number in all.
//!
//! However many events a burst has, a container waits once; what changes while its inspect is under way
//! makes it wait again. It does no I/O.

use std::collections::{HashMap, VecDeque};

use kevtmon_observation::BootNs;

/// Inspects in flight at once: dockerd serves them in parallel, but they compete with the kubelet's.
const MAX_IN_FLIGHT: usize = 8;

/// Inspects of one container that may fail in a row. The periodic list tries again.
const MAX_ATTEMPTS: u8 = 3;

#[derive(Debug, Default)]
pub(super) struct Refresh {
    waiting: VecDeque<String>,
    jobs: HashMap<String, Job>,
    in_flight: usize,
}

#[derive(Debug, Default)]
struct Job {
    /// The latest event that requested it.
    at: Option<BootNs>,
    /// The latest event that the inspect in flight can have seen.
    requested_by: Option<BootNs>,
    in_flight: bool,
    again: bool,
    outdated: bool,
    failures: u8,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum InspectReply {
    /// Use it; the event that requested it happened then.
    Use(Option<BootNs>),
    /// The container changed after the request; another inspect follows.
    Outdated,
    /// The container is gone.
    Gone,
}

impl Refresh {
    /// Queues an inspect, because of an event at `at` if there was one.
    pub(super) fn request(&mut self, id: &str, at: Option<BootNs>) {
        let job = self.jobs.entry(id.to_owned()).or_default();
        if job.in_flight {
            job.again = true;
        } else if !self.waiting.iter().any(|waiting| waiting == id) {
            self.waiting.push_back(id.to_owned());
        }
        job.at = at.or(job.at);
        job.failures = 0;
    }

    pub(super) fn outdate(&mut self, id: &str) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.outdated = job.in_flight;
        }
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.jobs.remove(id);
        self.waiting.retain(|waiting| waiting != id);
    }

    pub(super) fn launch(&mut self) -> Option<String> {
        if self.in_flight >= MAX_IN_FLIGHT {
            return None;
        }
        let id = self.waiting.pop_front()?;
        self.in_flight += 1;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.in_flight = true;
            job.requested_by = job.at;
        }
        Some(id)
    }

    pub(super) fn complete(&mut self, id: &str) -> InspectReply {
        self.in_flight = self.in_flight.saturating_sub(1);
        let Some(mut job) = self.jobs.remove(id) else { return InspectReply::Gone };
        let reply = if job.outdated { InspectReply::Outdated } else { InspectReply::Use(job.requested_by) };
        if job.again || job.outdated {
            job = Job { at: job.at, ..Job::default() };
            self.waiting.push_back(id.to_owned());
            self.jobs.insert(id.to_owned(), job);
        }
        reply
    }

    /// An inspect failed; `false` when that was the last one.
    pub(super) fn retry(&mut self, id: &str) -> bool {
        self.in_flight = self.in_flight.saturating_sub(1);
        let Some(job) = self.jobs.get_mut(id) else { return true };
        let failures = job.failures + 1;
        if failures >= MAX_ATTEMPTS && !job.again {
            self.jobs.remove(id);
            return false;
        }
        *job = Job { at: job.at, failures, ..Job::default() };
        self.waiting.push_back(id.to_owned());
        true
    }

    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_for_one_container_needs_one_inspect() {
        let mut refresh = Refresh::default();
        for at in 0..20 {
            refresh.request("a", Some(at));
        }
        assert_eq!(refresh.launch().as_deref(), Some("a"));
        assert_eq!(refresh.launch(), None);
        assert_eq!(refresh.complete("a"), InspectReply::Use(Some(19)));
        assert!(refresh.is_idle());
    }

    #[test]
    fn what_changes_under_way_is_inspected_once_more() {
        let mut refresh = Refresh::default();
        refresh.request("a", Some(1));
        refresh.launch();
        refresh.request("a", Some(2));
        refresh.request("a", Some(3));
        assert_eq!(refresh.launch(), None, "one at a time for each container");
        assert_eq!(refresh.complete("a"), InspectReply::Use(Some(1)));
        assert_eq!(refresh.launch().as_deref(), Some("a"));
        assert_eq!(refresh.complete("a"), InspectReply::Use(Some(3)));
        assert!(refresh.is_idle());
    }

    #[test]
    fn an_answer_from_before_a_death_is_not_used() {
        let mut refresh = Refresh::default();
        refresh.request("a", None);
        refresh.launch();
        refresh.outdate("a");
        assert_eq!(refresh.complete("a"), InspectReply::Outdated);
        assert_eq!(refresh.launch().as_deref(), Some("a"));
        assert_eq!(refresh.complete("a"), InspectReply::Use(None));
    }

    #[test]
    fn an_answer_about_a_container_that_is_gone_is_not_used() {
        let mut refresh = Refresh::default();
        refresh.request("a", None);
        refresh.launch();
        refresh.forget("a");
        assert_eq!(refresh.complete("a"), InspectReply::Gone);
        assert!(refresh.is_idle());
    }

    #[test]
    fn the_number_under_way_is_bounded_and_the_order_kept() {
        let mut refresh = Refresh::default();
        for n in 10..30 {
            refresh.request(&n.to_string(), None);
        }
        let first: Vec<String> = std::iter::from_fn(|| refresh.launch()).collect();
        assert_eq!(first, ["10", "11", "12", "13", "14", "15", "16", "17"]);
        refresh.complete("12");
        assert_eq!(refresh.launch().as_deref(), Some("18"));
    }

    #[test]
    fn a_failing_inspect_is_tried_thrice_and_anew_after_an_event() {
        let mut refresh = Refresh::default();
        refresh.request("a", Some(1));
        for expected in [true, true, false] {
            assert_eq!(refresh.launch().as_deref(), Some("a"));
            assert_eq!(refresh.retry("a"), expected);
        }
        assert!(refresh.is_idle());
        refresh.request("a", Some(2));
        assert_eq!(refresh.launch().as_deref(), Some("a"));
        assert!(refresh.retry("a"));
    }
}
