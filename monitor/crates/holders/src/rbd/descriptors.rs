//! Which processes have the node of an image's device open: by the number of the device, since a node can have any name (a pod's
//! `devicePath`).

use std::collections::BTreeMap;
use std::io;

use kevtmon_observation::{Access, RbdUses};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::{Buffer, Dir, NumberName, is_gone, mnt_id};
use kevtmon_sources::procfs::mountinfo::{MountTable, is_of_the_kernel};

use super::{Device, add};
use crate::Deadline;
use crate::mntns_index::MntnsIndex;
use crate::pins::{Pin, describe};
use crate::searched::answers_at_once;

pub(super) const DESCRIPTORS_MAX: usize = 4096;
/// Mounts that are remembered: users can make very many.
const MOUNTS_MAX: usize = 1 << 17;
/// How files are called that are on no mount of any namespace.
const OF_NO_MOUNT: [&str; 5] = ["/memfd:", "/SYSV", "/[aio]", "/anon_hugepage", "/dmabuf:"];

/// Which mounts may have nodes of devices, by id.
#[derive(Debug, Default)]
pub(super) struct Mounts(BTreeMap<u64, Nodes>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nodes {
    /// Its file system has none.
    None,
    /// What a file is can be asked.
    Asked,
    /// Who asks may have to wait for a server.
    Unasked,
}

impl Mounts {
    pub(super) fn add(&mut self, table: &MountTable) {
        for mount in table.iter() {
            let nodes = match mount.fstype.as_str() {
                fstype if fstype == "devtmpfs" || answers_at_once(fstype) => Nodes::Asked,
                fstype if is_of_the_kernel(fstype) => Nodes::None,
                _ => Nodes::Unasked,
            };
            if self.0.len() < MOUNTS_MAX {
                self.0.insert(mount.id, nodes);
            }
        }
    }

    /// What is known of a mount; of one that came since, from the process that has a file on it.
    fn nodes(&mut self, id: u64, process: &Dir, is_read: &mut bool) -> Option<Nodes> {
        if !self.0.contains_key(&id)
            && !std::mem::replace(is_read, true)
            && let Ok(table) = process.mount_table("/", |_| true)
        {
            self.add(&table);
        }
        self.0.get(&id).copied()
    }
}

pub(super) struct Descriptors<'d> {
    devices: &'d [Device],
    mounts: Mounts,
    links: Buffer,
    numbers: Buffer,
    text: Vec<u8>,
}

impl<'d> Descriptors<'d> {
    pub(super) fn of(devices: &'d [Device], mounts: Mounts) -> Self {
        let (links, numbers) = (Buffer::default(), Buffer::default());
        Self { devices, mounts, links, numbers, text: Vec::new() }
    }

    /// Who has the node of a wanted device open, a descriptor of each process. Of images that a pod has mounted it makes no
    /// difference.
    pub(super) fn look(
        &mut self,
        proc: &Proc,
        index: &MntnsIndex,
        (wanted, deadline): (&[usize], &Deadline),
        found: &mut RbdUses,
    ) {
        if wanted.is_empty() {
            return;
        }
        for (ns, members) in &index.namespaces {
            for member in members.iter().filter(|member| member.tid == member.tgid) {
                if deadline.is_over() {
                    found.complete = false;
                    return;
                }
                let Ok(process) = proc.dir(member.tgid) else { continue };
                let Ok((open, is_all)) = self.open_in(&process) else {
                    found.complete &= !process.is_there(&mut Vec::new());
                    continue;
                };
                found.complete &= is_all;
                for at in wanted.iter().filter(|at| open.iter().any(|(found, _)| found == *at)) {
                    let of_it = open.iter().filter(|(found, _)| found == at).map(|(_, pin)| pin.clone());
                    let holders = describe(proc, member.tgid, &process, *ns, of_it.take(1).collect());
                    if let Some(used) = found.uses.get_mut(*at) {
                        add(used, holders);
                    }
                }
            }
        }
    }

    /// The devices that a process has open, with how, and whether all of its descriptors were looked at.
    pub(super) fn open_in(&mut self, process: &Dir) -> io::Result<(Vec<(usize, Pin)>, bool)> {
        let (list, infos) = (process.at(c"fd")?, process.at(c"fdinfo")?);
        let mut numbers = Vec::new();
        list.numbers(&mut self.numbers, &mut numbers)?;
        let (mut is_all, mut is_read) = (numbers.len() <= DESCRIPTORS_MAX, false);
        let mut open = Vec::new();
        for fd in numbers.into_iter().take(DESCRIPTORS_MAX) {
            let name = NumberName::new(fd);
            let path = match list.link(name.as_c_str(), &mut self.links) {
                Ok(path) if is_of_no_mount(&path) => continue,
                Ok(path) => path.into_owned(),
                Err(error) if is_gone(&error) => continue,
                Err(_) => {
                    is_all = false;
                    continue;
                }
            };
            // No server has to answer there.
            if !path.starts_with("/dev/") {
                let info = infos.text(name.as_c_str(), &mut self.text);
                if info.as_ref().is_err_and(is_gone) {
                    continue;
                }
                let id = info.ok().and_then(|info| mnt_id(&info));
                match id.and_then(|id| self.mounts.nodes(id, process, &mut is_read)) {
                    Some(Nodes::Asked) => {}
                    Some(Nodes::None) => continue,
                    Some(Nodes::Unasked) | None => {
                        is_all = false;
                        continue;
                    }
                }
            }
            match list.block_device(name.as_c_str()) {
                Ok(Some(number)) => {
                    let at = self.devices.iter().position(|device| device.devices.contains(&number));
                    open.extend(at.map(|at| (at, Pin { fd: Some(fd), ..Pin::of(Access::Fd, path) })));
                }
                Ok(None) => {}
                // A FUSE file system of a user, on which no node works.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => is_all &= is_gone(&error),
            }
        }
        Ok((open, is_all))
    }
}

/// Whether a descriptor with this link is of no file that a directory has: a socket, a pipe, memory.
fn is_of_no_mount(link: &str) -> bool {
    !link.starts_with('/') || OF_NO_MOUNT.iter().any(|name| link.starts_with(name))
}
