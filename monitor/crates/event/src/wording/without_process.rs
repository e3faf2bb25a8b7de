//! Holders of a mount that are no process, and those that only may hold it.

use kevtmon_observation::Access;
use kevtmon_types::escape::name;

use super::holder_label;
use crate::MountHolder;

/// What the kernel holds for no process: a loop device with what uses it, a swap file, an export; or a mount namespace that no
/// process was found to keep.
pub fn kernel_label(holder: &MountHolder) -> String {
    let path = name(holder.path.as_deref().unwrap_or_default());
    match (holder.access, &holder.loop_device) {
        (Access::Loop, Some(device)) => {
            let mut text = format!("loop device {}, whose backing file is {path}", device.name);
            if let Some(first) = device.mounts.first() {
                text.push_str(&format!(", mounted at {}", name(first)));
            } else if let Some(first) = device.elsewhere.first() {
                let process = format!("{} (pid {})", name(&first.comm), first.pid);
                text.push_str(&format!(
                    ", mounted at {} in the mount namespace of {process}",
                    name(&first.path)
                ));
            }
            if !device.devices.is_empty() {
                text.push_str(&format!(", used by {}", device.devices.join(", ")));
            }
            text
        }
        (Access::Loop, None) => format!("a loop device, whose backing file is {path}"),
        (Access::Swap, _) => format!("the swap file {path}"),
        (Access::Export, _) => match &holder.source {
            Some(netns) => format!("the NFS export {path} in {netns}"),
            None => format!("the NFS export {path}"),
        },
        (Access::Uprobe, _) => format!("a uprobe in {path}"),
        (Access::Nfs, _) => nfs_label(holder),
        _ => {
            let number = holder.mntns.map_or_else(String::new, |mntns| format!(" mnt:[{mntns}]"));
            format!("a mount namespace{number} without a process")
        }
    }
}

/// A mount of NFS: what its server exports, and where it is mounted.
pub fn nfs_label(holder: &MountHolder) -> String {
    let [source, path] = [&holder.source, &holder.path].map(|text| name(text.as_deref().unwrap_or_default()));
    format!("the NFS mount {source} at {path}")
}

/// Those that only may hold the mount, where nobody does for certain; `None` where there are none.
pub(super) fn possible_holders(holders: &[MountHolder]) -> Option<String> {
    let possible = || holders.iter().filter(|holder| holder.possible && holder.access != Access::Mount);
    let first = possible().next()?;
    let label = holder_label(first);
    let what = match (first.access, &first.path) {
        (Access::InFlight, _) => format!("{label} with a file in a socket"),
        (Access::IoUring, Some(path)) => format!("{label} with a file of an io_uring called {}", name(path)),
        (Access::IoUring, None) => format!("{label} with a file of an io_uring"),
        (Access::PerfEvent, _) => format!("{label} with a perf event, possibly a probe in a file"),
        (Access::Call, _) => format!("{label} with a pending system call"),
        _ => label,
    };
    let others = match possible().count() - 1 {
        0 => String::new(),
        more => format!(" or {more} more"),
    };
    Some(format!("no holder found for certain; possibly it is held by {what}{others}"))
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::{LoopDevice, MountedElsewhere, Verdict};

    use super::super::holders_phrase;
    use super::*;
    use crate::test_support::sample;

    fn holder(pid: u32, access: Access, path: &str) -> MountHolder {
        let holder = sample::busy().holders.unwrap()[0].clone();
        let comm = if pid == 0 { String::new() } else { "sender".to_owned() };
        let path = Some(path.to_owned());
        MountHolder { pid, comm, access, path, container: None, uid: Some(0), ..holder }
    }

    #[test]
    fn a_loop_device_is_named_with_what_uses_it() {
        let device = sample::loop_device("/dev/loop3");
        let held = |device| {
            let held = MountHolder { loop_device: Some(device), ..holder(0, Access::Loop, "/v/image") };
            holders_phrase(&[held], Verdict::Kernel)
        };
        let alone = "held by loop device /dev/loop3, whose backing file is /v/image";
        assert_eq!(held(device.clone()), alone);
        let used = LoopDevice { mounts: vec!["/a b".into()], devices: vec!["dm-0".into()], ..device };
        assert_eq!(held(used), format!("{alone}, mounted at \"/a b\", used by dm-0"));
        let there = MountedElsewhere { path: "/m".into(), mntns: 7, pid: 9, comm: "sleep".into() };
        let used = LoopDevice { elsewhere: vec![there], ..sample::loop_device("/dev/loop3") };
        assert_eq!(held(used), format!("{alone}, mounted at /m in the mount namespace of sleep (pid 9)"));
    }

    #[test]
    fn what_only_may_hold_it_is_not_said_to() {
        let of = |access| MountHolder { possible: true, ..holder(7, access, "/v/file") };
        let swap = MountHolder { possible: true, ..holder(0, Access::Swap, "/v/swap") };
        let phrase = |holders: &[MountHolder]| holders_phrase(holders, Verdict::Incomplete);
        let may = "no holder found for certain; possibly it is held by";
        assert_eq!(phrase(std::slice::from_ref(&swap)), format!("{may} the swap file /v/swap"));
        assert_eq!(
            phrase(&[of(Access::InFlight), swap.clone()]),
            format!("{may} sender (pid 7) with a file in a socket or 1 more")
        );
        let certain = holder(8, Access::Cwd, "/v");
        assert_eq!(phrase(&[swap, certain]), "held by sender (pid 8) as its current directory");
    }

    #[test]
    fn an_export_is_told_with_its_network_namespace_if_that_is_another_one() {
        let mut export = MountHolder { possible: true, source: None, ..holder(0, Access::Export, "/v/a b") };
        assert_eq!(kernel_label(&export), "the NFS export \"/v/a b\"");
        export.source = Some("net:[42]".to_owned());
        assert_eq!(kernel_label(&export), "the NFS export \"/v/a b\" in net:[42]");
    }

    #[test]
    fn a_copy_in_a_namespace_without_a_process_has_no_process() {
        let copy = MountHolder { mntns: Some(42), ..holder(0, Access::Mount, "/v") };
        let copies = super::super::copies_phrase(&[copy]).unwrap();
        assert_eq!(copies, "a mount namespace mnt:[42] without a process");
    }
}
