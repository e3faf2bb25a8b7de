//! Looks at the neighbor entries of the host's namespace from time to time: those that are not resolved are told.
//!
//! Changes of them are not listened to: a listener slows down whoever changes neighbors, and that an entry stays as it is has
//! no message.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use kevtmon_observation::{Fact, HostNeighbor};
use kevtmon_types::clock::boot_now;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::NeighbourMessage;
use tokio::time::sleep_until;

use super::dump::{self, BUDGET};
use super::message;
use super::socket::{RequestError, RequestSocket};
use crate::beat::at_look;
use crate::{Sender, spawn_until_closed, tell};

const INTERVAL: Duration = Duration::from_secs(10);
/// Entries that are told: the table of a node has some thousand at most, of which few are not resolved.
const MOST: usize = 256;

/// Follows them until the receiver of observations is gone. To be called where the host's network namespace is that of the
/// process.
pub fn follow_host_neighbors(tx: Sender) {
    spawn_until_closed(tx.clone(), follow(tx));
}

async fn follow(tx: Sender) {
    let mut told = HashSet::new();
    loop {
        sleep_until(at_look(INTERVAL)).await;
        let before = told.clone();
        let failure = "cannot read the neighbor entries of the host";
        let Some(entries) = dump::read_on_thread(failure, move || read(&before)).await else { continue };
        // That there is still none is no news.
        if entries.is_empty() && told.is_empty() {
            continue;
        }
        let unresolved = entries.iter().filter(|entry| entry.state.is_unresolved());
        told = unresolved.map(|entry| (entry.ifindex, entry.address)).collect();
        tell(&tx, Fact::HostNeighbors(entries)).await;
    }
}

/// Those that are not resolved, and of those that were told before the present state.
fn read(told: &HashSet<(u32, IpAddr)>) -> Result<Vec<HostNeighbor>, RequestError> {
    let mut entries = Vec::new();
    let now = boot_now();
    let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
    RequestSocket::open(BUDGET)?.dump(request, |message| {
        let found = message::host_neighbor(now, message.payload()).ok().flatten();
        let is_told = |entry: &HostNeighbor| told.contains(&(entry.ifindex, entry.address));
        entries.extend(found.filter(|entry| entry.state.is_unresolved() || is_told(entry)));
    })?;
    // The table has no order. The same ones are told at each look, as far as there are not too many.
    let key = |entry: &HostNeighbor| (entry.ifindex, entry.address);
    entries.sort_unstable_by_key(|entry| (!told.contains(&key(entry)), key(entry)));
    entries.truncate(MOST);
    Ok(entries)
}
