//! Who holds a path: one line a process, what it lies on above, what is missing below.

use std::collections::BTreeMap;

use kevtmon_core::held::{Held, HeldMount, View};
use kevtmon_event::wording::{kernel_label, pod_label, short_id};
use kevtmon_event::{Container, MountHolder, Pod, Unreadable, servers_phrase};
use kevtmon_observation::{Access, BlockDevice, DeviceUser, HolderReport, Verdict};
use kevtmon_types::escape::name;

use super::escaped;

/// What is absent.
const DASH: &str = "-";
/// Columns between two cells.
const GAP: &str = "  ";
/// Mounts below it, and processes that could not be read, that are named.
const NAMED: usize = 4;

/// Which of them are file servers of volumes of pods.
fn servers<'a>(processes: &'a [Process<'_>]) -> impl Iterator<Item = String> + 'a {
    processes.iter().filter_map(|process| {
        let serves = process.holder.serves.as_ref()?;
        let (server, pid) = (name(&process.holder.comm), process.holder.pid);
        let mountpoint = name(&serves.mountpoint);
        let pod = pod_label(&serves.pod);
        Some(format!("{server} (pid {pid}) {} a volume of pod {pod}: {mountpoint}", serves.verb()))
    })
}

/// Where nothing was found.
const NOBODY: &str = "no holder found: no process, loop device, swap file or NFS export";

/// What no process holds: the kernel does, or a mount namespace has a copy that nobody was found to keep.
fn of_kernel(holders: &[MountHolder]) -> impl Iterator<Item = String> {
    holders.iter().filter(|holder| holder.pid == 0).map(|holder| {
        let label = kernel_label(holder);
        match (holder.access, holder.possible) {
            (Access::Mount, _) => format!("{label} has a copy of it, which does not refuse the unmount"),
            (_, false) => format!("held by {label}"),
            (_, true) => format!("possibly held by {label}: its mount is unknown"),
        }
    })
}

/// The answer as text, empty where no mount was found; `users`: the names of users of the host.
pub fn text(held: &Held, users: &BTreeMap<u32, String>) -> String {
    let Some(mount) = &held.mount else { return String::new() };
    let mut lines = vec![head(held, mount)];
    if let (Some(volume), Some(pod)) = (&mount.volume, &held.pod) {
        lines.push(format!(
            "volume {} ({}) of pod {}",
            name(&volume.name),
            name(&volume.plugin),
            pod_label(pod)
        ));
    }
    let processes = processes(&held.holders);
    if !processes.is_empty() {
        lines.extend(table(&processes, users, held.below));
    }
    lines.extend(servers(&processes));
    match &held.device {
        Some(device) => lines.extend(uses_of_device(device, held)),
        None => lines.extend(of_kernel(&held.holders)),
    }
    let is_used = held.holders.iter().any(|holder| holder.access != Access::Mount);
    lines.extend(notes(held, mount, is_used));
    lines.extend(missing(held).map(|missing| format!("incomplete: {missing}")));
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Where a block device is mounted, and what the kernel uses it for.
fn uses_of_device(device: &BlockDevice, held: &Held) -> Vec<String> {
    let mounts = held.holders.iter().filter(|holder| holder.access == Access::Mount);
    let mounted = mounts.map(|holder| {
        let at = name(holder.path.as_deref().unwrap_or_default());
        let namespace = holder.mntns.map_or_else(String::new, |mntns| format!(" in mnt:[{mntns}]"));
        let who = match holder.pid {
            0 => ", without a process".to_owned(),
            pid => format!(", in which is {} (pid {pid})", name(&holder.comm)),
        };
        format!("mounted at {at}{namespace}{who}")
    });
    let user = |user: &DeviceUser| match &user.mapping {
        Some(mapping) => format!("{} ({})", name(&user.name), name(mapping)),
        None => name(&user.name).into_owned(),
    };
    let made_of_it = (!device.devices.is_empty())
        .then(|| format!("used by the block devices {}", listed(device.devices.iter().map(user))));
    let swap = device.swap.then(|| "used as swap".to_owned());
    let suspended = device.suspended.then(|| "suspended: reads and writes wait".to_owned());
    let target =
        |target: &String| format!("used by the backstore {} of the kernel's SCSI target", name(target));
    let targets = device.targets.iter().map(target);
    let unlocated = "a device of a file system in use, of which no mount was found";
    let unlocated = device.unlocated.then(|| unlocated.to_owned());
    mounted.chain(made_of_it).chain(swap).chain(suspended).chain(targets).chain(unlocated).collect()
}

fn head(held: &Held, mount: &HeldMount) -> String {
    if let Some(device) = &held.device {
        let file = device.backing_file.as_ref();
        let file = file.map_or_else(String::new, |file| format!(", backing file {}", name(file)));
        let node = if held.path == device.name { String::new() } else { format!("{} ", name(&device.name)) };
        return format!(
            "{} is the block device {node}({}{file}); who uses it, in any mount namespace:",
            name(&held.path),
            device.number
        );
    }
    let whose = match held.view {
        View::Init => "process 1",
        View::Kernel => "the kernel's first processes",
        View::Caller => "this process",
    };
    let source = format!("{} {}", name(&mount.fstype), name(&mount.source));
    let of = format!("in the mount namespace of {whose} (mnt:[{}])", mount.mntns);
    match held.below {
        false => format!("{}: {source}, {of}", name(&held.path)),
        true => format!(
            "{} is no mount point; it is on {} ({source}) {of}; who uses what lies below it, through any mount:",
            name(&held.path),
            name(&mount.path),
        ),
    }
}

/// All that a process holds it by.
struct Process<'a> {
    holder: &'a MountHolder,
    /// Each with whether it only may be one.
    accesses: Vec<(Access, bool)>,
}

impl Process<'_> {
    /// Whether it uses the mount, or may, rather than only has a copy of it.
    fn is_user(&self) -> bool {
        self.accesses.iter().any(|(access, _)| *access != Access::Mount)
    }

    /// `below`: whether it is about what lies below a path.
    fn access(&self, below: bool) -> String {
        match (self.is_user(), below) {
            (true, _) => {
                let name = |(access, possible): &(Access, bool)| match possible {
                    true => format!("{}?", access.name()),
                    false => access.name().to_owned(),
                };
                self.accesses.iter().map(name).collect::<Vec<_>>().join(",")
            }
            (false, false) => "copy, refuses no unmount".to_owned(),
            (false, true) => "has it mounted".to_owned(),
        }
    }
}

/// Each process once, those that use the mount first.
fn processes(holders: &[MountHolder]) -> Vec<Process<'_>> {
    let mut processes: BTreeMap<u32, Process<'_>> = BTreeMap::new();
    for holder in holders.iter().filter(|holder| holder.pid != 0) {
        let process = processes.entry(holder.pid).or_insert_with(|| Process { holder, accesses: Vec::new() });
        let access = (holder.access, holder.possible);
        if !process.accesses.contains(&access) {
            process.accesses.push(access);
        }
    }
    let mut processes: Vec<_> = processes.into_values().collect();
    processes.iter_mut().for_each(|process| process.accesses.sort_unstable());
    processes.sort_by_key(|process| !process.is_user());
    processes
}

fn table(processes: &[Process<'_>], users: &BTreeMap<u32, String>, below: bool) -> Vec<String> {
    let header = ["USER", "PID", "ACCESS", "COMMAND", "CONTAINER/UNIT", "POD"].map(str::to_owned);
    let row = |process: &Process<'_>| {
        let holder = process.holder;
        [
            user(holder, users),
            holder.pid.to_string(),
            process.access(below),
            name(&holder.comm).into_owned(),
            holder.container.as_ref().map_or_else(|| unit(holder), container),
            holder.pod.as_ref().map_or_else(|| DASH.to_owned(), pod),
        ]
    };
    let rows: Vec<_> = std::iter::once(header).chain(processes.iter().map(row)).collect();
    let mut widths = [0; 6];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            1 => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join(GAP)
    };
    rows.iter().map(line).collect()
}

/// Within a container a number is another user than on the host.
fn user(holder: &MountHolder, users: &BTreeMap<u32, String>) -> String {
    let Some(uid) = holder.uid else { return DASH.to_owned() };
    let known = users.get(&uid).filter(|_| holder.container.is_none());
    known.map_or_else(|| uid.to_string(), |user| name(user).into_owned())
}

fn unit(holder: &MountHolder) -> String {
    holder.unit.as_ref().map_or_else(|| DASH.to_owned(), |unit| name(unit).into_owned())
}

fn container(container: &Container) -> String {
    let id = escaped(short_id(&container.id));
    container.name.as_ref().map_or_else(|| id.clone(), |known| format!("{} ({id})", name(known)))
}

fn pod(pod: &Pod) -> String {
    format!("{}{}", pod_label(pod), if pod.claimed { " (a claim)" } else { "" })
}

/// What is to be known besides.
fn notes(held: &Held, mount: &HeldMount, is_used: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if held.holders_omitted > 0 {
        notes.push(format!("and {} more holds of processes, not listed", held.holders_omitted));
    }
    if !mount.child_mounts.is_empty() {
        notes.push(format!("mounted below it: {}", listed(mount.child_mounts.iter().map(|path| name(path)))));
    }
    if mount.unserved {
        notes.push("no process found that serves it; its file server is likely gone (ENOTCONN)".to_owned());
    }
    notes.extend(servers_phrase(&mount.servers));
    if let Some(device) = &held.device {
        if held.holders.is_empty() && !device.is_used() {
            notes.push("no mount, process, swap or device above it found".to_owned());
        }
    } else if !is_used {
        let note = match (held.holders_verdict, held.holders.is_empty(), held.below) {
            (Verdict::Transient, ..) => "it went before every process was read",
            (_, true, _) => NOBODY,
            (_, false, false) => {
                "no user found; a copy keeps its file system and does not refuse the unmount"
            }
            (_, false, true) => "no user found; other mount namespaces have it, or a mount below it, mounted",
        };
        notes.push(note.to_owned());
    }
    notes
}

/// What could not be looked into, by its reason.
pub fn missing(held: &Held) -> impl Iterator<Item = String> {
    let mut reasons: Vec<(&str, Vec<&Unreadable>)> = Vec::new();
    for unreadable in &held.holders_unreadable {
        match reasons.iter_mut().find(|(reason, _)| *reason == unreadable.reason) {
            Some((_, of)) => of.push(unreadable),
            None => reasons.push((&unreadable.reason, vec![unreadable])),
        }
    }
    // The list is bounded.
    let is_cut = held.holders_unreadable.len() >= HolderReport::BLIND_SPOTS;
    let line = move |(reason, of): (&str, Vec<&Unreadable>)| {
        let label = |unreadable: &&Unreadable| {
            let pid = unreadable.pid?;
            let comm = unreadable.comm.as_deref().map_or_else(|| "process".into(), name);
            Some(format!("{comm} (pid {pid})"))
        };
        let labels: Vec<String> = of.iter().filter_map(label).collect();
        match labels.is_empty() {
            true => escaped(reason),
            false if is_cut => format!("{}, and possibly others: {}", listed(labels.iter()), escaped(reason)),
            false => format!("{}: {}", listed(labels.iter()), escaped(reason)),
        }
    };
    reasons.into_iter().map(line)
}

fn listed<T: AsRef<str>>(words: impl Iterator<Item = T>) -> String {
    let words: Vec<T> = words.collect();
    let (named, rest) = words.split_at(words.len().min(NAMED));
    let named = named.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    if rest.is_empty() { named } else { format!("{named} and {} more", rest.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "291716a39be9291716a39be9291716a39be9291716a39be9291716a39be92917";

    fn holder(pid: u32, comm: &str, access: Access) -> MountHolder {
        MountHolder {
            pid,
            uid: Some(0),
            init: false,
            comm: comm.to_owned(),
            cmdline: None,
            exe: None,
            access,
            path: None,
            fd: None,
            tid: None,
            unit: None,
            mntns: None,
            container: None,
            pod: None,
            serves: None,
            possible: false,
            loop_device: None,
            source: None,
        }
    }

    fn held(holders: Vec<MountHolder>) -> Held {
        Held {
            view: View::Init,
            path: "/mnt/a b".to_owned(),
            exists: Some(true),
            below: false,
            mount: Some(HeldMount {
                path: "/mnt/a b".to_owned(),
                fstype: "tmpfs".to_owned(),
                source: "none".to_owned(),
                device: "0:9".to_owned(),
                mntns: 7,
                ..HeldMount::default()
            }),
            device: None,
            pod: None,
            holders,
            holders_omitted: 0,
            holders_complete: true,
            holders_unreadable: Vec::new(),
            holders_verdict: Verdict::Processes,
        }
    }

    fn shown(held: &Held) -> Vec<String> {
        text(held, &BTreeMap::from([(0, "root".to_owned())])).lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_process_has_one_line_with_all_its_accesses() {
        let container = Container { name: Some("web".to_owned()), ..Container::of_id(ID.to_owned()) };
        let nginx = MountHolder { container: Some(container), ..holder(1234, "nginx", Access::Fd) };
        let expected = [
            "\"/mnt/a b\": tmpfs none, in the mount namespace of process 1 (mnt:[7])",
            "USER   PID  ACCESS                    COMMAND  CONTAINER/UNIT      POD",
            "root    70  fd,cwd                    sleep    -                   -",
            "0     1234  fd                        nginx    web (291716a39be9)  -",
            "root    12  copy, refuses no unmount  \"a b\"    -                   -",
        ];
        let holders = vec![
            holder(12, "a b", Access::Mount),
            nginx,
            holder(70, "sleep", Access::Cwd),
            holder(70, "sleep", Access::Fd),
        ];
        assert_eq!(shown(&held(holders)), expected);
    }

    #[test]
    fn a_copy_alone_is_not_said_to_hold_it() {
        let lines = shown(&held(vec![holder(12, "dockerd", Access::Mount)]));
        assert!(lines[2].contains("copy, refuses no unmount"), "{lines:?}");
        assert_eq!(
            lines.last().map(String::as_str),
            Some("no user found; a copy keeps its file system and does not refuse the unmount")
        );
    }

    #[test]
    fn what_is_below_a_path_is_told_with_the_mount_that_it_is_on() {
        let mut held = held(vec![holder(70, "sleep", Access::Cwd)]);
        (held.path, held.below) = ("/mnt/a b/c".to_owned(), true);
        let head = "\"/mnt/a b/c\" is no mount point; it is on \"/mnt/a b\" (tmpfs none) in the mount namespace of \
                    process 1 (mnt:[7]); who uses what lies below it, through any mount:";
        assert_eq!(shown(&held)[0], head);
        held.holders = vec![holder(70, "sleep", Access::Mount)];
        let lines = shown(&held);
        assert!(lines[2].starts_with("root   70  has it mounted  sleep"), "{lines:?}");
        assert!(lines[3].starts_with("no user found; other mount namespaces have it"), "{lines:?}");
    }

    #[test]
    fn of_a_block_device_it_is_told_where_it_is_mounted_and_what_is_made_of_it() {
        let copy = MountHolder {
            path: Some("/mnt/a b".to_owned()),
            mntns: Some(8),
            ..holder(12, "sleep", Access::Mount)
        };
        let alone = MountHolder { pid: 0, mntns: Some(9), ..copy.clone() };
        let mut held = held(vec![holder(70, "dd", Access::Fd), copy, alone]);
        let user = DeviceUser {
            name: "dm-0".to_owned(),
            mapping: Some("vg-data".to_owned()),
            kind: Some("LVM".to_owned()),
        };
        (held.path, held.below) = ("/dev/loop1".to_owned(), true);
        held.device = Some(BlockDevice {
            name: "/dev/loop1".to_owned(),
            number: "7:1".to_owned(),
            backing_file: Some("/v/image".to_owned()),
            devices: vec![user],
            swap: true,
            suspended: true,
            unlocated: true,
            targets: vec!["iblock_0/disk".to_owned()],
            ..BlockDevice::default()
        });
        let expected = [
            "/dev/loop1 is the block device (7:1, backing file /v/image); who uses it, in any mount namespace:",
            "USER  PID  ACCESS          COMMAND  CONTAINER/UNIT  POD",
            "root   70  fd              dd       -               -",
            "root   12  has it mounted  sleep    -               -",
            "mounted at \"/mnt/a b\" in mnt:[8], in which is sleep (pid 12)",
            "mounted at \"/mnt/a b\" in mnt:[9], without a process",
            "used by the block devices dm-0 (vg-data)",
            "used as swap",
            "suspended: reads and writes wait",
            "used by the backstore iblock_0/disk of the kernel's SCSI target",
            "a device of a file system in use, of which no mount was found",
        ];
        assert_eq!(shown(&held), expected);
        held.holders.clear();
        held.device = Some(BlockDevice { number: "7:1".to_owned(), ..BlockDevice::default() });
        assert_eq!(shown(&held)[1..], ["no mount, process, swap or device above it found"]);
    }

    #[test]
    fn what_is_missing_is_told_once_for_each_reason() {
        let mut held = held(Vec::new());
        let of =
            |pid| Unreadable { pid: Some(pid), comm: Some("x".to_owned()), reason: "it hangs".to_owned() };
        held.holders_unreadable = (1..=6).map(of).collect();
        held.holders_unreadable.push(Unreadable { pid: None, comm: None, reason: "no time".to_owned() });
        assert_eq!(
            shown(&held)[1..],
            [
                NOBODY,
                "incomplete: x (pid 1), x (pid 2), x (pid 3), x (pid 4) and 2 more: it hangs",
                "incomplete: no time",
            ]
        );
        held.holders_unreadable = (1..=16).map(of).collect();
        let cut = "incomplete: x (pid 1), x (pid 2), x (pid 3), x (pid 4) and 12 more, and possibly others: it hangs";
        assert_eq!(shown(&held)[2], cut);
    }
}
