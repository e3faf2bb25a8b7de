//! Packs the window of an incident into one file: the incident, versions and configuration, what the daemon could
//! observe, the model, and the recording, which can be replayed like any other.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::format::{BUNDLE, BundleHeader, Doctor, VERSION, Writer, write_line};
use super::incident_windows::{BYTES, DIRECTORY, WINDOWS, id_and_episode, is_id, list, read_incident};
use super::replay::{ReplayError, play};
use super::segments::{self, numbered};

/// A daemon that runs records something at least this often: its heartbeat comes every five seconds.
const RECORDED: Duration = Duration::from_secs(8);

/// Why a bundle cannot be written.
#[derive(Debug, Error)]
pub enum BundleError {
    #[error(
        "no recording of incident {wanted:?} in {}, which keeps {WINDOWS}, of {} MiB at most; there {}",
        .looked.display(), BYTES >> 20, listed(.known)
    )]
    Unknown { wanted: String, looked: PathBuf, known: Vec<String> },
    #[error("{wanted:?} matches several incidents: {}", .candidates.join(", "))]
    Ambiguous { wanted: String, candidates: Vec<String> },
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the recording in {} cannot be replayed", .path.display())]
    Replay { path: PathBuf, source: ReplayError },
    #[error("cannot write the bundle")]
    Write(#[source] io::Error),
}

impl BundleError {
    /// Whether it may be because the incident has just opened: its window is written a moment later.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Unknown { .. } => true,
            Self::Read { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }
}

/// Whether a daemon has recorded to this state directory in the last seconds, as one that runs always does.
pub fn is_recorded(state_dir: &Path) -> bool {
    let newest = numbered(&state_dir.join(segments::DIRECTORY)).ok().and_then(|mut segments| segments.pop());
    let written = newest.and_then(|(_, path)| path.metadata().ok()?.modified().ok());
    // A clock that was set back makes it younger than now.
    written.is_some_and(|written| {
        written.elapsed().is_ok_and(|age| age < RECORDED) || written.elapsed().is_err()
    })
}

fn listed(ids: &[String]) -> String {
    if ids.is_empty() { "is none".to_owned() } else { format!("are {}", ids.join(", ")) }
}

/// Writes the bundle of the incident with this id, or with the only id that begins like this: of its last episode, or of
/// the one in `ID-EPISODE`. Works while the daemon runs, and after it.
pub fn bundle(
    state_dir: &Path,
    wanted: &str,
    writer: &Writer,
    created: String,
    mut out: impl Write,
) -> Result<(), BundleError> {
    let window = find(state_dir, wanted)?;
    let failed = |source| BundleError::Read { path: window.clone(), source };
    let incident = read_incident(&window).map_err(failed)?;
    let segments: Vec<PathBuf> =
        numbered(&window).map_err(failed)?.into_iter().map(|(_, path)| path).collect();

    let mut all: Box<dyn Read> = Box::new(io::empty());
    for segment in &segments {
        // A newline ends a line that was cut, and is nothing where none was.
        all = Box::new(all.chain(open(segment)?).chain(&b"\n"[..]));
    }
    let played = play(BufReader::new(all), None, |_event| Ok(()))
        .map_err(|source| BundleError::Replay { path: window.clone(), source })?;
    let recorder = played.header.map(|header| header.writer).unwrap_or_default();
    let state = played.core.map(|core| Box::new(core.state(played.summary.until)));
    let header = BundleHeader {
        format: BUNDLE.to_owned(),
        version: VERSION,
        writer: Writer { config: recorder.config, ..writer.clone() },
        created,
        incident,
        doctor: Doctor {
            kevtmon: recorder.kevtmon,
            revision: recorder.revision,
            kernel: recorder.kernel,
            sources: state.as_ref().map(|state| state.sources.clone()).unwrap_or_default(),
        },
        state,
    };
    let mut line = Vec::new();
    write_line(&header, &mut line).and_then(|()| out.write_all(&line)).map_err(BundleError::Write)?;
    for segment in &segments {
        copy(segment, &mut out)?;
    }
    out.flush().map_err(BundleError::Write)
}

fn find(state_dir: &Path, wanted: &str) -> Result<PathBuf, BundleError> {
    let looked = state_dir.join(DIRECTORY);
    let windows = match list(&looked) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        windows => windows.map_err(|source| BundleError::Read { path: looked.clone(), source })?,
    };
    let name = |window: &Path| window.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names: Vec<String> = windows.iter().map(|(window, _)| name(window)).collect();
    let (wanted_id, wanted_episode) = id_and_episode(wanted);
    let mut episodes: BTreeMap<&str, BTreeMap<u32, &str>> = BTreeMap::new();
    for (id, episode, name) in names.iter().map(|name| {
        let (id, episode) = id_and_episode(name);
        (id, episode.unwrap_or(1), name.as_str())
    }) {
        if is_id(wanted_id) && id.starts_with(wanted_id) {
            episodes.entry(id).or_default().insert(episode, name);
        }
    }
    let candidates: Vec<String> = episodes.keys().map(|id| (*id).to_owned()).collect();
    let of_id = match &candidates[..] {
        [only] => episodes.get(only.as_str()),
        _ => episodes.get(wanted_id),
    };
    let window = of_id.and_then(|of_id| match wanted_episode {
        Some(episode) => of_id.get(&episode),
        None => of_id.last_key_value().map(|(_, name)| name),
    });
    match window {
        Some(name) => Ok(looked.join(name)),
        None if candidates.len() > 1 => Err(BundleError::Ambiguous { wanted: wanted.to_owned(), candidates }),
        None => Err(BundleError::Unknown { wanted: wanted.to_owned(), looked, known: names }),
    }
}

/// Copies whole lines: one that is still being written is ended.
fn copy(segment: &Path, out: &mut impl Write) -> Result<(), BundleError> {
    let mut file = open(segment)?;
    let copied = io::copy(&mut file, out).map_err(BundleError::Write)?;
    let failed = |source| BundleError::Read { path: segment.to_owned(), source };
    if copied == 0 {
        return Ok(());
    }
    let mut last = [0];
    file.seek(SeekFrom::Start(copied - 1)).and_then(|_| file.read_exact(&mut last)).map_err(failed)?;
    if last != *b"\n" { out.write_all(b"\n").map_err(BundleError::Write) } else { Ok(()) }
}

fn open(path: &Path) -> Result<File, BundleError> {
    File::open(path).map_err(|source| BundleError::Read { path: path.to_owned(), source })
}
