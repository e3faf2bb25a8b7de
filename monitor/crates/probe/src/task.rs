//! The task that was current when a record was written: its identity is part of the record, its details precede the
//! first record that refers to it.

use kevtmon_ebpf::task::{
    AncestorRecord, KIND_TASK, Makers, NAME_CAPACITY, Names, TaskId, TaskOffsets, TaskRecord, counter,
    process_flag,
};
use kevtmon_ebpf::{MISSING, path_mark};
use kevtmon_observation::cgroup::{self, identify, is_roots, most_specific};
use kevtmon_observation::{Ancestor, Fact, TaskContext, TaskFacts, TaskKey, TaskPlace, TaskRef};
use kevtmon_sources::procfs::cgroups::V1_CONTROLLERS;
use kevtmon_types::namespace::NsInum;
use kevtmon_types::redact;
use zerocopy::IntoBytes as _;

use super::btf::{Btf, BtfError};
use super::decode::{DecodeError, layout, text};
use super::hooks::{Decode, LossCount, Offsets, Records};

const _: () = assert!(
    kevtmon_ebpf::task::RESEND_AFTER == kevtmon_observation::RESEND_AFTER as u64,
    "the model keeps as many"
);

/// Which controllers are in a hierarchy of v1.
const CGROUPS: &str = "/proc/cgroups";

/// What the programs of every hook write.
pub(super) const RECORDS: Records = Records {
    kinds: &[(KIND_TASK, Decode::Fact(decode))],
    counts: &[],
    losses: &[
        LossCount { counter: counter::RING_FULL, reason: "task-ring-full" },
        LossCount { counter: counter::USERS_RING_FULL, reason: "task-users-ring-full" },
    ],
};

/// Where the programs of every hook read the current task.
pub(super) const OFFSETS: Offsets = Offsets { global: "TASK_OFFSETS", resolve: offsets };

fn offsets(btf: &Btf<'_>) -> Result<Vec<u8>, BtfError> {
    let hierarchies = std::fs::read_to_string(CGROUPS);
    let controller = V1_CONTROLLERS
        .iter()
        .filter(|name| hierarchies.as_ref().map_or(true, |text| is_in_v1(name, text)))
        .find_map(|name| btf.enumerator("cgroup_subsys_id", &format!("{name}_cgrp_id")));
    let (is_subreaper, is_subreaper_bit) = btf.need_bit("signal_struct.is_child_subreaper")?;
    let (has_subreaper, has_subreaper_bit) = btf.need_bit("signal_struct.has_child_subreaper")?;
    let offsets = TaskOffsets {
        helper_current_task_btf: btf.has_helper("get_current_task_btf").into(),
        net_ns_inum: btf.need("net.ns.inum")?,
        task_flags: btf.need("task_struct.flags")?,
        task_group_leader: btf.need("task_struct.group_leader")?,
        task_real_parent: btf.need("task_struct.real_parent")?,
        task_tgid: btf.need("task_struct.tgid")?,
        task_pid: btf.any_of(&["task_struct.pid"]),
        // Called real_start_time before 5.5.
        task_start_boottime: btf.any_of(&["task_struct.start_boottime", "task_struct.real_start_time"]),
        // Without them nothing shows who started whom.
        task_self_exec_id: btf.need("task_struct.self_exec_id")?,
        task_parent_exec_id: btf.need("task_struct.parent_exec_id")?,
        task_signal: btf.need("task_struct.signal")?,
        signal_flags: btf.need("signal_struct.flags")?,
        signal_is_subreaper: is_subreaper,
        signal_is_subreaper_bit: is_subreaper_bit,
        signal_has_subreaper: has_subreaper,
        signal_has_subreaper_bit: has_subreaper_bit,
        task_comm: btf.need("task_struct.comm")?,
        task_mm: btf.need("task_struct.mm")?,
        task_nsproxy: btf.need("task_struct.nsproxy")?,
        task_cgroups: btf.any_of(&["task_struct.cgroups"]),
        task_cred: btf.need("task_struct.cred")?,
        task_real_cred: btf.need("task_struct.real_cred")?,
        // kuid_t holds one number.
        cred_uid: btf.need("cred.uid")?,
        cred_euid: btf.need("cred.euid")?,
        cred_user_ns: btf.need("cred.user_ns")?,
        // The low word of both forms of `kernel_cap_t`. In all kernels; where it were missing, no unmount and no call of rbd would
        // count.
        cred_cap_effective: btf.any_of(&["cred.cap_effective"]),
        user_namespace_inum: btf.need("user_namespace.ns.inum")?,
        user_namespace_parent: btf.need("user_namespace.parent")?,
        user_namespace_level: btf.need("user_namespace.level")?,
        user_namespace_owner: btf.need("user_namespace.owner")?,
        mm_arg_start: btf.need("mm_struct.arg_start")?,
        mm_arg_end: btf.need("mm_struct.arg_end")?,
        mm_exe_file: btf.need("mm_struct.exe_file")?,
        file_path: btf.need("file.f_path")?,
        task_fs: btf.need("task_struct.fs")?,
        fs_root: btf.need("fs_struct.root")?,
        path_mnt: btf.need("path.mnt")?,
        path_dentry: btf.need("path.dentry")?,
        dentry_parent: btf.need("dentry.d_parent")?,
        dentry_name: btf.need("dentry.d_name.name")?,
        // Null once it is out of the hash table (d_unhashed in include/linux/dcache.h).
        dentry_hashed: btf.need("dentry.d_hash.pprev")?,
        vfsmount_root: btf.need("vfsmount.mnt_root")?,
        mount_vfsmount: btf.need("mount.mnt")?,
        mount_parent: btf.need("mount.mnt_parent")?,
        mount_mountpoint: btf.need("mount.mnt_mountpoint")?,
        nsproxy_net_ns: btf.need("nsproxy.net_ns")?,
        nsproxy_mnt_ns: btf.need("nsproxy.mnt_ns")?,
        mnt_namespace_inum: btf.need("mnt_namespace.ns.inum")?,
        css_set_subsys: match (btf.offset("css_set.subsys"), controller) {
            (Some(offset), Some(index)) => offset + index * 8,
            _ => MISSING,
        },
        css_set_dfl_cgrp: btf.any_of(&["css_set.dfl_cgrp"]),
        css_cgroup: btf.any_of(&["cgroup_subsys_state.cgroup"]),
        cgroup_kn: btf.any_of(&["cgroup.kn"]),
        // Renamed when it came under RCU, 6.15.
        kernfs_parent: btf.any_of(&["kernfs_node.__parent", "kernfs_node.parent"]),
        kernfs_name: btf.any_of(&["kernfs_node.name"]),
        kernfs_id: btf.any_of(&["kernfs_node.id"]),
        // Without them any user could name a container.
        kernfs_mode: btf.need("kernfs_node.mode")?,
        kernfs_iattr: btf.need("kernfs_node.iattr")?,
        kernfs_iattrs_uid: btf.need("kernfs_iattrs.ia_uid")?,
    };
    Ok(offsets.as_bytes().to_vec())
}

/// Whether a controller has a hierarchy of its own by what `/proc/cgroups` says; the unified one is number 0 there, and so
/// is that of a controller that is mounted nowhere: all processes are at its root.
fn is_in_v1(controller: &str, text: &str) -> bool {
    text.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(controller) && words.next().is_some_and(|hierarchy| hierarchy != "0")
    })
}

fn decode(bytes: &[u8], _host_netns: NsInum) -> Result<Fact, DecodeError> {
    Ok(Fact::Task(Box::new(task(layout(bytes)?))))
}

fn task(record: &TaskRecord) -> TaskFacts {
    let argv = record.argv.get(..record.argv_len as usize).unwrap_or(&record.argv);
    TaskFacts {
        key: key(&record.task),
        place: place(&record.task, record.root),
        uid: record.task.uid,
        exe: shown_path(&record.exe, record.exe_marks),
        cmdline: redact::command_line(argv),
        netns: record.task.netns,
        mntns: record.task.mntns,
        cgroup: cgroup(record),
        ancestors: ancestors(record),
    }
}

/// What is compared of a process with the one above it.
#[derive(Clone, Copy)]
struct Below {
    start_ns: u64,
    exec_id: u32,
    flags: u32,
}

fn ancestors(record: &TaskRecord) -> Vec<Ancestor> {
    let TaskRecord { task, flags, .. } = record;
    let mut below = Below { start_ns: task.start_ns, exec_id: task.exec_id, flags: *flags };
    let known = record.ancestors.iter().position(|ancestor| ancestor.tgid == 0);
    // A slice, so that no more room is made than is kept for a long time.
    let known = &record.ancestors[..known.unwrap_or(record.ancestors.len())];
    known
        .iter()
        .map(|above| {
            let started = started(below, above);
            below = Below { start_ns: above.start_ns, exec_id: above.exec_id, flags: above.flags };
            Ancestor {
                tgid: above.tgid,
                start_ns: above.start_ns,
                comm: text(&above.comm),
                started,
                uid: Some(above.uid),
                groups: (above.cgroup_v1, above.cgroup_v2),
                ..Ancestor::default()
            }
        })
        .collect()
}

/// Whether a process, as the program that it is, has started the one below it, with no program in between. That it is
/// the parent alone proves nothing: the kernel gives orphans to the init of their pid namespace or to a subreaper, and
/// whoever clones with `CLONE_PARENT` gives the child to his own parent. `None` where the kernel does not show it.
///
/// Every exec counts one up, and a fork copies the count. So the count that the forking process had then is that of the
/// parent only if the parent has executed nothing since, and is at most one below that of the child only if the child
/// has executed nothing besides what it is. An orphan's may be the same by chance: where the parent may have adopted,
/// only a parent thread other than the first is proof, since orphans go to the first one that lives. One that has ceased
/// to be a subreaper below another one cannot be told.
fn started(below: Below, above: &AncestorRecord) -> Option<bool> {
    use process_flag::{BELOW_SUBREAPER, INIT, KERNEL, LEADER_EXITS, SUBREAPER};
    let has = |flags: u32, flag| flags & flag != 0;
    if above.start_ns > below.start_ns || above.forked_at != above.exec_id || has(above.flags, KERNEL) {
        return Some(false);
    }
    let was_subreaper = has(below.flags, BELOW_SUBREAPER) && !has(above.flags, BELOW_SUBREAPER);
    let may_adopt = has(above.flags, INIT | SUBREAPER) || was_subreaper;
    let by_other_thread = above.by_other_thread != 0 && !has(above.flags, LEADER_EXITS);
    let is_direct = below.exec_id.wrapping_sub(above.forked_at) <= 1;
    (is_direct && (!may_adopt || by_other_thread)).then_some(true)
}

fn key(task: &TaskId) -> TaskKey {
    TaskKey { tgid: task.tgid, start_ns: task.start_ns, exec_id: task.exec_id }
}

fn place(task: &TaskId, root: u32) -> TaskPlace {
    TaskPlace { mntns: task.mntns, root, cgroup_v1: task.cgroup_v1, cgroup_v2: task.cgroup_v2 }
}

/// The path that tells most. One that is cut may lack the container's name, and begin with a name that the container
/// chose: it says nothing, and neither does the other one then, unless that names a container.
fn cgroup(record: &TaskRecord) -> Option<String> {
    let [v1, v2] = [(&record.cgroup_v1, &record.makers_v1), (&record.cgroup_v2, &record.makers_v2)];
    let paths = [path(v1.0, v1.1), path(v2.0, v2.1)];
    let is_cut = |path: &&String| path.starts_with('…');
    let whole = paths.iter().flatten().filter(|path| !is_cut(path)).map(String::as_str);
    // The root group has an empty name on either hierarchy.
    let found = most_specific(whole).unwrap_or("/");
    let certain = !paths.iter().flatten().any(|path| is_cut(&path)) || identify(found).container_id.is_some();
    certain.then(|| found.to_owned())
}

/// The actor of a record, and which root directory it had; `None` where the current task had no part in it.
pub(super) fn actor(task: &TaskId, root: u32) -> Option<TaskRef> {
    (task.tgid != 0).then(|| TaskRef {
        key: key(task),
        tid: task.tid,
        comm: text(&task.comm),
        context: Some(TaskContext {
            uid: task.uid,
            euid: task.euid,
            userns: task.userns,
            netns: task.netns,
            place: place(task, root),
        }),
    })
}

/// The path of a file as its root shows it. What that root does not show is marked as the kernel marks it in `/proc`
/// and in getcwd(2); what did not fit begins with an ellipsis.
pub(super) fn shown_path<const NAME: usize>(names: &[[u8; NAME]], marks: u32) -> Option<String> {
    let has = |mark| marks & mark != 0;
    let mut parts: Vec<String> =
        names.iter().map(|name| text(name)).filter(|name| !name.is_empty()).collect();
    if parts.is_empty() && !has(path_mark::ROOT) {
        return None;
    }
    for part in &mut parts {
        if has(path_mark::CUT) && part.len() == NAME - 1 {
            part.push('…');
        }
    }
    parts.reverse();
    let memfd = has(path_mark::LOOSE) && parts.len() == 1 && parts[0].starts_with("memfd:");
    let root = has(path_mark::ROOT) || (has(path_mark::OTHER_TREE) && has(path_mark::ROOT_COPY));
    let start = if root || memfd {
        "/"
    } else if has(path_mark::OTHER_TREE) || has(path_mark::LOOSE) {
        "(unreachable)/"
    } else {
        "…/"
    };
    let end = if has(path_mark::DELETED) || memfd { " (deleted)" } else { "" };
    Some(format!("{start}{}{end}", parts.join("/")))
}

/// Names from the leaf to the root become a path; the root's own name is `/` or empty. A path that takes more than the slots
/// starts with an ellipsis.
fn path(names: &Names, makers: &Makers) -> Option<String> {
    let mut parts: Vec<(usize, Vec<u8>)> = Vec::new();
    let (mut goes_on, mut root) = (false, None);
    for (slot, name) in names.iter().enumerate() {
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let name = &name[..length];
        match parts.last_mut() {
            Some((_, begin)) if goes_on => begin.extend_from_slice(name),
            _ if matches!(name, b"" | b"/") => {
                root = Some(slot);
                break;
            }
            _ => parts.push((slot, name.to_vec())),
        }
        goes_on = length + 1 >= NAME_CAPACITY;
    }
    if parts.is_empty() {
        return (names[0][0] == b'/').then(|| "/".to_owned());
    }
    // A name was made in the directory above it, which is behind it here.
    let above = parts.iter().skip(1).map(|(slot, _)| Some(*slot)).chain([root]);
    let by_root = above
        .map(|slot| slot.is_none_or(|slot| is_roots(makers.owners[slot], u32::from(makers.modes[slot]))));
    let shown: Vec<String> = parts.iter().map(|(_, name)| text(name)).collect();
    let mut shown: Vec<(&str, bool)> = shown.iter().map(String::as_str).zip(by_root).collect();
    shown.reverse();
    let start = if root.is_none() { "…" } else { "" };
    Some(format!("{start}{}", cgroup::path(shown.into_iter())))
}

#[cfg(test)]
mod tests {
    use kevtmon_ebpf::task::NAMES_DEPTH;
    use zerocopy::FromZeros as _;

    use super::*;

    #[test]
    fn a_path_that_the_root_does_not_show_is_never_shown_as_if_it_did() {
        use path_mark::{CUT, DELETED, LOOSE, OTHER_TREE, ROOT, ROOT_COPY};
        let shown = |list: &[&str], marks| {
            let mut slots = [[0_u8; 8]; 4];
            for (slot, name) in slots.iter_mut().zip(list) {
                slot[..name.len()].copy_from_slice(name.as_bytes());
            }
            shown_path(&slots, marks).unwrap_or_default()
        };
        // An empty slot is where a mount is crossed.
        assert_eq!(shown(&["ip", "", "sbin"], ROOT), "/sbin/ip");
        assert_eq!(shown(&[], ROOT), "/");
        assert_eq!(shown(&[], 0), "");
        assert_eq!(shown(&["ip"], ROOT | DELETED), "/ip (deleted)");
        assert_eq!(shown(&["ip", "sbin"], OTHER_TREE), "(unreachable)/sbin/ip");
        assert_eq!(shown(&["ip", "sbin"], OTHER_TREE | ROOT_COPY), "/sbin/ip");
        assert_eq!(shown(&["ip", "sbin"], LOOSE), "(unreachable)/sbin/ip");
        assert_eq!(shown(&["memfd:x"], LOOSE), "/memfd:x (deleted)");
        assert_eq!(shown(&["memfd:x"], OTHER_TREE), "(unreachable)/memfd:x");
        assert_eq!(shown(&["d", "c", "b", "a"], 0), "…/a/b/c/d");
        assert_eq!(shown(&["abcdefg", "b"], ROOT | CUT), "/b/abcdefg…");
    }

    /// Writes names as the programs do: one that fills its slot goes on in the next one.
    fn write(slots: &mut Names, names: &[&str]) {
        const FULL: usize = NAME_CAPACITY - 1;
        // Behind a name that fills its slot there is one with the rest, if only of no bytes.
        let parts = names.iter().flat_map(|name| {
            let part = move |at: usize| &name.as_bytes()[at * FULL..name.len().min((at + 1) * FULL)];
            (0..=name.len() / FULL).map(part)
        });
        for (slot, part) in slots.iter_mut().zip(parts) {
            *slot = [0; NAME_CAPACITY];
            slot[..part.len()].copy_from_slice(part);
        }
    }

    #[test]
    fn the_control_group_that_names_a_container_counts_and_one_that_is_cut_names_nobody() {
        let container = "c".repeat(64);
        let seen = |v1: &[&str], v2: &[&str]| {
            let mut record = TaskRecord::new_zeroed();
            write(&mut record.cgroup_v1, v1);
            write(&mut record.cgroup_v2, v2);
            cgroup(&record)
        };
        let docker = [container.as_str(), "docker", ""];
        let path = format!("/docker/{container}");
        // With v1 beside v2 either may sit at the root or in the service of the runtime.
        assert_eq!(seen(&[], &docker).as_deref(), Some(path.as_str()));
        assert_eq!(seen(&docker, &[]).as_deref(), Some(path.as_str()));
        assert_eq!(seen(&["docker.service", "system.slice"], &docker).as_deref(), Some(path.as_str()));
        assert_eq!(
            seen(&[], &["kubelet.service", "system.slice"]).as_deref(),
            Some("/system.slice/kubelet.service")
        );
        assert_eq!(seen(&[], &[]).as_deref(), Some("/"));
        // What is cut is the outer end, where the container's own name is; the rest is what the container chose.
        let deep = ["x", "x", "x", "x", "x", "x", "x", "x", container.as_str(), "docker"];
        assert_eq!(seen(&[], &deep), None);
        assert_eq!(seen(&["kubelet.service", "system.slice"], &deep), None);
        assert_eq!(seen(&docker, &deep).as_deref(), Some(path.as_str()));
    }

    #[test]
    fn a_name_that_fills_its_slot_is_read_whole() {
        let seen = |list: &[&str]| {
            let mut record = TaskRecord::new_zeroed();
            write(&mut record.cgroup_v2, list);
            cgroup(&record)
        };
        let container = "c".repeat(64);
        // What runc makes of the name of a slice where it drives cgroupfs.
        let slice = "kubepods-besteffort-pod5c948341_c030_4996_b888_f032577d97b0.slice";
        let named = identify(&seen(&[&format!("{slice}:cri-containerd:{container}")]).unwrap());
        assert_eq!(named.container_id.as_ref(), Some(&container));
        assert_eq!(named.pod_uid.as_deref(), Some("5c948341-c030-4996-b888-f032577d97b0"));
        // What fits into one slot of it is the name of another unit.
        let long = format!("{}.service-of-another", "u".repeat(NAME_CAPACITY - 1 - ".service".len()));
        let longest = "x".repeat(255);
        for name in [long.as_str(), &long[..NAME_CAPACITY - 1], longest.as_str()] {
            let expected = format!("/docker/{container}/{name}/x");
            assert_eq!(seen(&["x", name, &container, "docker"]).as_deref(), Some(&*expected));
        }
        assert_eq!(identify(&seen(&[&long, "system.slice"]).unwrap()).unit.as_deref(), Some("system.slice"));
        // It takes up what others would need.
        let deep = ["x", "x", "x", "x", "x", "x", long.as_str(), container.as_str(), "docker"];
        assert_eq!(seen(&deep[1..]), Some(format!("/docker/{container}/{long}/x/x/x/x/x")));
        assert_eq!(seen(&deep), None);
    }

    #[test]
    fn a_parent_has_started_a_process_only_if_it_can_neither_have_adopted_it_nor_been_given_it() {
        use process_flag::{BELOW_SUBREAPER, INIT, KERNEL, LEADER_EXITS, SUBREAPER};
        let child = Below { start_ns: 20, exec_id: 8, flags: 0 };
        let mut parent = AncestorRecord::new_zeroed();
        (parent.start_ns, parent.exec_id, parent.forked_at) = (10, 7, 7);
        assert_eq!(started(child, &parent), Some(true));
        assert_eq!(started(Below { exec_id: 7, ..child }, &parent), Some(true), "it is a fork");
        // A program was in between: it executed the other one, or cloned it for its own parent.
        assert_eq!(started(Below { exec_id: 9, ..child }, &parent), None);
        assert_eq!(started(child, &AncestorRecord { start_ns: 21, ..parent }), Some(false));
        // The parent was another program then, or another one has forked.
        assert_eq!(started(child, &AncestorRecord { exec_id: 8, ..parent }), Some(false));
        assert_eq!(started(child, &AncestorRecord { exec_id: 6, ..parent }), Some(false));
        assert_eq!(started(child, &AncestorRecord { flags: KERNEL, ..parent }), Some(false));
        let below_subreaper = Below { flags: BELOW_SUBREAPER, ..child };
        let inside = AncestorRecord { flags: BELOW_SUBREAPER, ..parent };
        assert_eq!(started(below_subreaper, &inside), Some(true));
        assert_eq!(started(below_subreaper, &parent), None, "it was a subreaper");
        for flags in [INIT, SUBREAPER, SUBREAPER | BELOW_SUBREAPER] {
            let adopter = AncestorRecord { flags, ..parent };
            assert_eq!(started(below_subreaper, &adopter), None);
            let by_thread = AncestorRecord { by_other_thread: 1, ..adopter };
            assert_eq!(started(below_subreaper, &by_thread), Some(true), "none is adopted by that thread");
            let without_first = AncestorRecord { flags: flags | LEADER_EXITS, ..by_thread };
            assert_eq!(started(below_subreaper, &without_first), None);
        }
    }

    #[test]
    fn a_controller_that_no_hierarchy_of_v1_has_is_not_asked() {
        let text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t9\t1\npids\t0\t60\t1\n";
        assert!(is_in_v1("cpu", text));
        assert!(!is_in_v1("pids", text));
        assert!(!is_in_v1("memory", text));
    }

    #[test]
    fn names_from_leaf_to_root_become_a_path() {
        let names = |list: &[&str]| {
            let mut slots: Names = [[0; NAME_CAPACITY]; NAMES_DEPTH];
            write(&mut slots, list);
            path(&slots, &Makers::new_zeroed())
        };
        assert_eq!(names(&["ip", "sbin", "/", "/", "/"]).as_deref(), Some("/sbin/ip"));
        assert_eq!(names(&["abc", "docker", ""]).as_deref(), Some("/docker/abc"));
        assert_eq!(names(&["/", "/"]).as_deref(), Some("/"));
        assert_eq!(names(&[]), None);
        assert_eq!(names(&["x"; 12]).as_deref(), Some("…/x/x/x/x/x/x/x/x/x/x"));
    }

    #[test]
    fn the_names_that_root_did_not_make_are_set_apart() {
        let mut record = TaskRecord::new_zeroed();
        let container = "c".repeat(64);
        write(&mut record.cgroup_v2, &[&container, "docker", "given", "lxc"]);
        record.makers_v2.modes = [0o755; NAMES_DEPTH];
        assert_eq!(cgroup(&record), Some(format!("/lxc/given/docker/{container}")));
        // What is in the directory `given` is its owner's.
        record.makers_v2.owners[2] = 100_000;
        assert_eq!(cgroup(&record), Some(format!("/lxc/given//docker/{container}")));
        record.makers_v2.modes[3] = 0o777;
        assert_eq!(cgroup(&record), Some(format!("/lxc//given/docker/{container}")));
        // Its own directory holds no name of it.
        (record.makers_v2.owners, record.makers_v2.modes) = ([0; NAMES_DEPTH], [0o755; NAMES_DEPTH]);
        record.makers_v2.owners[0] = 1000;
        assert_eq!(cgroup(&record), Some(format!("/lxc/given/docker/{container}")));
        // A name of two slots has the same directory in both.
        let long = "l".repeat(NAME_CAPACITY);
        write(&mut record.cgroup_v2, &[&container, &long, "given", "lxc"]);
        record.makers_v2.owners = [0, 100_000, 100_000, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(cgroup(&record), Some(format!("/lxc/given/{long}//{container}")));
    }
}
