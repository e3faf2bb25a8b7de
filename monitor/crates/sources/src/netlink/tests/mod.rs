//! The source against the running kernel, in namespaces made for one test each. Needs root.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kevtmon_observation::{Fact, LinkFacts, NetnsSnapshot, NsInum, Observation};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{NetlinkConfig, NetlinkSource};
use crate::procfs::Proc;

mod consistency;
mod decode;
mod namespaces;
mod neighbors;
mod routes;

fn patience() -> Duration {
    let seconds = std::env::var("KEVTMON_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split_ascii_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

struct Netns {
    name: String,
    inode: NsInum,
}

impl Netns {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kevtmon-test-{}-{count}", std::process::id());
        ip(&format!("netns add {name}"));
        let inode = std::fs::metadata(format!("/run/netns/{name}")).unwrap().ino();
        Self { name, inode: inode.try_into().unwrap() }
    }

    fn ip(&self, words: &str) {
        ip(&format!("-n {} {words}", self.name));
    }

    /// Name of the host's end of the pair: unique, as the host is shared.
    fn veth(&self) -> String {
        format!("kt{}", self.inode)
    }

    /// A pair into the host: `eth0` with 10.9.0.2/24 and a permanent gateway 10.9.0.1.
    fn connect(&self) {
        ip(&format!("link add {} type veth peer name eth0 netns {}", self.veth(), self.name));
        ip(&format!("link set {} up", self.veth()));
        self.ip("link set eth0 up");
        self.ip("addr add 10.9.0.2/24 dev eth0");
        self.ip("route add default via 10.9.0.1");
        self.ip("neigh add 10.9.0.1 lladdr ee:ee:ee:ee:ee:ee nud permanent dev eth0");
    }

    /// Deletes the name; the namespace dies when nothing else holds it.
    fn delete(&self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        self.delete();
    }
}

struct Running {
    host: NsInum,
    facts: mpsc::Receiver<Observation>,
    requests: mpsc::Sender<NsInum>,
    barriers: mpsc::Sender<super::Barrier>,
}

impl Running {
    fn start(config: NetlinkConfig) -> Self {
        let source = NetlinkSource::open(config, Proc::default().into()).unwrap();
        let host = source.host();
        let (tx, facts) = mpsc::channel(64);
        let (requests, asked) = mpsc::channel(8);
        let (barriers, waited) = mpsc::channel(1);
        tokio::spawn(source.run(asked, waited, tx));
        Self { host, facts, requests, barriers }
    }

    async fn next(&mut self) -> Fact {
        timeout(patience(), self.facts.recv()).await.expect("no fact in time").unwrap().fact
    }

    /// Skips facts until one gives a value.
    async fn find<T>(&mut self, mut wanted: impl FnMut(Fact) -> Option<T>) -> T {
        loop {
            if let Some(value) = wanted(self.next().await) {
                return value;
            }
        }
    }

    async fn snapshot(&mut self, netns: NsInum) -> NetnsSnapshot {
        self.find(|fact| match fact {
            Fact::Netns(snapshot) if snapshot.netns == netns => Some(*snapshot),
            _ => None,
        })
        .await
    }

    async fn up(&mut self) {
        let up = self
            .find(|fact| match fact {
                Fact::Source(status) => Some(status),
                _ => None,
            })
            .await;
        assert!(up.up, "{up:?}");
        assert_eq!((up.source.as_str(), up.attach_mode.as_deref()), ("netlink", Some("all-nsid")));
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn link<'a>(snapshot: &'a NetnsSnapshot, name: &str) -> &'a LinkFacts {
    snapshot.links.iter().find(|link| link.ifname == name).unwrap_or_else(|| panic!("{name}: {snapshot:?}"))
}

fn addresses(snapshot: &NetnsSnapshot) -> HashSet<IpAddr> {
    snapshot.addresses.iter().map(|address| address.address).collect()
}
