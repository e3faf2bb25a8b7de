//! What discoveries and dumps mean for the model: which namespaces are new, gone, or to be read, and what
//! their links are connected to.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use kevtmon_observation::{BootNs, Fact, NetnsSnapshot, NsInum, Observation, RouteFacts, Source};
use kevtmon_types::error_chain::chain;

use super::discover::DiscoveredNetns;
use super::dump::{PeerName, ReadError, Reading};
use super::nsid::PeerLookup;
use super::stream::Stream;
use crate::observed_now_by;

impl Stream {
    pub(super) async fn discovered(
        &mut self,
        all: bool,
        began: Instant,
        found: HashMap<NsInum, DiscoveredNetns>,
    ) {
        let took = began.elapsed();
        // What is in the socket by now was sent under the names as they were before.
        self.drain().await;
        let now = Instant::now();
        self.schedule.discovery_done(now, took);
        let is_renamed = |found: &&DiscoveredNetns| {
            self.found.get(&found.netns).is_some_and(|before| before.name != found.name)
        };
        // Another one may have its name by now.
        let renamed: HashSet<NsInum> = found.values().filter(is_renamed).map(|found| found.netns).collect();
        self.found = found;
        let named = self.found.values().filter_map(|found| Some((found.nsid?, found.netns)));
        let gained = self.names.discovered(named, all);
        // A request that arrived after the discovery began waits for the next one.
        let asked = |netns: &NsInum| self.wanted.get(netns).is_some_and(|asked| *asked <= began);
        let is_lost = |netns: &NsInum| {
            *netns != self.host
                && !self.found.contains_key(netns)
                && (asked(netns) || self.known.contains(netns) && !self.names.has_nsid(*netns))
        };
        let lost: HashSet<NsInum> =
            self.known.iter().chain(self.wanted.keys()).filter(|netns| is_lost(netns)).copied().collect();
        for netns in lost {
            self.gone(netns).await;
        }
        if all {
            self.schedule.enqueue(self.host);
        }
        let is_due = |netns: &NsInum| {
            let has_owner = self.found.get(netns).is_some_and(DiscoveredNetns::had_processes);
            all || !self.known.contains(netns)
                || gained.contains(netns)
                || renamed.contains(netns)
                || self.wanted.contains_key(netns)
                || has_owner && self.ownerless.contains(netns)
        };
        let mut due: Vec<NsInum> = self.found.keys().copied().filter(is_due).collect();
        due.sort_unstable();
        due.into_iter().for_each(|netns| self.schedule.enqueue(netns));
        if self.wanted.keys().any(|netns| *netns != self.host && !self.found.contains_key(netns)) {
            self.schedule.plan_discovery(now, 0);
        }
        if let Some(tries) = self.names.tries() {
            self.schedule.plan_discovery(now, tries);
        }
    }

    pub(super) async fn read(
        &mut self,
        netns: NsInum,
        heard: BootNs,
        reading: Result<Box<Reading>, ReadError>,
    ) {
        let is_route = |one: &Observation| {
            matches!(one.fact, Fact::RouteAsked { .. } | Fact::Route(_) | Fact::RouteGone(_))
        };
        let (routes, pending): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(is_route);
        let now = Instant::now();
        match reading {
            Ok(reading) => {
                if reading.interrupted {
                    self.schedule.mark_stale(netns, now);
                }
                self.schedule.read_done(netns, now);
                if let Some(nsid) = reading.nsid {
                    // What changed before its messages arrived is in the next reading.
                    self.names.name(nsid.id, netns, nsid.assigned);
                    self.schedule.enqueue(netns);
                    return self.send_if_known(netns, pending).await;
                }
                if self.is_abandoned(netns, &reading) {
                    self.wanted.entry(netns).or_insert(now);
                    self.schedule.plan_discovery(now, 0);
                    return self.send_if_known(netns, pending).await;
                }
                if netns != self.host && reading.snapshot.owner.is_none() {
                    self.ownerless.insert(netns);
                } else {
                    self.ownerless.remove(&netns);
                }
                self.known.insert(netns);
                let undecoded = reading.undecoded;
                let mut snapshot = self.adopt(*reading, &pending);
                catch_up(&mut snapshot.routes, routes);
                // What waits for the routes is judged by the next reading, which has these changes.
                let is_stale = |change: &Observation| matches!(change.fact, Fact::NetnsStale { .. });
                snapshot.is_outdated = pending.iter().any(is_stale);
                if !snapshot.is_outdated {
                    self.wanted.remove(&netns);
                } else if self.wanted.contains_key(&netns) {
                    self.schedule.enqueue(netns);
                }
                self.send(observed_now_by(Source::Netlink, Fact::NetnsHeard { netns, until: heard })).await;
                let (earlier, later) = split(pending, &snapshot);
                self.send_all(earlier).await;
                self.send(observed_now_by(Source::Netlink, Fact::Netns(Box::new(snapshot)))).await;
                self.send_all(later).await;
                if undecoded > 0 {
                    self.lost("decode", Some(undecoded)).await;
                }
            }
            Err(error) => {
                let text = chain(&error);
                tracing::debug!(netns, error = text, "cannot read a namespace");
                self.send_if_known(netns, pending).await;
                if matches!(error, ReadError::Vanished) {
                    self.schedule.plan_discovery(now, 0);
                }
                if netns == self.host {
                    self.down(text.clone()).await;
                }
                if matches!(error, ReadError::Enter(_)) {
                    // A capability is missing: a retry would not help, and one report is enough.
                    if self.refused.replace(text.clone()).is_none() {
                        tracing::warn!(error = text, "cannot read other namespaces");
                    }
                } else if self.schedule.read_failed(netns, now, netns == self.host) {
                    return;
                } else {
                    tracing::warn!(netns, error = text, "cannot read a namespace; it is not tried again");
                }
                self.gone(netns).await;
            }
        }
    }

    async fn send_if_known(&mut self, netns: NsInum, pending: VecDeque<Observation>) {
        if self.known.contains(&netns) {
            self.send_all(pending).await;
        }
    }

    /// Whether the processes that the last discovery found have left, so that another one has to look for others, once.
    fn is_abandoned(&mut self, netns: NsInum, reading: &Reading) -> bool {
        let had_processes = self.found.get(&netns).is_some_and(DiscoveredNetns::had_processes);
        if reading.snapshot.owner.is_none() && had_processes && self.abandoned.insert(netns) {
            return true;
        }
        self.abandoned.remove(&netns);
        false
    }

    /// Records the nsids of a dump, and resolves them in its links.
    fn adopt(&mut self, reading: Reading, pending: &VecDeque<Observation>) -> NetnsSnapshot {
        let Reading { mut snapshot, peers, names, .. } = reading;
        let netns = snapshot.netns;
        snapshot.unheard = netns != self.host && (self.is_host_only() || !self.names.has_nsid(netns));
        // What was said meanwhile of a link, and that it is gone, is newer than the dump.
        let newer: HashSet<u32> = pending
            .iter()
            .filter_map(|observation| link_of(&observation.fact))
            .map(|(ifindex, _)| ifindex)
            .collect();
        self.unresolved.retain(|(of, ifindex), _| *of != netns || newer.contains(ifindex));
        for (ifindex, nsid) in peers {
            if netns != self.host {
                let peer = match names.get(&nsid) {
                    Some(PeerName::Host) => Some(self.host),
                    Some(PeerName::Nsid(name)) => self.names.get(*name),
                    None => None,
                };
                self.names.learn(netns, nsid, peer, snapshot.foreign_userns);
            }
            let Some(link) = snapshot.links.iter_mut().find(|link| link.ifindex == ifindex) else { continue };
            match self.names.peer(self.host, netns, nsid) {
                PeerLookup::Known(peer) => {
                    if let Some(end) = link.other_mut() {
                        end.netns = Some(peer);
                    }
                }
                PeerLookup::Unknowable => {}
                // The kernel was asked a moment ago.
                PeerLookup::Unknown if netns != self.host => {}
                PeerLookup::Unknown => {
                    if !newer.contains(&ifindex) {
                        self.unresolved.insert((netns, ifindex), (link.clone(), nsid));
                    }
                    self.unknown_nsid(nsid);
                }
            }
        }
        if let Some(memory) = &mut self.memory {
            memory.dumped(&snapshot);
        }
        snapshot
    }

    /// Sends links whose peer has become known.
    pub(super) async fn resolve(&mut self) {
        let (names, host) = (&self.names, self.host);
        let mut resolved = Vec::new();
        self.unresolved.retain(|(netns, _), (link, nsid)| match names.peer(host, *netns, *nsid) {
            PeerLookup::Unknown => true,
            PeerLookup::Unknowable => false,
            PeerLookup::Known(peer) => {
                let mut link = link.clone();
                if let Some(end) = link.other_mut() {
                    end.netns = Some(peer);
                }
                resolved.push(link);
                false
            }
        });
        for link in resolved {
            self.send(observed_now_by(Source::Netlink, Fact::Link(Box::new(link)))).await;
        }
    }
}

/// Applies the changes that were told while routes were read: whether the dump has them already or not, afterwards it has
/// them all.
fn catch_up(routes: &mut Vec<RouteFacts>, told: VecDeque<Observation>) {
    for change in told {
        match change.fact {
            Fact::Route(route) if !routes.contains(&route) => routes.push(route),
            Fact::RouteGone(gone) => routes.retain(|route| *route != gone),
            _ => {}
        }
    }
}

/// Of the changes that came meanwhile, those that the dump had seen for certain: of links that it lacks, and that are gone. Told
/// after it, they would make a link come back that went with the dump.
fn split(
    pending: VecDeque<Observation>,
    dump: &NetnsSnapshot,
) -> (VecDeque<Observation>, VecDeque<Observation>) {
    let mut gone = HashSet::new();
    for observation in &pending {
        match link_of(&observation.fact) {
            Some((ifindex, true)) => gone.insert(ifindex),
            Some((ifindex, false)) => gone.remove(&ifindex),
            None => continue,
        };
    }
    dump.links.iter().for_each(|link| {
        gone.remove(&link.ifindex);
    });
    let is_earlier = |fact: &Fact| link_of(fact).is_some_and(|(ifindex, _)| gone.contains(&ifindex));
    pending.into_iter().partition(|observation| is_earlier(&observation.fact))
}

/// The link that a change is about, and whether it is gone.
fn link_of(fact: &Fact) -> Option<(u32, bool)> {
    match fact {
        Fact::Link(link) => Some((link.ifindex, false)),
        Fact::LinkGone { ifindex, .. } => Some((*ifindex, true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::{LinkFacts, PeerLink};
    use tokio::sync::mpsc;

    use super::*;
    use crate::netlink::NetlinkConfig;
    use crate::netlink::job::Job;
    use crate::netlink::socket::Subscription;
    use crate::procfs::Proc;

    const HOST: NsInum = 1;
    const NSID: i32 = 5;

    fn link(ifindex: u32) -> LinkFacts {
        let peer = Some(PeerLink { ifindex: 2, netns: None });
        LinkFacts { netns: HOST, ifindex, ifname: format!("veth{ifindex}"), peer, ..LinkFacts::default() }
    }

    fn reading(links: Vec<LinkFacts>) -> Reading {
        let peers = links.iter().map(|link| (link.ifindex, NSID)).collect();
        let snapshot = NetnsSnapshot { netns: HOST, links, ..NetnsSnapshot::default() };
        let names = HashMap::new();
        Reading { snapshot, peers, names, nsid: None, interrupted: false, undecoded: 0 }
    }

    #[tokio::test]
    async fn a_link_that_went_while_it_was_dumped_does_not_come_back_when_its_peer_is_known() {
        let socket = Subscription::open(4096, &[]).unwrap().watch().unwrap();
        let (tx, mut rx) = mpsc::channel(8);
        let mut stream = Stream::new(NetlinkConfig::default(), Proc::default().into(), HOST, socket, tx);
        let gone = Fact::LinkGone { netns: HOST, ifindex: 7, moved_to: None };
        let pending = [observed_now_by(Source::Netlink, gone)].into();
        let snapshot = stream.adopt(reading(vec![link(7), link(8)]), &pending);
        assert_eq!(snapshot.links.len(), 2, "that it is gone follows");
        stream.names.name(NSID, 99, None);
        stream.resolve().await;
        drop(stream);
        let mut sent = Vec::new();
        while let Some(observation) = rx.recv().await {
            let Fact::Link(link) = observation.fact else { panic!("{observation:?}") };
            sent.push((link.ifindex, link.peer.and_then(|peer| peer.netns)));
        }
        assert_eq!(sent, [(8, Some(99))]);
    }

    #[tokio::test]
    async fn routes_that_change_while_they_are_read_are_told_once_and_are_in_what_was_read() {
        let socket = Subscription::open(4096, &[]).unwrap().watch().unwrap();
        let (tx, mut rx) = mpsc::channel(16);
        let mut stream = Stream::new(NetlinkConfig::default(), Proc::default().into(), HOST, socket, tx);
        let [old, passing, new] =
            [1, 2, 3].map(|last| RouteFacts::default_via(HOST, [10, 0, 0, last].into(), 7));
        stream.job = Some(Job::reading(HOST, 0, std::future::pending()));
        let changes = [
            Fact::Route(passing.clone()),
            Fact::RouteGone(old.clone()),
            Fact::RouteGone(passing.clone()),
            Fact::Route(new.clone()),
        ];
        for fact in changes.clone() {
            stream.deliver(HOST, observed_now_by(Source::Netlink, fact)).await;
        }
        // The dump had begun before all of it, or ended after it; or it saw something in between.
        for seen in [vec![old.clone()], vec![new.clone()], vec![old, passing]] {
            let mut routes = seen;
            catch_up(&mut routes, stream.pending.clone());
            assert_eq!(routes, std::slice::from_ref(&new));
        }
        let mut reading = reading(Vec::new());
        reading.snapshot.routes = vec![new.clone()];
        stream.read(HOST, 0, Ok(Box::new(reading))).await;
        drop(stream);
        let mut sent = Vec::new();
        while let Some(observation) = rx.recv().await {
            sent.push(observation.fact);
        }
        assert_eq!(sent[..4], changes);
        let [Fact::NetnsHeard { .. }, Fact::Netns(snapshot)] = &sent[4..] else { panic!("{sent:?}") };
        assert_eq!((&snapshot.routes, snapshot.is_outdated), (&vec![new], false));
    }

    #[test]
    fn what_a_dump_knows_to_be_gone_is_told_before_it() {
        let change = |ifindex| observed_now_by(Source::Netlink, Fact::Link(Box::new(link(ifindex))));
        let gone = |ifindex| {
            observed_now_by(Source::Netlink, Fact::LinkGone { netns: HOST, ifindex, moved_to: None })
        };
        let dump = reading(vec![link(8)]).snapshot;
        // 7 went before the dump, 8 after it; 9 is new, and so is 10, which had been another one before.
        let pending = [change(7), gone(8), change(9), gone(7), gone(10), change(10)].into();
        let (earlier, later) = split(pending, &dump);
        let links =
            |all: VecDeque<Observation>| all.iter().filter_map(|one| link_of(&one.fact)).collect::<Vec<_>>();
        assert_eq!(links(earlier), [(7, false), (7, true)]);
        assert_eq!(links(later), [(8, true), (9, false), (10, true), (10, false)]);
    }
}
