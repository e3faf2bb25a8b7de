//! What unprivileged accounts have told, and containers of their own networks: a budget of events each. What is beyond it
//! is counted and summed up by kind, and no sink gets it. What is about others is no such event; what a container does to
//! itself goes to the diagnoses all the same, as what is no evidence.

use std::collections::BTreeMap;

use kevtmon_event::wording::owner_phrase;
use kevtmon_event::{Event, Kind, Severity, Shared, Target, Throttled};
use kevtmon_observation::{BootNs, NsInum};
use kevtmon_types::bucket::{Bucket, Price};
use kevtmon_types::clock::SECOND;
use kevtmon_types::escape::name;
use kevtmon_types::settings::EventRate;
use serde::{Deserialize, Serialize};

use super::Core;
use crate::node::tenant::Budget;

/// What is beyond a budget is told after this time,
const FIRST_NS: BootNs = SECOND;
/// and as often while it goes on.
const AGAIN_NS: BootNs = 10 * SECOND;
/// Users, and containers, that are told apart; all others share one budget each.
const ACCOUNTS_MAX: usize = 512;
/// Name of the account of the others.
const OTHERS: &str = "";

/// The budgets, and what was beyond them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Folding {
    now: BootNs,
    accounts: BTreeMap<String, Account>,
    containers: BTreeMap<String, Account>,
    pub(super) due: Option<BootNs>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Account {
    budget: Bucket,
    folded: Vec<Folded>,
}

/// Events of one kind that were only counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Folded {
    kind: Kind,
    /// Since the last summary.
    count: u64,
    from: BootNs,
    until: BootNs,
    told: Option<BootNs>,
    uid: Common<u32>,
    cgroup: Common<String>,
    unit: Common<String>,
    netns: Common<NsInum>,
    mntns: Common<NsInum>,
    last_pid: Option<u32>,
    /// Whose network it is, where the budget is that of a container.
    target: Common<Shared<Target>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Common<T> {
    #[default]
    None,
    /// All of them that have one have the same.
    One(T),
    Several,
}

impl<T: Clone> Common<T> {
    fn add<Q>(&mut self, value: Option<&Q>)
    where
        T: std::borrow::Borrow<Q>,
        Q: PartialEq + ToOwned<Owned = T> + ?Sized,
    {
        match (&*self, value) {
            (Self::None, Some(value)) => *self = Self::One(value.to_owned()),
            (Self::One(known), Some(value)) if known.borrow() != value => *self = Self::Several,
            _ => {}
        }
    }

    fn one(&self) -> Option<T> {
        match self {
            Self::One(value) => Some(value.clone()),
            Self::None | Self::Several => None,
        }
    }
}

impl Folding {
    /// Whether the account of an event has one left; else the event is counted.
    pub(super) fn admits(&mut self, rate: EventRate, budget: Budget, account: &str, event: &Event) -> bool {
        self.now = self.now.max(event.at);
        let now = self.now;
        let (account, is_shared) = self.account(budget, account);
        let of_one = SECOND / u64::from(rate.rate.max(1));
        let price = Price { of_one, of_all: of_one.saturating_mul(u64::from(rate.burst)) };
        if account.budget.take(now, price) {
            return true;
        }
        let due = account.fold(event, budget, is_shared);
        self.due = Some(self.due.map_or(due, |other| other.min(due)));
        false
    }

    /// What is to be told now; with `all`, what was counted so far.
    fn take_due(&mut self, now: BootNs, all: bool) -> Vec<Folded> {
        if !all && self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        self.now = self.now.max(now);
        let mut taken = Vec::new();
        let accounts = self.accounts.values_mut().chain(self.containers.values_mut());
        for folded in accounts.flat_map(|account| &mut account.folded) {
            if folded.count > 0 && (all || folded.due() <= now) {
                let rest = Folded { count: 0, told: Some(now), ..folded.clone() };
                taken.push(std::mem::replace(folded, rest));
            }
        }
        let accounts = self.accounts.values().chain(self.containers.values());
        let open = accounts.flat_map(|account| &account.folded);
        self.due = open.filter(|folded| folded.count > 0).map(Folded::due).min();
        taken
    }

    /// The account of this name, and whether it is that of all others.
    fn account(&mut self, budget: Budget, name: &str) -> (&mut Account, bool) {
        let now = self.now;
        let accounts = match budget {
            Budget::User => &mut self.accounts,
            Budget::Container => &mut self.containers,
        };
        let mut name = name;
        if !accounts.contains_key(name) {
            if accounts.len() >= ACCOUNTS_MAX {
                accounts.retain(|_, account| !account.is_idle(now));
            }
            if accounts.len() >= ACCOUNTS_MAX {
                name = OTHERS;
            }
        }
        (accounts.entry(name.to_owned()).or_default(), name == OTHERS)
    }
}

impl Account {
    /// Whether it has its whole burst, and nothing to tell or to wait for.
    fn is_idle(&self, now: BootNs) -> bool {
        let is_told = |folded: &Folded| {
            folded.count == 0 && folded.told.is_none_or(|told| told.saturating_add(AGAIN_NS) <= now)
        };
        self.budget.is_whole(now) && self.folded.iter().all(is_told)
    }

    /// Counts an event; returns when it is to be told.
    fn fold(&mut self, event: &Event, budget: Budget, is_shared: bool) -> BootNs {
        let index = self.folded.iter().position(|folded| folded.kind == event.kind);
        let index = index.unwrap_or_else(|| {
            self.folded.push(Folded::new(event.kind));
            self.folded.len() - 1
        });
        let folded = &mut self.folded[index];
        if folded.count == 0 {
            *folded = Folded { told: folded.told, from: event.at, ..Folded::new(event.kind) };
        }
        folded.add(event);
        if budget == Budget::Container && folded.target == Common::None {
            let target = event.target.clone().filter(|_| !is_shared);
            folded.target = target.map_or(Common::Several, Common::One);
        }
        folded.due()
    }
}

impl Folded {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            count: 0,
            from: 0,
            until: 0,
            told: None,
            uid: Common::None,
            cgroup: Common::None,
            unit: Common::None,
            netns: Common::None,
            mntns: Common::None,
            last_pid: None,
            target: Common::None,
        }
    }

    fn add(&mut self, event: &Event) {
        self.count += 1;
        (self.from, self.until) = (self.from.min(event.at), self.until.max(event.at));
        if let Some(actor) = &event.actor {
            self.uid.add(actor.uid.as_ref());
            self.cgroup.add(actor.cgroup.as_deref());
            self.unit.add(actor.unit.as_deref());
            self.last_pid = Some(actor.pid);
        }
        let netns = [
            event.neighbor.as_ref().map(|neighbor| neighbor.netns),
            event.link.as_ref().map(|link| link.netns),
            event.route.as_ref().map(|route| route.netns),
            event.rule.as_ref().map(|rule| rule.netns),
        ];
        self.netns.add(netns.into_iter().flatten().next().as_ref());
        self.mntns.add(event.mount.as_ref().map(|mount| &mount.mntns));
    }

    fn due(&self) -> BootNs {
        let first = self.from.saturating_add(FIRST_NS);
        self.told.map_or(first, |told| first.max(told.saturating_add(AGAIN_NS)))
    }
}

impl Core {
    /// Emits the summaries that are due; with `all`, of all that was counted so far.
    pub(super) fn tell_folded(&mut self, now: BootNs, all: bool) {
        for folded in self.folding.take_due(now, all) {
            let Folded { kind, count, from, until, last_pid, target, .. } = folded;
            let throttled = Throttled {
                lane: Throttled::EVENTS.to_owned(),
                kind: Some(kind.name().to_owned()),
                count,
                from: self.wall_time(from),
                to: self.wall_time(until),
                netns: folded.netns.one(),
                mntns: folded.mntns.one(),
                uid: folded.uid.one(),
                cgroup: folded.cgroup.one().filter(|path| path != "/"),
                unit: folded.unit.one(),
                last_pid,
                ..Throttled::default()
            };
            let plural = if count == 1 { "" } else { "s" };
            let what = format!("{count} {} event{plural}", kind.name());
            let (message, severity) = match &target {
                Common::One(target) => {
                    let whose = owner_phrase(target);
                    let message =
                        format!("beyond the budget of one container, and only counted: {what}{whose}");
                    (message, Severity::Warning)
                }
                Common::Several => {
                    let of_others = "beyond the shared budget of containers without a budget of their own";
                    (format!("{of_others}, and only counted: {what}"), Severity::Warning)
                }
                Common::None => {
                    let (place, who) = (place(&throttled), who(&throttled));
                    let of_users = "beyond the budget of one account for events of users alone";
                    (format!("{of_users}, and only counted: {what}{place}{who}"), Severity::Notice)
                }
            };
            let event = Event {
                throttled: Some(Box::new(throttled)),
                target: target.one(),
                ..self.event(now, Kind::EventsThrottled, severity, message)
            };
            self.emit(event);
        }
    }
}

fn place(throttled: &Throttled) -> String {
    match (throttled.netns, throttled.mntns) {
        (Some(netns), _) => format!(" in net:[{netns}]"),
        (None, Some(mntns)) => format!(" in mnt:[{mntns}]"),
        (None, None) => String::new(),
    }
}

fn who(throttled: &Throttled) -> String {
    match (throttled.uid, throttled.unit.as_ref().or(throttled.cgroup.as_ref())) {
        (Some(uid), _) => format!(" by uid {uid}"),
        (None, Some(group)) => format!(" by {}", name(group)),
        (None, None) => String::new(),
    }
}
