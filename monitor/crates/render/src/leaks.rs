//! Mounts that are left in other namespaces: who has them, a line each, what is missing below.

use kevtmon_core::leak::LeftMounts;
use kevtmon_event::{Confidence, LeakedMount, leak_holder};
use kevtmon_types::escape::name;

use super::escaped;

/// The answer as text; empty where none was found and nothing is missing.
pub fn text(left: &LeftMounts) -> String {
    let mut lines = Vec::new();
    let mut holder = None;
    for leak in &left.leaks {
        let actor = &leak.holder;
        let now = (actor.pid, leak.mount.mntns);
        if holder.replace(now) != Some(now) {
            let label = leak_holder(actor);
            let pid = if label.contains("(pid ") { String::new() } else { format!(" (pid {})", actor.pid) };
            lines.push(format!("{label}{pid}, mnt:[{}]:", leak.mount.mntns));
        }
        lines.push(format!("  {}", mount(&leak.mount)));
    }
    lines.extend(left.unreadable.iter().map(|unreadable| {
        let comm = unreadable.comm.as_deref().map_or_else(|| "process".into(), name);
        let process = unreadable.pid.map_or_else(String::new, |pid| format!("{comm} (pid {pid}): "));
        format!("incomplete: {process}{}", escaped(&unreadable.reason))
    }));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn mount(leak: &LeakedMount) -> String {
    let at = name(&leak.identity.mount_point);
    let (fstype, source) = (name(&leak.fstype), name(&leak.source));
    let mut text = format!("{at} ({fstype} {source}, {}): {}", leak.propagation.name(), leak.phrase());
    // Of others, the path is what they are called by.
    let has_name = leak.volume.is_some() || leak.staged.is_some() || leak.container.is_some();
    if let Some(path) = leak.path.as_deref().filter(|_| has_name) {
        let was = if leak.confidence == Confidence::Certain { "was" } else { "likely was" };
        text.push_str(&format!("; {was} {}", name(path)));
    }
    if let Some(bind) = &leak.bind {
        let propagation = bind.propagation.as_deref().unwrap_or(leak.propagation.name());
        let (source, destination) = (name(&bind.source), name(&bind.destination));
        text.push_str(&format!("; by {source} at {destination} ({propagation})"));
    }
    text
}
