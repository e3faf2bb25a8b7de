//! How long the daemon takes until it is ready, and to read everything again after messages of the kernel were lost, with 10 to
//! 1,000 network namespaces; and how long an event waits meanwhile.
//!
//! The namespaces are real, each with the network of a pod. Messages are lost because the daemon is stopped while more of them
//! come than its socket has room for.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "it prints figures, and a set-up that fails must end it"
)]

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS};
use kevtmon_tests::network::NeighbourState;
use kevtmon_tests::pod::{GATEWAY_LLADDR, Pod};
use kevtmon_tests::storm::address;
use kevtmon_tests::usage::Usage;
use nix::sys::signal::Signal;

const NAMESPACES: [usize; 3] = [10, 250, 1_000];
const ROUNDS: usize = 5;
/// Addresses that come and go while the daemon is stopped, in each of these namespaces.
const BURST: usize = 12_000;
const BURSTS: usize = 4;

fn main() -> io::Result<()> {
    let (mut pods, mut entries) = (Vec::new(), 0);
    for count in NAMESPACES {
        while pods.len() < count {
            pods.push(Pod::new());
        }
        let mut starts = Vec::new();
        for _ in 1..ROUNDS {
            let (_usage, _daemon, ready) = start(&pods);
            starts.push(ready);
        }
        let (usage, mut daemon, last) = start(&pods);
        starts.push(last);
        println!("{count} namespaces: start to ready {}", spread(&mut starts));
        let (mut resyncs, mut waits) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (resync, wait) = resync(&mut daemon, &pods, &mut entries);
            resyncs.push(resync);
            waits.push(wait);
        }
        println!("  all read again after a loss: {}", spread(&mut resyncs));
        println!("  longest wait of an event meanwhile: {}", spread(&mut waits));
        println!(
            "  processor: {:.1} s in all; memory: {}",
            usage.processor_seconds(),
            usage.memory(&daemon)?
        );
    }
    Ok(())
}

/// A daemon that is ready, and knows all of them.
fn start(pods: &[Pod]) -> (Usage, Daemon, Duration) {
    let usage = Usage::new();
    let began = Instant::now();
    let daemon = usage.launch().config(WITHOUT_BUDGETS).start();
    let ready = began.elapsed();
    let last = pods.last().expect("there are some").inum();
    assert!(daemon.model_of(last).is_some(), "what was there before is known once it is ready");
    (usage, daemon, ready)
}

/// How long it takes from where it goes on until everything was read again, and how long the slowest event waited meanwhile.
fn resync(daemon: &mut Daemon, pods: &[Pod], entries: &mut u32) -> (Duration, Duration) {
    let resyncs =
        |daemon: &Daemon| daemon.metrics().count("kevtmon_netlink_resyncs_total", &[("reason", "overrun")]);
    let before = resyncs(daemon);
    daemon.signal(Signal::SIGSTOP);
    thread::scope(|scope| {
        for pod in &pods[..BURSTS] {
            scope.spawn(|| pod.netns().ip(&["-force", "-batch", "-"], &burst()));
        }
    });
    let observed = &pods[pods.len() - 1];
    let netns = observed.inum();
    let went_on = Instant::now();
    daemon.signal(Signal::SIGCONT);
    let mut slowest = Duration::ZERO;
    loop {
        let address = address(*entries);
        *entries += 1;
        observed.set_neighbor(&address, GATEWAY_LLADDR, NeighbourState::Permanent);
        let began = Instant::now();
        let entry = address.parse().expect("an address");
        observed.netns().network(|network| network.delete_neighbor("eth0", entry));
        daemon.wait_for("its deletion", |event| event.is_deletion(netns, &address));
        slowest = slowest.max(began.elapsed());
        if resyncs(daemon) > before {
            return (went_on.elapsed(), slowest);
        }
    }
}

fn burst() -> String {
    let lines = |index: usize| {
        let address =
            format!("10.{}.{}.{}/32 dev eth0", 200 + index / 62_500, index / 250 % 250, index % 250 + 1);
        format!("address add {address}\naddress del {address}\n")
    };
    (0..BURST).map(lines).collect()
}

/// The least, the middle and the most.
fn spread(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let (least, middle, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    format!("{:.0?} / {:.0?} / {:.0?} (min / median / max of {})", least, middle, most, times.len())
}
