//! The files of host-local and of libcni.
//!
//! In: directories in which only root writes. Out: for which sandbox each address is reserved, to which one host-local gave it, and
//! for which one a plugin made a device. Every file is bad input: it may be cut, as host-local writes it after it was made, very long,
//! or no file at all. The results hold the configuration of the network, which may have secrets: nothing of it leaves this module.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use kevtmon_observation::{CniDevice, IpamFile, IpamRecord};
use kevtmon_types::regular_file;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use result::CachedResult;
use serde::{Deserialize, Serialize};

use super::super::kubelet::below;
use super::super::procfs::Proc;
use super::super::procfs::readers::{Job, Opened, reading_none};

mod result;

/// Networks that are looked at, and records of all of them. A node has some hundred pods.
const NETWORKS_MAX: usize = 64;
const RECORDS_MAX: usize = 4096;
const ENTRIES_MAX: usize = 8192;
/// A reservation has an id and the name of an interface.
const RESERVATION_MAX: u64 = 1024;
/// A result has the configuration of its network.
const RESULT_MAX: u64 = 256 << 10;
/// Longest name of a network, and id, that are believed.
const WORD_MAX: usize = 255;
const PROBLEMS_MAX: usize = 64;

/// Reads all of them, and makes a watch of their directories.
#[derive(Debug, Serialize, Deserialize)]
pub struct Look {
    directory: PathBuf,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub(super) records: BTreeSet<IpamRecord>,
    /// The devices that the results tell, whatever gave the addresses.
    pub(super) devices: BTreeSet<CniDevice>,
    pub(super) complete: bool,
    pub(super) problems: BTreeSet<Problem>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Problem {
    pub(super) path: String,
    pub(super) text: String,
}

impl Look {
    pub(super) fn at(directory: PathBuf) -> Self {
        Self { directory }
    }
}

impl Job for Look {
    const NAME: &'static str = "ipam";
    type Reply = Found;
    const WAITS_FOR_DISK: bool = true;
    const IN_BACKGROUND: bool = true;

    fn run(&self, proc: &Proc) -> Found {
        self.run_and_open(proc).0
    }

    fn run_and_open(&self, proc: &Proc) -> Opened<Found> {
        let root = proc.host_root();
        // What lies below is no file of that process.
        reading_none();
        look(&root, &self.directory)
    }
}

pub(super) fn look(root: &Path, directory: &Path) -> Opened<Found> {
    let watch = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok();
    let found = Found { complete: true, ..Found::default() };
    let mut reading = Reading { root, directory, watch, is_watched: false, found };
    // Whoever gets an address has the reservation before the result.
    reading.results("results");
    reading.results("cache/results");
    reading.reservations();
    let Reading { watch, is_watched, found, .. } = reading;
    (found, watch.filter(|_| is_watched).and_then(|watch| watch.as_fd().try_clone_to_owned().ok()))
}

struct Reading<'a> {
    root: &'a Path,
    directory: &'a Path,
    watch: Option<Inotify>,
    /// Whether every directory that is there is watched, and at least one is.
    is_watched: bool,
    found: Found,
}

impl Reading<'_> {
    fn place(&self, below_it: &str) -> Option<PathBuf> {
        Some(below(self.root, self.directory.join(below_it).to_str()?))
    }

    fn watch(&mut self, directory: &Path) {
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let Some(watch) = &self.watch else { return };
        match watch.add_watch(directory, flags) {
            Ok(_) => self.is_watched = true,
            // It may be made later; the one above it is watched.
            Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR) => {}
            Err(_) => self.watch = None,
        }
    }

    /// The names in a directory; `None` where not all can be told.
    fn names(&mut self, directory: &Path) -> Option<BTreeSet<String>> {
        self.watch(directory);
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Some(BTreeSet::new()),
            Err(error) => {
                self.problem(directory, &format!("cannot be read: {error}"));
                return None;
            }
        };
        let mut names = BTreeSet::new();
        for (index, entry) in entries.enumerate() {
            let Ok(entry) = entry else {
                self.problem(directory, "cannot be read to its end");
                return None;
            };
            if index >= ENTRIES_MAX {
                self.problem(directory, "has more entries than kevtmon reads");
                return None;
            }
            // What is not Unicode is no address, and the name of no network.
            names.extend(entry.file_name().into_string().ok());
        }
        Some(names)
    }

    fn reservations(&mut self) {
        let (Some(top), Some(networks)) = (self.place(""), self.place("networks")) else {
            self.found.complete = false;
            return;
        };
        // That of the networks may be made, or removed and made again.
        self.watch(&top);
        let Some(names) = self.names(&networks) else {
            self.found.complete = false;
            return;
        };
        let mut count = 0;
        for network in names.into_iter().filter(|name| is_word(name)) {
            let Some(directory) = self.place(&format!("networks/{network}")) else { continue };
            if !directory.is_dir() {
                continue;
            }
            count += 1;
            if count > NETWORKS_MAX {
                self.problem(&networks, "has more networks than kevtmon reads");
                self.found.complete = false;
                return;
            }
            self.network(&network, &directory);
        }
    }

    fn network(&mut self, network: &str, directory: &Path) {
        let Some(names) = self.names(directory) else {
            self.found.complete = false;
            return;
        };
        // Its lock and the address that it gave last are no addresses.
        for (name, address) in names.iter().filter_map(|name| Some((name, name.parse::<IpAddr>().ok()?))) {
            let path = directory.join(name);
            let container = match read(&path, RESERVATION_MAX) {
                Ok(Some(text)) => reserved_for(&text),
                // It went meanwhile, of which the watch tells.
                Ok(None) => continue,
                Err(problem) => {
                    self.problem(&path, &problem);
                    None
                }
            };
            let network = network.to_owned();
            self.add(directory, IpamRecord { address, network, container, file: IpamFile::Reservation });
        }
    }

    fn results(&mut self, below_it: &str) {
        let Some(directory) = self.place(below_it) else { return };
        // That they cannot be read hides nothing: a reservation that is there is one.
        let names = self.names(&directory).unwrap_or_default();
        let networks = self.directory.join("networks");
        for name in names {
            let path = directory.join(&name);
            let text = match read(&path, RESULT_MAX) {
                Ok(Some(text)) => text,
                Ok(None) => continue,
                Err(problem) => {
                    self.problem(&path, &problem);
                    continue;
                }
            };
            for device in result::devices(&text) {
                if self.found.devices.len() < RECORDS_MAX {
                    self.found.devices.insert(device);
                }
            }
            let Some(CachedResult { network, container, addresses }) =
                CachedResult::of_host_local(&text, &networks)
            else {
                continue;
            };
            if !is_word(&network) || !is_word(&container) {
                self.problem(&path, "names no network and no container");
                continue;
            }
            for address in addresses {
                let (network, container) = (network.clone(), Some(container.clone()));
                self.add(&directory, IpamRecord { address, network, container, file: IpamFile::Result });
            }
        }
    }

    fn add(&mut self, directory: &Path, record: IpamRecord) {
        if self.found.records.len() < RECORDS_MAX {
            self.found.records.insert(record);
        } else {
            self.found.complete = false;
            self.problem(directory, "has more addresses than are followed");
        }
    }

    fn problem(&mut self, path: &Path, text: &str) {
        if self.found.problems.len() < PROBLEMS_MAX {
            let path = path
                .strip_prefix(self.root)
                .map_or_else(|_| path.to_owned(), |path| Path::new("/").join(path));
            let (path, text) = (path.display().to_string(), text.to_owned());
            self.found.problems.insert(Problem { path, text });
        }
    }
}

/// A small regular file, to its end; `None` where there is none. Links are not followed: neither program makes any.
fn read(path: &Path, max: u64) -> Result<Option<Vec<u8>>, String> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot be read: {error}")),
    };
    let file = regular_file::check(file).map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    file.take(max + 1).read_to_end(&mut text).map_err(|error| format!("cannot be read: {error}"))?;
    match u64::try_from(text.len()) {
        Ok(length) if length <= max => Ok(Some(text)),
        _ => Err("is too long".to_owned()),
    }
}

/// The sandbox of a reservation: its id, and in a second line its interface, which older versions do not write. A file that
/// is still empty is being written.
fn reserved_for(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let id = text.lines().next()?.trim();
    is_word(id).then(|| id.to_owned())
}

/// Whether it may be the name of a network, or an id: what is compared and shown.
fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= WORD_MAX
        && !text.contains(char::is_whitespace)
        && !text.contains(char::is_control)
}
