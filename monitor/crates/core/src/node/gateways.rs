//! Neighbor entries of default gateways: their state, and whether they were static before.
//!
//! Input: snapshots and live changes. A snapshot takes time to read, so a live change received just before it takes
//! precedence. Whether an entry is correct is not decided here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kevtmon_observation::{BootNs, LlAddr, NeighborChange, NeighborEntry, NeighborOp, NsInum, NudState};
use serde::{Deserialize, Serialize};

/// Upper bound of the time to read a namespace: a snapshot that arrives later was read after the change.
pub(super) const READ_DURATION_NS: u64 = 1_000_000_000;
/// A learned entry that is confirmed this long after the static one was deleted has replaced it.
const REPLACED_AFTER_NS: u64 = 60_000_000_000;
const CAPACITY: usize = 16;

#[serde_with::apply(_ => #[serde(skip_serializing_if = "crate::saved::is_new")])]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gateway {
    /// State and link-layer address; `None` when there is no entry.
    pub entry: Option<(NudState, Option<LlAddr>)>,
    /// Link-layer address of the static entry that exists, or that existed and was not replaced since.
    pub static_lladdr: Option<LlAddr>,
    /// Link-layer address of the static entry that one of another state with the same address has replaced.
    former_lladdr: Option<LlAddr>,
    /// Whether a learned entry was ever seen with a link-layer address.
    pub worked: bool,
    /// Whether its route went together with its interface or address, and nobody deleted it by itself.
    pub went_with_link: bool,
    pub ifname: String,
    /// Whether an earlier run of the daemon saw the static entry last, or the interface, and this one did not.
    pub gone_before_start: bool,
    static_at: BootNs,
    /// Since when it is known to have been static without a break.
    static_since: BootNs,
    changed_at: Option<BootNs>,
}

impl Gateway {
    /// Whether the entry is static (`NUD_PERMANENT`).
    pub fn is_static(&self) -> bool {
        self.entry.as_ref().is_some_and(|(state, _)| state.is_permanent())
    }

    /// Whether the entry is static, and was at a time of late.
    pub(super) fn was_static(&self, at: BootNs) -> bool {
        self.is_static() && self.static_since <= at
    }

    /// Whether the entry is learned and has a link-layer address to send to.
    pub fn is_learned(&self) -> bool {
        self.entry.as_ref().is_some_and(|(state, _)| state.is_usable())
    }

    /// Whether the kernel never checks the address of the entry, although it is not static (`NUD_NOARP`).
    pub fn is_unchecked(&self) -> bool {
        self.entry.as_ref().is_some_and(|(state, _)| *state == NudState::NOARP)
    }

    /// Whether packets go to where a static entry had them go, though it is static no longer.
    pub fn is_as_before(&self) -> bool {
        self.is_learned() && self.former_lladdr.is_some() && self.former_lladdr.as_ref() == self.lladdr()
    }

    /// Whether resolution is in progress or has failed.
    pub fn is_unresolved(&self) -> bool {
        let unresolved = NudState::FAILED.0 | NudState::INCOMPLETE.0;
        self.entry.as_ref().is_some_and(|(state, _)| state.0 & unresolved != 0)
    }

    /// Whether a live change was received since then.
    pub fn changed_since(&self, at: BootNs) -> bool {
        self.changed_at.is_some_and(|changed| changed >= at)
    }

    /// The link-layer address that packets are sent to, if any.
    pub fn lladdr(&self) -> Option<&LlAddr> {
        self.entry.as_ref().and_then(|(_, lladdr)| lladdr.as_ref())
    }

    fn set(&mut self, at: BootNs, entry: Option<(NudState, Option<LlAddr>)>) {
        let was_static = self.is_static();
        self.entry = entry;
        if self.is_static() {
            if !was_static {
                self.static_since = at;
            }
            self.gone_before_start = false;
            self.static_lladdr = self.lladdr().cloned();
            self.former_lladdr = None;
            self.static_at = at;
        } else if self.is_learned() {
            self.worked = true;
            if self.static_lladdr.is_some() && self.static_lladdr.as_ref() == self.lladdr() {
                // Packets go where they went: from now on it is an entry like any that was learned.
                self.former_lladdr = self.static_lladdr.take();
            }
            self.gone_before_start &= self.static_lladdr.is_some();
            let confirmed = self.entry.as_ref().is_some_and(|(state, _)| *state == NudState(0x02));
            if confirmed && self.static_at.saturating_add(REPLACED_AFTER_NS) <= at {
                self.static_lladdr = None;
            }
        }
    }
}

/// A gateway as an earlier run of the daemon knew it last, with what identifies its namespace: inode numbers are used
/// again. Also one that had been lost by then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownEntry {
    pub netns: NsInum,
    /// Its cookie, where the kernel has it.
    pub cookie: Option<u64>,
    /// Its oldest process with its start, where the kernel has no cookie.
    pub owner: Option<(u32, BootNs)>,
    pub ifindex: u32,
    pub address: IpAddr,
    /// Link-layer address of its static entry; `None` where it was only ever learned.
    pub lladdr: Option<LlAddr>,
    pub ifname: String,
    /// What a diagnosis suspects of it, in that diagnosis' own form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspected: Option<serde_json::Value>,
}

/// The gateways of one namespace, by interface index and address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Gateways {
    #[serde(with = "kevtmon_types::pairs")]
    known: BTreeMap<(u32, IpAddr), Gateway>,
}

impl Gateways {
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, IpAddr, &Gateway)> {
        self.known.iter().map(|((ifindex, address), gateway)| (*ifindex, *address, gateway))
    }

    pub(super) fn get(&self, ifindex: u32, address: IpAddr) -> Option<&Gateway> {
        self.known.get(&(ifindex, address))
    }

    /// An earlier run knew a gateway. `is_gone`: its interface or address is gone, and the route with it.
    pub(super) fn compare_previous(&mut self, at: BootNs, known: &KnownEntry, is_gone: bool) {
        let key = (known.ifindex, known.address);
        if is_gone && self.known.len() < CAPACITY {
            self.known.entry(key).or_insert_with(|| Gateway {
                went_with_link: true,
                gone_before_start: true,
                ifname: known.ifname.clone(),
                ..Gateway::default()
            });
        }
        let Some(gateway) = self.known.get_mut(&key) else { return };
        gateway.worked |= known.lladdr.is_none();
        if !gateway.is_static() && gateway.static_lladdr.is_none() && known.lladdr.is_some() {
            gateway.static_lladdr.clone_from(&known.lladdr);
            gateway.static_at = at;
            gateway.gone_before_start = true;
        }
    }

    /// Records the name of the interface of a gateway in use.
    pub(super) fn set_in_use(&mut self, key: (u32, IpAddr), ifname: &str) {
        if let Some(gateway) = self.known.get_mut(&key) {
            gateway.went_with_link = false;
            if gateway.ifname != ifname {
                ifname.clone_into(&mut gateway.ifname);
            }
        }
    }

    pub(super) fn set_went_with_link(&mut self, key: (u32, IpAddr), went_with_link: bool) {
        if let Some(gateway) = self.known.get_mut(&key) {
            gateway.went_with_link = went_with_link;
        }
    }

    /// Applies the default gateways in use and the neighbor table of a snapshot, which was read not before the first and not
    /// after the second of these times.
    pub(super) fn replace(
        &mut self,
        (began, ended): (BootNs, BootNs),
        in_use: &BTreeSet<(u32, IpAddr)>,
        missed: &BTreeSet<(u32, IpAddr)>,
        neighbors: &[NeighborEntry],
    ) {
        for gateway in in_use {
            self.known.entry(*gateway).or_default();
        }
        // An address that packets need is kept where it went together with its interface, address or route.
        self.known.retain(|key, gateway| {
            let had_entry = gateway.static_lladdr.is_some() || gateway.worked;
            in_use.contains(key) || (had_entry && missed.contains(key))
        });
        while self.known.len() > CAPACITY {
            if !self.drop_spare(in_use) {
                self.known.pop_last();
            }
        }
        let mut seen: BTreeMap<(u32, IpAddr), &NeighborEntry> = neighbors
            .iter()
            .filter(|entry| self.known.contains_key(&(entry.ifindex, entry.address)))
            .map(|entry| ((entry.ifindex, entry.address), entry))
            .collect();
        for (key, gateway) in &mut self.known {
            if gateway.changed_at.is_some_and(|changed| began < changed.saturating_add(READ_DURATION_NS)) {
                continue;
            }
            let entry = seen.remove(key).map(|entry| (entry.state, entry.lladdr.clone()));
            gateway.set(ended, entry);
        }
    }

    /// Drops one that is not in use, of which there may be many between two snapshots.
    fn drop_spare(&mut self, in_use: &BTreeSet<(u32, IpAddr)>) -> bool {
        let spare = self.known.keys().find(|key| !in_use.contains(key)).copied();
        spare.is_some_and(|spare| self.known.remove(&spare).is_some())
    }

    pub(super) fn change(
        &mut self,
        at: BootNs,
        change: &NeighborChange,
        is_gateway: bool,
        in_use: &BTreeSet<(u32, IpAddr)>,
    ) {
        let key = (change.key.ifindex, change.key.address);
        let has_room = |all: &mut Self| {
            is_gateway && (all.known.len() < CAPACITY || in_use.contains(&key) && all.drop_spare(in_use))
        };
        if !self.known.contains_key(&key) && !has_room(self) {
            return;
        }
        let gateway = self.known.entry(key).or_default();
        if change.old_state.is_some_and(NudState::is_permanent) {
            gateway.static_lladdr = change.lladdr.clone().or(gateway.static_lladdr.take());
            gateway.static_at = at;
        }
        let entry = match change.op {
            NeighborOp::Deleted => None,
            NeighborOp::Failed => Some((NudState::FAILED, None)),
            NeighborOp::Added | NeighborOp::Changed => {
                let lladdr = change.new_lladdr.clone().or_else(|| change.lladdr.clone());
                change.new_state.map(|state| (state, lladdr))
            }
        };
        gateway.set(at, entry);
        gateway.changed_at = Some(at);
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::{NeighborCause, NeighborKey};
    use kevtmon_types::clock::SECOND as S;

    use super::*;

    /// A reading that took no time.
    fn at(time: BootNs) -> (BootNs, BootNs) {
        (time, time)
    }

    fn address() -> IpAddr {
        "169.254.1.1".parse().unwrap()
    }

    fn lladdr() -> LlAddr {
        LlAddr(vec![0xee; 6])
    }

    fn in_use() -> BTreeSet<(u32, IpAddr)> {
        BTreeSet::from([(2, address())])
    }

    fn entry(state: u8) -> Vec<NeighborEntry> {
        let lladdr = (state & 0x21 == 0).then(lladdr);
        vec![NeighborEntry { ifindex: 2, address: address(), state: NudState(state), lladdr }]
    }

    fn another(state: u8) -> Vec<NeighborEntry> {
        vec![NeighborEntry { lladdr: Some(LlAddr(vec![0x02; 6])), ..entry(state).remove(0) }]
    }

    fn deletion() -> NeighborChange {
        NeighborChange {
            key: NeighborKey { netns: 7, ifindex: 2, address: address() },
            ifname: "eth0".into(),
            op: NeighborOp::Deleted,
            cause: NeighborCause::Admin,
            old_state: Some(NudState::PERMANENT),
            new_state: None,
            lladdr: Some(lladdr()),
            new_lladdr: None,
            device_lladdr: None,
            actor: None,
            netlink_port: None,
            netns_cookie: None,
            netns_of_user: false,
        }
    }

    #[test]
    fn a_deleted_static_entry_is_remembered_even_without_its_route() {
        let mut gateways = Gateways::default();
        gateways.replace(at(S), &in_use(), &in_use(), &entry(0x80));
        assert!(gateways.get(2, address()).unwrap().is_static());
        gateways.replace(at(2 * S), &BTreeSet::new(), &in_use(), &[]);
        let gateway = gateways.get(2, address()).unwrap();
        assert_eq!((gateway.entry.as_ref(), gateway.static_lladdr.as_ref()), (None, Some(&lladdr())));
    }

    #[test]
    fn a_snapshot_that_was_being_read_does_not_undo_a_change_that_came_live() {
        let mut gateways = Gateways::default();
        gateways.replace(at(S), &in_use(), &in_use(), &entry(0x80));
        gateways.change(2 * S, &deletion(), true, &in_use());
        gateways.replace(at(2 * S + S / 2), &in_use(), &in_use(), &entry(0x80));
        assert!(!gateways.get(2, address()).unwrap().is_static());
        gateways.replace(at(3 * S), &in_use(), &in_use(), &entry(0x80));
        assert!(gateways.get(2, address()).unwrap().is_static());
    }

    #[test]
    fn a_learned_entry_takes_the_place_of_a_static_one_once_it_is_confirmed_a_minute_later() {
        let mut gateways = Gateways::default();
        gateways.replace(at(S), &in_use(), &in_use(), &entry(0x80));
        gateways.replace(at(20 * S), &in_use(), &in_use(), &another(0x02));
        assert!(gateways.get(2, address()).unwrap().static_lladdr.is_some());
        gateways.replace(at(62 * S), &in_use(), &in_use(), &another(0x04));
        assert!(gateways.get(2, address()).unwrap().static_lladdr.is_some(), "stale is not confirmed");
        gateways.replace(at(63 * S), &in_use(), &in_use(), &another(0x02));
        let gateway = gateways.get(2, address()).unwrap();
        assert!(gateway.static_lladdr.is_none() && !gateway.is_as_before());
    }

    #[test]
    fn an_entry_of_the_same_address_takes_the_place_of_a_static_one_at_once() {
        for state in [0x02, 0x04, 0x08, 0x10, 0x40] {
            let mut gateways = Gateways::default();
            gateways.replace(at(S), &in_use(), &in_use(), &entry(0x80));
            gateways.replace(at(20 * S), &in_use(), &in_use(), &[]);
            gateways.replace(at(22 * S), &in_use(), &in_use(), &entry(state));
            let gateway = gateways.get(2, address()).unwrap();
            assert!(gateway.is_as_before() && gateway.static_lladdr.is_none(), "{state}");
            assert_eq!(gateway.is_unchecked(), state == 0x40);
            gateways.replace(at(25 * S), &in_use(), &in_use(), &another(state));
            assert!(!gateways.get(2, address()).unwrap().is_as_before(), "{state}");
        }
    }

    #[test]
    fn neighbors_that_are_no_gateway_are_not_kept() {
        let mut gateways = Gateways::default();
        gateways.replace(at(S), &BTreeSet::new(), &BTreeSet::new(), &entry(0x80));
        gateways.change(S, &deletion(), false, &BTreeSet::new());
        assert_eq!(gateways.iter().count(), 0);
    }

    #[test]
    fn gateways_are_bounded() {
        let mut gateways = Gateways::default();
        for index in 0..1000_u32 {
            let mut one = deletion();
            one.key.ifindex = index;
            gateways.change(S, &one, true, &BTreeSet::new());
        }
        assert_eq!(gateways.iter().count(), CAPACITY);
        gateways.change(S, &deletion(), true, &in_use());
        assert_eq!(gateways.iter().count(), CAPACITY);
        assert!(gateways.get(2, address()).is_some(), "one in use takes the place of one that is not");
    }
}
