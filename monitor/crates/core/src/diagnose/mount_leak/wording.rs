//! What is said of mounts that are left.

use kevtmon_event::{Confidence, LeakedMount, leak_holder};
use kevtmon_observation::KernelMounts;
use kevtmon_types::escape::name;

use super::{Leak, Refused};

/// One sentence: who has what, by what it came, what stays in use for it. `leaks`: the surest first. `refused`: what was of
/// the first of them.
pub(super) fn summary(leaks: &[&Leak], kernel: &KernelMounts, refused: Option<Refused>) -> String {
    let Some(first) = leaks.first() else { return String::new() };
    let mount = &first.mount;
    let (what, at) = (mount.phrase(), name(&mount.identity.mount_point));
    let alike = leaks.iter().filter(|leak| leak.mount.confidence == mount.confidence).count();
    let more = match alike - 1 {
        0 => String::new(),
        1 => ", and 1 more such mount".to_owned(),
        more => format!(", and {more} more such mounts"),
    };
    let them = if alike == 1 { "it" } else { "them" };
    let mut text = format!("{} still has {what} mounted at {at}{more}", leak_holder(&first.holder));
    // Of what is only likely it, nobody has seen that.
    text.push_str(&match mount.confidence {
        Confidence::Certain => format!(", though the host has unmounted {them}"),
        _ => format!(", with nothing of {them} mounted on the host"),
    });
    match leaks.len() - alike {
        0 => {}
        1 => text.push_str(", and 1 more mount that is likely leaked"),
        others => text.push_str(&format!(", and {others} more mounts that are likely leaked")),
    }
    if let Some(bind) = &mount.bind {
        let propagation = bind.propagation.as_deref().unwrap_or(mount.propagation.name());
        let source = name(&bind.source);
        text.push_str(&match bind.destination == mount.identity.mount_point {
            true => format!("; it came by {source} ({propagation})"),
            false => format!("; it came by {source}, mounted at {} ({propagation})", name(&bind.destination)),
        });
    }
    if mount.without_process {
        text.push_str("; no process is left in that mount namespace: an open file or a mount keeps it");
    }
    text.push_str(&format!("; {}", stays(mount)));
    text.push_str(match refused {
        Some(Refused::Seen) => "; an unmount, removal or rename of it was refused (EBUSY)",
        Some(Refused::ByRuntime) => {
            "; the runtime says that the removal of its directory was refused (EBUSY)"
        }
        None => "",
    });
    if kernel.removes_despite_copies() == Some(false) {
        let setting = if kernel.may_detach == Some(false) { " with fs.may_detach_mounts = 0" } else { "" };
        text.push_str(&format!(
            "; Linux {}{setting} refuses to remove its directory (EBUSY)",
            release(kernel)
        ));
    }
    text
}

/// What a copy keeps.
fn stays(mount: &LeakedMount) -> String {
    if mount.is_of_block_device() {
        let (device, source) = (&mount.identity.device, name(&mount.source));
        return format!("its device {source} ({device}) stays in use");
    }
    if mount.is_of_file_server() {
        return "its file server is not asked to end".to_owned();
    }
    "its file system stays mounted".to_owned()
}

/// What such a copy does not do.
pub(super) fn ruled_out(kernel: &KernelMounts) -> Vec<String> {
    match kernel.removes_despite_copies() {
        Some(true) => {
            vec![format!("no unmount or removal is refused for it alone by Linux {}", release(kernel))]
        }
        Some(false) | None => Vec::new(),
    }
}

/// The first two numbers.
fn release(kernel: &KernelMounts) -> String {
    let numbers: Vec<&str> = kernel.release.split('.').take(2).collect();
    name(&numbers.join(".")).into_owned()
}
