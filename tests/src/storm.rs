//! Permanent neighbor entries that come and go, each with an address of its own.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::network::Network;
use crate::pod::Pod;

/// Address of an entry, as the daemon writes it.
#[must_use]
pub fn address(entry: u32) -> String {
    ipv4(entry).to_string()
}

/// Address of an entry.
#[must_use]
pub fn ipv4(entry: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a4d_0000 + (entry / 250) * 256 + entry % 250 + 1)
}

/// Lets these entries come and go, once.
pub fn storm(pod: &Pod, entries: Range<u32>) {
    pod.netns().churn(entries.map(ipv4));
}

/// A storm that lasts until it is dropped.
#[derive(Debug)]
pub struct Storm {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Storm {
    /// Lets these entries come and go, again and again.
    #[must_use]
    pub fn of(pod: &Pod, entries: Range<u32>) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let (seen, netns) = (Arc::clone(&stopped), pod.netns().path().to_owned());
        let rounds = move |network: &Network| {
            while !seen.load(Ordering::Relaxed) {
                network.churn_neighbors("eth0", entries.clone().map(ipv4))?;
            }
            Ok(())
        };
        // Ends also when the namespace is gone.
        let run = move || drop(Network::within(&netns, rounds));
        Self { stopped, thread: Some(std::thread::spawn(run)) }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_has_an_address_of_its_own() {
        assert_eq!(address(0), "10.77.0.1");
        assert_eq!(address(249), "10.77.0.250");
        assert_eq!(address(250), "10.77.1.1");
    }
}
