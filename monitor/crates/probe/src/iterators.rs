//! The kernel's own lists of tasks, open files and mappings, by programs that it runs while they are read (BPF iterators).
//!
//! The daemon keeps the programs, and a [reader](kevtmon_sources::procfs::readers) reads what they write: it copies their
//! descriptors for as long as its job takes. No list waits for any process but that of mappings, which waits while a process
//! changes its own. A list is whole or an error.

use std::fs::File;
use std::io::{self, Read as _};
use std::mem::size_of;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::Arc;

use aya::maps::Map;
use aya::programs::Iter;
use kevtmon_ebpf::MISSING;
use kevtmon_ebpf::iterators::{END, IteratorOffsets, ListedSocket, ListedTask, NOT_ASKED, Wanted, sought};
use kevtmon_observation::{NsInum, SourceKind, SourceStatus};
use kevtmon_sources::procfs::pidfd::PidFd;
use nix::unistd::gettid;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::btf::{Btf, BtfError};
use super::hooks::Offsets;

/// Where the programs read the kernel's structures.
pub(super) const OFFSETS: Offsets = Offsets { global: "ITERATOR_OFFSETS", resolve: offsets };
/// The programs of the object `core`, each with what it iterates over.
pub(super) const PROGRAMS: [(&str, &str); 3] =
    [("iter_task", "task"), ("iter_task_file", "task_file"), ("iter_task_vma", "task_vma")];
/// The map in which readers say what they look for.
pub(super) const WANTED: &str = "WANTED";

/// Its name among the sources.
pub const SOURCE: &str = "hook.holders";
/// Its attach mode where the kernel lists them.
pub const BY_ITERATORS: &str = "iterators";
/// Its attach mode where /proc is read.
pub const BY_PROC: &str = "proc";
/// Bytes of a list of sockets: any user can have a million of them.
const SOCKETS_BYTES_MAX: u64 = 1 << 20;

/// Inode of the initial pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL: &str = "pid:[4026531836]";

fn offsets(btf: &Btf<'_>) -> Result<Vec<u8>, BtfError> {
    // Before 6.1.8 the kernel itself falls when a process ends whose mappings are listed (7ff94f276f8e); the mend added this.
    btf.need("bpf_iter_seq_task_vma_info.mm")?;
    let path_mnt = btf.need("path.mnt")?;
    let file_path = btf.need("file.f_path")?;
    let offsets = IteratorOffsets {
        task_tgid: btf.need("task_struct.tgid")?,
        task_pid: btf.need("task_struct.pid")?,
        task_nsproxy: btf.need("task_struct.nsproxy")?,
        task_mm: btf.need("task_struct.mm")?,
        task_fs: btf.need("task_struct.fs")?,
        task_real_cred: btf.need("task_struct.real_cred")?,
        cred_euid: btf.need("cred.euid")?,
        nsproxy_mnt_ns: btf.need("nsproxy.mnt_ns")?,
        nsproxy_net_ns: btf.need("nsproxy.net_ns")?,
        mnt_namespace_inum: btf.need("mnt_namespace.ns.inum")?,
        mm_exe_file: btf.need("mm_struct.exe_file")?,
        fs_root_mnt: btf.need("fs_struct.root")? + path_mnt,
        fs_pwd_mnt: btf.need("fs_struct.pwd")? + path_mnt,
        vfsmount_sb: btf.need("vfsmount.mnt_sb")?,
        super_block_dev: btf.need("super_block.s_dev")?,
        super_block_magic: btf.need("super_block.s_magic")?,
        file_path_mnt: file_path + path_mnt,
        file_path_dentry: file_path + btf.need("path.dentry")?,
        file_private_data: btf.need("file.private_data")?,
        dentry_name: btf.need("dentry.d_name.name")?,
        socket_sk: btf.need("socket.sk")?,
        sock_family: btf.need("sock.__sk_common.skc_family")?,
        sock_state: btf.need("sock.__sk_common.skc_state")?,
        sock_net: btf.offset("sock.__sk_common.skc_net.net").unwrap_or(MISSING),
        net_ns_inum: btf.need("net.ns.inum")?,
        sock_queue_len: btf.need("sock.sk_receive_queue.qlen")?,
        // Of a module where unix sockets are one: each is looked at then.
        unix_sock_path_mnt: match btf.offset("unix_sock.path") {
            Some(path) => path + path_mnt,
            None => MISSING,
        },
        // Since 5.8.
        unix_sock_sent_files: btf.any_of(&["unix_sock.scm_stat.nr_fds"]),
        vma_file: btf.need("vm_area_struct.vm_file")?,
    };
    Ok(offsets.as_bytes().to_vec())
}

/// The programs, kept in the kernel until this is dropped.
#[derive(Debug, Clone)]
pub struct Iterators(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    links: [OwnedFd; 3],
    wanted: OwnedFd,
}

/// How a reader finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IteratorHandle {
    owner: u32,
    links: [u32; 3],
    wanted: u32,
}

impl Iterators {
    /// Keeps programs that were loaded, in the order of [`PROGRAMS`].
    pub(super) fn keep(programs: [&Iter; 3], wanted: &Map) -> io::Result<Self> {
        // They iterate over the tasks of the pid namespace of whoever reads, and name them as the initial one does.
        match std::fs::read_link("/proc/self/ns/pid") {
            Ok(link) if link.as_os_str() == INITIAL => {}
            _ => return Err(io::Error::other("kevtmon is not in the initial pid namespace")),
        }
        let Map::HashMap(wanted) = wanted else { return Err(io::ErrorKind::InvalidInput.into()) };
        let link = |program: &Iter| link(program.fd().map_err(io::Error::other)?.as_fd());
        let [task, file, mapping] = programs;
        let links = [link(task)?, link(file)?, link(mapping)?];
        Ok(Self(Arc::new(Kept { links, wanted: wanted.fd().as_fd().try_clone_to_owned()? })))
    }

    /// To be given to a reader.
    pub fn handle(&self) -> IteratorHandle {
        let number = |fd: &OwnedFd| fd.as_raw_fd().cast_unsigned();
        IteratorHandle {
            owner: std::process::id(),
            links: self.0.links.each_ref().map(number),
            wanted: number(&self.0.wanted),
        }
    }
}

/// How holders are found, as a source: reading all of /proc takes longer, which is no degradation.
pub fn status(loaded: &Result<Iterators, String>) -> SourceStatus {
    let (attach_mode, reason) = match loaded {
        Ok(_) => (BY_ITERATORS, None),
        Err(reason) => (BY_PROC, Some(reason.clone())),
    };
    SourceStatus {
        attach_mode: Some(attach_mode.to_owned()),
        reason,
        ..SourceStatus::up(SourceKind::Hook, SOURCE)
    }
}

impl IteratorHandle {
    /// Copies the descriptors.
    /// Errors: before 5.6, and where whoever keeps them is gone.
    pub fn open(&self) -> io::Result<Lists> {
        let owner = PidFd::open(self.owner)?;
        let [task, file, mapping] = self.links.map(|fd| owner.copy_of(fd));
        Ok(Lists { links: [task?, file?, mapping?], wanted: owner.copy_of(self.wanted)? })
    }
}

/// What of a process is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sought {
    /// Open files on a file system, sockets that are bound to one, and open namespaces.
    Files,
    /// Mapped files on it.
    Mappings,
    /// Sockets in which files wait, and rings.
    Hidden,
}

/// The lists, as a reader has them.
#[derive(Debug)]
pub struct Lists {
    links: [OwnedFd; 3],
    wanted: OwnedFd,
}

impl Lists {
    /// All tasks.
    pub fn tasks(&self) -> io::Result<Vec<ListedTask>> {
        let mut tasks: Vec<ListedTask> = self.read(0, u64::MAX)?;
        match tasks.pop() {
            Some(end) if end.tgid == END => Ok(tasks),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Processes that may have what is sought on a file system, by the kernel's number. Some more than once.
    pub fn involved(&self, device: u32, sought: Sought) -> io::Result<Vec<u32>> {
        let (link, sought) = match sought {
            Sought::Files => (1, sought::FILES),
            Sought::Hidden => (1, sought::HIDDEN),
            Sought::Mappings => (2, sought::FILES),
        };
        let mut found: Vec<u32> = self.read_wanted(link, device, sought, u64::MAX)?;
        match found.pop() {
            Some(END) if !found.contains(&NOT_ASKED) => Ok(found),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Open sockets that are neither in the network namespace of their task nor in this one; none where the kernel's types do
    /// not show that of a socket.
    pub fn sockets_elsewhere(&self, host: NsInum) -> io::Result<Vec<ListedSocket>> {
        let mut found: Vec<ListedSocket> = self.read_wanted(1, host, sought::SOCKETS, SOCKETS_BYTES_MAX)?;
        match found.pop() {
            Some(end) if end.tgid == END => Ok(found),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads a list for which the program has to know what is wanted.
    fn read_wanted<T>(&self, link: usize, device: u32, sought: u32, max: u64) -> io::Result<Vec<T>>
    where
        T: FromBytes + Immutable + KnownLayout + Copy,
    {
        // Another thread may wait for a list of its own.
        let reader = gettid().as_raw().cast_unsigned();
        update(self.wanted.as_fd(), &reader, &Wanted { device, sought, last: 0, last_netns: 0 })?;
        let found = self.read(link, max);
        // Only a place is lost, and the next thread of this number takes it.
        let _ = delete(self.wanted.as_fd(), &reader);
        found
    }

    /// Not more than so many bytes: what a list has beyond them makes it one that is not whole.
    fn read<T: FromBytes + Immutable + KnownLayout + Copy>(
        &self,
        link: usize,
        max: u64,
    ) -> io::Result<Vec<T>> {
        let link = self.links.get(link).ok_or(io::ErrorKind::NotFound)?;
        let mut list = File::from(iterate(link.as_fd())?).take(max);
        let mut bytes = Vec::new();
        loop {
            match list.read_to_end(&mut bytes) {
                Ok(_) => break,
                // After a million without a record.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        let records = bytes.chunks_exact(size_of::<T>());
        records
            .map(|record| T::read_from_bytes(record).map_err(|_| io::ErrorKind::InvalidData.into()))
            .collect()
    }
}

// enum bpf_cmd and enum bpf_attach_type of include/uapi/linux/bpf.h.
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_ITER_CREATE: libc::c_long = 33;
const BPF_TRACE_ITER: u32 = 28;

/// The part of `union bpf_attr` that a link takes.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

/// The part that an iterator takes.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct IterCreate {
    link: u32,
    flags: u32,
}

/// The part that an element of a map takes.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Element {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// aya makes such a link as well, but keeps its descriptor to itself.
fn link(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attr = LinkCreate { program: number(program), target: 0, attach_type: BPF_TRACE_ITER, flags: 0 };
    // SAFETY: the descriptor is open, and nothing in it is a pointer.
    descriptor(unsafe { bpf(BPF_LINK_CREATE, &attr) })
}

fn iterate(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: as above.
    descriptor(unsafe { bpf(BPF_ITER_CREATE, &IterCreate { link: number(link), flags: 0 }) })
}

fn update(map: BorrowedFd<'_>, key: &u32, value: &Wanted) -> io::Result<()> {
    let (key, value) = (core::ptr::from_ref(key) as u64, core::ptr::from_ref(value) as u64);
    // SAFETY: both live until it returns, and are as long as those of the map.
    done(unsafe {
        bpf(BPF_MAP_UPDATE_ELEM, &Element { map: number(map), reserved: 0, key, value, flags: 0 })
    })
}

fn delete(map: BorrowedFd<'_>, key: &u32) -> io::Result<()> {
    let key = core::ptr::from_ref(key) as u64;
    // SAFETY: as above.
    done(unsafe {
        bpf(BPF_MAP_DELETE_ELEM, &Element { map: number(map), reserved: 0, key, value: 0, flags: 0 })
    })
}

/// bpf(2).
///
/// # Safety
/// What pointers in `attr` lead to must be what the command takes.
unsafe fn bpf<T: IntoBytes + Immutable>(command: libc::c_long, attr: &T) -> libc::c_long {
    // SAFETY: the structure is read during the call only; by the caller's promise.
    unsafe { libc::syscall(libc::SYS_bpf, command, core::ptr::from_ref(attr), size_of::<T>()) }
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The kernel sets close-on-exec on all that it makes here.
fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(result).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor for us; nothing else uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
