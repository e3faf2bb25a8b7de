//! A server of NFS version 3 in a few threads, and its mount by the kernel's own client: a directory with one file, `file`.
//! Whoever stops or ends the process stops or ends the server.
//!
//! The messages are those of RFC 5531 (RPC) and RFC 1813 (NFS, and the protocol by which it is mounted).

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;

use nix::mount::{MsFlags, mount};

/// Where it is served, and the source of a mount that has no other name for that.
pub const ADDRESS: &str = "127.0.0.1";
pub const SOURCE: &str = "127.0.0.1:/export";

const MOUNT_PROGRAM: u32 = 100_005;
const NFS_PROGRAM: u32 = 100_003;
/// The handles of the directory and of its file are their numbers.
const DIRECTORY: u64 = 1;
const FILE: u64 = 2;
const CONTENT: &[u8] = b"held\n";
/// Errors of NFS: no such file, and no such operation.
const NOENT: u32 = 2;
const NOTSUPP: u32 = 10_004;
/// More than any call has here.
const CALL_MAX: usize = 1 << 20;

/// Whether this kernel has a client.
#[must_use]
pub fn is_known() -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.lines().any(|line| line.ends_with("\tnfs"))
}

/// Serves, in threads of this process, and mounts what is served in a new directory, from a server that is called so. Nothing is
/// cached, so that nobody gets an answer that the server did not give just then, and whoever waits for one waits for good. Of a
/// server with a name the kernel says after 2 s that it does not respond.
///
/// # Errors
/// When the kernel does not mount it.
pub fn mount_served(server: &str, point: &Path) -> io::Result<()> {
    std::fs::create_dir_all(point)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || serve(connection));
        }
    });
    let patience = if server == ADDRESS { "" } else { "timeo=10,retrans=1," };
    let options = format!(
        "addr={ADDRESS},vers=3,proto=tcp,port={port},mountaddr={ADDRESS},mountvers=3,mountproto=tcp,mountport={port},\
         hard,{patience}nolock,noacl,sec=sys,actimeo=0,lookupcache=none"
    );
    let source = format!("{server}:/export");
    Ok(mount(Some(source.as_str()), point, Some("nfs"), MsFlags::empty(), Some(&*options))?)
}

/// Answers the calls of one connection, until it ends.
fn serve(mut connection: TcpStream) -> io::Result<()> {
    loop {
        let mut call = Vec::new();
        // A message comes in fragments, of which the last one is marked.
        loop {
            let mut mark = [0; 4];
            connection.read_exact(&mut mark)?;
            let mark = u32::from_be_bytes(mark);
            let length = usize::try_from(mark & 0x7fff_ffff).map_err(io::Error::other)?;
            let start = call.len();
            if start + length > CALL_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            call.resize(start + length, 0);
            connection.read_exact(&mut call[start..])?;
            if mark & 0x8000_0000 != 0 {
                break;
            }
        }
        let reply = reply(&call).ok_or(io::ErrorKind::InvalidData)?;
        let length = u32::try_from(reply.0.len()).map_err(io::Error::other)?;
        let mark = (length | 0x8000_0000).to_be_bytes();
        connection.write_all(&[&mark[..], &reply.0].concat())?;
    }
}

/// Of a call: its id, its type, the version of RPC, the program, its version and the procedure, who calls, a proof of that, and
/// the arguments.
fn reply(call: &[u8]) -> Option<Words> {
    let mut call = Call(call);
    let id = call.number()?;
    let (_call, _rpc, program, _version, procedure) =
        (call.number()?, call.number()?, call.number()?, call.number()?, call.number()?);
    for _ in ["who calls", "the proof"] {
        let _kind = call.number()?;
        call.opaque()?;
    }
    // It is a reply, and accepted, without a proof.
    let mut reply = Words::default();
    reply.numbers(&[id, 1, 0, 0, 0]);
    let result = match program {
        MOUNT_PROGRAM => Some(mounting(procedure)),
        NFS_PROGRAM => Some(nfs(procedure, &mut call)?),
        _ => None,
    };
    match result {
        Some(result) => {
            reply.number(0);
            reply.0.extend(result.0);
        }
        // There is no such program.
        None => reply.number(1),
    }
    Some(reply)
}

/// Answers procedures of the protocol by which it is mounted: 1 gives the handle of what is exported.
fn mounting(procedure: u32) -> Words {
    let mut result = Words::default();
    if procedure == 1 {
        result.number(0);
        result.handle(DIRECTORY);
        // One way to tell who calls: by the ids that he says he has (`AUTH_SYS`).
        result.numbers(&[1, 1]);
    }
    result
}

/// Answers procedures of NFS. None is an error of the call.
fn nfs(procedure: u32, call: &mut Call<'_>) -> Option<Words> {
    let mut result = Words::default();
    if procedure == 0 {
        return Some(result);
    }
    let node = call.handle()?;
    match procedure {
        // GETATTR
        1 => {
            result.number(0);
            result.attributes(node);
        }
        // LOOKUP
        3 => match call.opaque()? {
            b"file" => {
                result.number(0);
                result.handle(FILE);
                result.some_attributes(FILE);
                result.some_attributes(node);
            }
            _ => {
                result.number(NOENT);
                result.some_attributes(node);
            }
        },
        // ACCESS: all that is asked for.
        4 => {
            let wanted = call.number()?;
            result.ok(node);
            result.number(wanted);
        }
        // READ
        6 => {
            let (from, count) = (call.long()?, call.number()?);
            let rest = CONTENT.get(usize::try_from(from).ok()?..).unwrap_or_default();
            let part = &rest[..rest.len().min(usize::try_from(count).ok()?)];
            result.ok(node);
            result.numbers(&[u32::try_from(part.len()).ok()?, u32::from(part.len() == rest.len())]);
            result.opaque(part);
        }
        // FSSTAT: bytes and files, and those that are free.
        18 => {
            result.ok(node);
            (0..6).for_each(|_| result.long(1 << 20));
            result.number(0);
        }
        // FSINFO: how much is read, written and listed at once, the largest file, steps of times, and no links.
        19 => {
            result.ok(node);
            result.numbers(&[65_536, 65_536, 4096, 65_536, 65_536, 4096, 65_536]);
            result.long(1 << 40);
            result.numbers(&[0, 1, 0x08]);
        }
        // PATHCONF: links and lengths of names, and how these are taken.
        20 => {
            result.ok(node);
            result.numbers(&[1, 255, 1, 1, 0, 1]);
        }
        _ => result.numbers(&[NOTSUPP, 0]),
    }
    Some(result)
}

/// What is left of a call.
struct Call<'a>(&'a [u8]);

impl<'a> Call<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from(self.number()?) << 32 | u64::from(self.number()?))
    }

    fn opaque(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let taken = self.take(length)?;
        self.take(length.next_multiple_of(4) - length)?;
        Some(taken)
    }

    fn handle(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.opaque()?.try_into().ok()?))
    }
}

/// A part of an answer.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn number(&mut self, number: u32) {
        self.0.extend(number.to_be_bytes());
    }

    fn numbers(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|number| self.number(*number));
    }

    fn long(&mut self, number: u64) {
        self.0.extend(number.to_be_bytes());
    }

    fn opaque(&mut self, bytes: &[u8]) {
        self.number(u32::try_from(bytes.len()).unwrap_or_default());
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn handle(&mut self, node: u64) {
        self.opaque(&node.to_be_bytes());
    }

    /// A success, of this file.
    fn ok(&mut self, node: u64) {
        self.number(0);
        self.some_attributes(node);
    }

    fn some_attributes(&mut self, node: u64) {
        self.number(1);
        self.attributes(node);
    }

    /// `fattr3`: type, mode, links, owner, size, device, file system, number and times.
    fn attributes(&mut self, node: u64) {
        let (kind, mode, size) =
            if node == FILE { (1, 0o644, CONTENT.len() as u64) } else { (2, 0o755, 4096) };
        self.numbers(&[kind, mode, 1, 0, 0]);
        self.long(size);
        self.long(size);
        self.numbers(&[0, 0]);
        self.long(7);
        self.long(node);
        self.numbers(&[1; 6]);
    }
}
