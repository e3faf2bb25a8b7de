//! A FUSE file system served by a thread: its root directory is empty, or whatever is looked up in it is a link.
//!
//! The messages are those of include/uapi/linux/fuse.h, in the order of bytes of this machine.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};

use crate::patience::patience;

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const READLINK: u32 = 5;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const DESTROY: u32 = 38;
/// Of these nobody awaits an answer: `FORGET`, `INTERRUPT`, `BATCH_FORGET`.
const UNANSWERED: [u32; 3] = [2, 36, 42];
/// Lengths of `fuse_in_header`, and of the answers.
pub(crate) const HEADER: usize = 40;
const ENTRY_OUT: usize = 128;
const ATTR_OUT: usize = 104;
const OPEN_OUT: usize = 16;
const INIT_OUT: usize = 64;
/// Mode of a file.
const FILE: u32 = 0o100_644;
/// More than any request of an empty file system.
pub(crate) const REQUEST_MAX: usize = 128 * 1024;

/// Mounts one in a new directory. It is served until it is unmounted and nobody uses it, or this process ends.
pub fn mount_served(point: &Path) {
    let device = mounted(point);
    std::thread::spawn(move || serve(device, |opcode, _| answer(opcode)));
}

/// Mounts one that nobody serves; the device, which ends it when it is closed.
#[must_use]
pub fn mount_unserved(point: &Path) -> File {
    mounted(point)
}

/// The same by a device of this name.
#[must_use]
pub fn mount_unserved_by(device: &Path, point: &Path) -> File {
    mounted_by(device, point)
}

/// Mounts one whose server can stop to answer, as if its process was stopped.
#[must_use]
pub fn mount_halting(point: &Path) -> Server {
    halting(mounted(point), |opcode, _| answer(opcode))
}

/// Mounts one whose server can stop to answer, with a directory at every name of each directory. The kernel remembers for so
/// many seconds that it is there.
#[must_use]
pub fn mount_halting_above(point: &Path, seconds: u64) -> Server {
    halting(mounted(point), move |opcode, node| match opcode {
        LOOKUP => (0, directory(node + 1, seconds)),
        _ => answer(opcode),
    })
}

/// Mounts one whose server can stop to answer, with an empty file at every name, which can be opened to be read.
#[must_use]
pub fn mount_halting_files(point: &Path) -> Server {
    halting(mounted(point), |opcode, node| match opcode {
        LOOKUP => (0, entry(2, FILE)),
        GETATTR if node == 2 => (0, attributes(node, FILE)),
        OPEN => (0, vec![0; OPEN_OUT]),
        FLUSH | RELEASE => (0, Vec::new()),
        _ => answer(opcode),
    })
}

fn halting(device: File, answer: impl Fn(u32, u64) -> (i32, Vec<u8>) + Send + 'static) -> Server {
    let server = Server::default();
    let own = server.clone();
    std::thread::spawn(move || {
        serve(device, |opcode, node| {
            if own.is_halted.load(Ordering::SeqCst) && opcode != DESTROY {
                own.asked.fetch_add(1, Ordering::SeqCst);
                let end = Instant::now() + patience();
                // Nobody hangs for ever because a test has failed.
                while own.is_halted.load(Ordering::SeqCst) && Instant::now() < end {
                    std::thread::park_timeout(Duration::from_millis(50));
                }
                return (libc::EIO, Vec::new());
            }
            answer(opcode, node)
        });
    });
    server
}

/// The server of such a file system.
#[derive(Debug, Clone, Default)]
pub struct Server {
    is_halted: Arc<AtomicBool>,
    asked: Arc<AtomicU32>,
}

impl Server {
    /// Answers nothing from now on.
    pub fn halt(&self) {
        self.is_halted.store(true, Ordering::SeqCst);
    }

    /// Answers again.
    pub fn resume(&self) {
        self.is_halted.store(false, Ordering::SeqCst);
    }

    /// How often somebody waited for it in vain.
    #[must_use]
    pub fn asked_in_vain(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Mounts one whose root directory has a link to `target` at every name. Looking it up takes until the answer is
/// [released](Link::release), or fails without it.
#[must_use]
pub fn mount_link(point: &Path, target: &Path) -> Link {
    let (device, target) = (mounted(point), target.as_os_str().as_encoded_bytes().to_vec());
    let (release, released) = sync_channel::<()>(1);
    let (tell_asked, asked) = sync_channel(1);
    std::thread::spawn(move || {
        serve(device, |opcode, _| match opcode {
            LOOKUP => {
                // Nobody may listen any more.
                let _ = tell_asked.send(());
                match released.recv() {
                    Ok(()) => (0, link()),
                    Err(_) => (libc::EIO, Vec::new()),
                }
            }
            READLINK => (0, target.clone()),
            _ => answer(opcode),
        });
    });
    Link { release, asked }
}

/// The link in such a file system; whoever waits for it is refused once this is dropped.
#[derive(Debug)]
pub struct Link {
    release: SyncSender<()>,
    asked: Receiver<()>,
}

impl Link {
    /// Waits until somebody waits for the link.
    pub fn wait_until_asked(&self) {
        self.asked.recv_timeout(patience()).expect("somebody looks the link up");
    }

    /// Lets whoever waits for the link follow it.
    pub fn release(&self) {
        self.release.send(()).expect("the file system is served");
    }
}

/// Mounts one in a new directory, that whoever reads the device serves.
pub(crate) fn mounted(point: &Path) -> File {
    mounted_by(Path::new("/dev/fuse"), point)
}

fn mounted_by(device: &Path, point: &Path) -> File {
    std::fs::create_dir_all(point).expect("a directory can be made");
    let device = File::options().read(true).write(true).open(device).expect("there is FUSE");
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    mount(Some("kevtmon"), point, Some("fuse.kevtmon"), MsFlags::empty(), Some(&*options))
        .expect("FUSE can be mounted");
    device
}

/// `answer`: by the kind of request, and the number of the file that it is about.
fn serve(mut device: File, answer: impl Fn(u32, u64) -> (i32, Vec<u8>)) {
    let mut request = vec![0; REQUEST_MAX];
    while let Ok(len) = device.read(&mut request) {
        if len < HEADER {
            return;
        }
        let opcode = u32::from_ne_bytes([request[4], request[5], request[6], request[7]]);
        if UNANSWERED.contains(&opcode) {
            continue;
        }
        let node = u64::from_ne_bytes(request[16..24].try_into().unwrap_or_default());
        let (error, body) = answer(opcode, node);
        let mut reply = Vec::with_capacity(16 + body.len());
        let whole = u32::try_from(16 + body.len()).unwrap_or_default();
        reply.extend(whole.to_ne_bytes());
        reply.extend((-error).to_ne_bytes());
        reply.extend_from_slice(&request[8..16]);
        reply.extend(body);
        // Whoever asked may have been killed meanwhile.
        drop(device.write(&reply));
    }
}

/// `fuse_entry_out` of node 2, a link.
fn link() -> Vec<u8> {
    entry(2, 0o120_777)
}

/// `fuse_entry_out` of a directory that is there for so many seconds.
fn directory(node: u64, seconds: u64) -> Vec<u8> {
    let mut body = entry(node, 0o040_755);
    body[16..24].copy_from_slice(&seconds.to_ne_bytes());
    body
}

fn entry(node: u64, mode: u32) -> Vec<u8> {
    let mut body = vec![0; ENTRY_OUT];
    body[..8].copy_from_slice(&node.to_ne_bytes());
    body[40..48].copy_from_slice(&node.to_ne_bytes());
    body[100..104].copy_from_slice(&mode.to_ne_bytes());
    body[104..108].copy_from_slice(&1_u32.to_ne_bytes());
    body
}

/// `fuse_attr_out`.
fn attributes(node: u64, mode: u32) -> Vec<u8> {
    let mut body = vec![0; ATTR_OUT];
    body[16..24].copy_from_slice(&node.to_ne_bytes());
    body[76..80].copy_from_slice(&mode.to_ne_bytes());
    body[80..84].copy_from_slice(&2_u32.to_ne_bytes());
    body
}

fn answer(opcode: u32) -> (i32, Vec<u8>) {
    match opcode {
        INIT => {
            let mut body = vec![0; INIT_OUT];
            for (place, value) in [(0, 7_u32), (4, 31), (20, 4096)] {
                body[place..place + 4].copy_from_slice(&value.to_ne_bytes());
            }
            (0, body)
        }
        GETATTR => (0, attributes(1, 0o040_755)),
        _ => (libc::ENOSYS, Vec::new()),
    }
}
