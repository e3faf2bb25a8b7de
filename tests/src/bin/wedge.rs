//! A process that hangs whoever reads it, for the tests in virtual machines. Never start it elsewhere: what hangs, hangs
//! until this program ends.
//!
//! A FUSE server answers no READ. A process maps a file of it, another one looks at that memory by /proc/PID/mem: it
//! waits for the server, and holds the lock of the first one's memory. That one then maps something, waits for the lock,
//! and from then on nobody gets it: neither for `maps` nor for `cmdline`. Prints `wedged PID` then.
//!
//! `wedge PLACE CWD`: such a file is mounted on the `cmdline` of an idle process, so that whoever reads that sends the READ,
//! and waits for its answer: not even SIGKILL ends that. Memory that is mapped from a file would not do, since Linux shows
//! no arguments in it.
#![expect(clippy::print_stdout, reason = "standard output is how the test hears of it")]

use std::env::args;
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use kevtmon_tests::eventually;
use nix::mount::{MsFlags, mount};

type Outcome = Result<(), Box<dyn Error>>;

/// Of include/uapi/linux/fuse.h.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PAGE: usize = 4096;

fn main() -> Outcome {
    let args: Vec<String> = args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["victim", file] => map(file),
        ["looker", tgid, address] => look(tgid, address.parse()?),
        ["idle"] => idle(),
        _ if std::env::var_os("KEVTMON_TEST_GUEST").is_none() => Err("only in a virtual machine".into()),
        [place] => wedge(place),
        [place, cwd] => wedge_cmdline(place, cwd),
        _ => Err("wedge PLACE [CWD]".into()),
    }
}

fn wedge(place: &str) -> Outcome {
    let reads = mounted(place)?;
    let mut victim = start(&["victim", &format!("{place}/file")], Stdio::piped())?;
    let mut said = BufReader::new(victim.stdout.take().ok_or("no output")?);
    let mut address = String::new();
    said.read_line(&mut address)?;
    let tgid = victim.id().to_string();
    let _looker = start(&["looker", &tgid, address.trim()], Stdio::null())?;
    reads.recv()?;
    victim.stdin.take().ok_or("no input")?.write_all(b"go\n")?;
    // Uninterruptible: it waits for the lock.
    let status = format!("/proc/{tgid}/status");
    eventually!(
        fs::read_to_string(&status).unwrap_or_default().contains("State:\tD"),
        "{tgid} waits for the lock"
    );
    wedged(&tgid)
}

fn wedge_cmdline(place: &str, cwd: &str) -> Outcome {
    let _reads = mounted(place)?;
    let mut command = Command::new(std::env::current_exe()?);
    let process = command.arg("idle").stdin(Stdio::null()).stdout(Stdio::null()).current_dir(cwd).spawn()?;
    let tgid = process.id().to_string();
    let (file, cmdline) = (format!("{place}/file"), format!("/proc/{tgid}/cmdline"));
    mount(Some(file.as_str()), cmdline.as_str(), None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    wedged(&tgid)
}

/// Until it is killed; then the kernel ends the file system, and all goes on.
fn wedged(tgid: &str) -> Outcome {
    println!("wedged {tgid}");
    idle()
}

fn idle() -> Outcome {
    loop {
        std::thread::park();
    }
}

/// Mounts a file system there, and serves it; tells of the first READ.
fn mounted(place: &str) -> Result<Receiver<()>, Box<dyn Error>> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mount(Some("dead-server"), place, Some("fuse"), MsFlags::empty(), Some(options.as_str()))?;
    let (swallowed, reads) = sync_channel(1);
    std::thread::spawn(move || serve(device, &swallowed));
    Ok(reads)
}

fn start(words: &[&str], input: Stdio) -> Result<Child, Box<dyn Error>> {
    Ok(Command::new(std::env::current_exe()?).args(words).stdin(input).stdout(Stdio::piped()).spawn()?)
}

/// Maps the file, and something else once it is told to.
fn map(path: &str) -> Outcome {
    let file = File::open(path)?;
    let map = |fd, flags| {
        // SAFETY: a new mapping, which nobody uses.
        unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, fd, 0) }
    };
    println!("{}", map(file.as_raw_fd(), libc::MAP_PRIVATE) as usize);
    std::io::stdin().read_line(&mut String::new())?;
    map(-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    Ok(())
}

fn look(tgid: &str, address: u64) -> Outcome {
    File::open(format!("/proc/{tgid}/mem"))?.read_at(&mut [0], address)?;
    Ok(())
}

/// Answers what is needed to open and map a file, and swallows every READ.
fn serve(mut device: File, swallowed: &SyncSender<()>) {
    let mut request = vec![0; 1 << 20];
    while device.read(&mut request).is_ok() {
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap_or_default());
        let (opcode, unique) = (number(4), &request[8..16]);
        let node = u64::from(number(16));
        let body = match opcode {
            INIT => words(&[7, 31, 0, 0, 0, PAGE as u64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            // Valid for 100 s.
            GETATTR => [long(&[100, 0]), attributes(node)].concat(),
            LOOKUP => [long(&[2, 0, 100, 100, 0]), attributes(2)].concat(),
            OPEN => long(&[1, 0]),
            READ => {
                // The test may be over.
                let _ = swallowed.try_send(());
                continue;
            }
            FORGET | INTERRUPT | BATCH_FORGET => continue,
            _ => Vec::new(),
        };
        let error = if body.is_empty() { -libc::ENOSYS } else { 0 };
        let length = u32::try_from(16 + body.len()).unwrap_or(16);
        let header = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), unique].concat();
        let _ = device.write(&[header, body].concat());
    }
}

/// `struct fuse_attr`: 88 bytes.
fn attributes(node: u64) -> Vec<u8> {
    let mode = if node == 1 { DIRECTORY } else { FILE };
    let numbers = long(&[node, PAGE as u64, 8, 0, 0, 0]);
    [numbers, words(&[0, 0, 0, u64::from(mode), 1, 0, 0, 0, PAGE as u64, 0])].concat()
}

fn long(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// As 32-bit numbers.
fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| u32::try_from(*value).unwrap_or(0).to_ne_bytes()).collect()
}
