//! The only modules that touch the kernel, /proc and sockets. Each turns one of them into observations.

use kevtmon_observation::{Fact, Observation, Source};
use kevtmon_types::clock::boot_now;

pub mod beat;
pub mod capabilities;
pub mod cni;
pub mod components;
mod grpc;
pub mod ipam;
pub mod kernel;
pub mod kubelet;
pub mod kubelet_pods;
pub mod logs;
pub mod loop_device;
pub mod neighbor_tables;
pub mod netlink;
pub mod nfs_mounts;
pub mod pod_remains;
pub mod pools;
pub mod procfs;
pub mod programs;
pub mod rbd;
pub mod runtime;
pub mod socket_netns;
pub mod unix_sockets;

/// What readers of /proc do for sources.
pub fn jobs() -> impl Iterator<Item = procfs::readers::Entry> {
    use procfs::readers::entry;
    let own = [
        entry::<netlink::Discover>(),
        entry::<netlink::Open>(),
        entry::<runtime::FindCheckpoints>(),
        entry::<runtime::Identify>(),
        entry::<runtime::Prove>(),
        entry::<runtime::ReadStateFiles>(),
        entry::<runtime::StillRuns>(),
        entry::<kubelet::Look>(),
        entry::<kubelet_pods::Connect>(),
        entry::<cni::FindNetns>(),
        entry::<components::Look>(),
        entry::<pod_remains::Look>(),
        entry::<ipam::Look>(),
        entry::<nfs_mounts::Look>(),
        entry::<rbd::Look>(),
    ];
    procfs::readers::JOBS.into_iter().chain(own)
}

/// Where sources put observations. Bounded: a full queue makes the source wait, so that the kernel
/// buffers and counts what it cannot.
pub type Sender = tokio::sync::mpsc::Sender<Observation>;

/// Answered once all that the kernel had given to a source by then was delivered: messages and records of the kernel
/// programs come by different ways.
pub type Barrier = tokio::sync::oneshot::Sender<()>;

/// Runs a task until the receiver of observations is gone: it need not look for that, nor whether it is heard.
pub fn spawn_until_closed(tx: Sender, task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(async move { until_closed(&tx, task).await });
}

/// The same, of a task that is not started by itself.
pub async fn until_closed(tx: &Sender, task: impl Future<Output = ()>) {
    tokio::select! {
        () = task => {}
        () = tx.closed() => {}
    }
}

/// Observes a fact now, unless the receiver is gone, as it is when the daemon ends.
pub async fn tell(tx: &Sender, fact: Fact) {
    send(tx, observed_now(fact)).await;
}

/// Delivers an observation, unless the receiver is gone.
pub async fn send(tx: &Sender, observation: Observation) {
    let _ = tx.send(observation).await;
}

/// An observation of the daemon itself, with the current time.
pub fn observed_now(fact: Fact) -> Observation {
    observed_now_by(Source::Daemon, fact)
}

/// An observation of a source, with the current time.
pub fn observed_now_by(source: Source, fact: Fact) -> Observation {
    Observation { at: boot_now(), source, fact }
}
