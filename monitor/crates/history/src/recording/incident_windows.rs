//! Windows of incidents: the segments around the moment when one opened, kept when the flight recorder removes its
//! own.
//!
//! ```text
//! STATE/incidents/ID/incident.json      the newest state of the incident
//! STATE/incidents/ID/000000000017.ndjson …   segments, hard links where the file system supports them
//! STATE/incidents/ID-2/…                the same of its second episode
//! ```

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kevtmon_event::Incident;

use super::rotating_file::create_private;
use super::segments::{create_directory, numbered};

/// Directory of the windows, in the state directory.
pub(super) const DIRECTORY: &str = "incidents";
pub(super) const INCIDENT: &str = "incident.json";
/// A new version of it, before it gets its name.
const INCIDENT_NEW: &str = ".incident.json.new";
/// A window reaches this far beyond the moment when its incident opened.
const AFTER: Duration = Duration::from_secs(60);
/// Most windows that are kept.
pub(super) const WINDOWS: usize = 20;
/// Most bytes of all windows together; a segment shared by several counts once.
pub(super) const BYTES: u64 = 64 << 20;

/// The windows on disk.
#[derive(Debug)]
pub(super) struct IncidentWindows {
    directory: PathBuf,
    /// Those that still get new segments.
    growing: Vec<(PathBuf, Instant)>,
}

impl IncidentWindows {
    pub(super) fn open(state_dir: &Path) -> io::Result<Self> {
        let directory = state_dir.join(DIRECTORY);
        create_directory(&directory)?;
        Ok(Self { directory, growing: Vec::new() })
    }

    /// Keeps these segments and those of the next minute. Each episode of an incident has a window of its own.
    pub(super) fn freeze(&mut self, incident: &Incident, segments: &[PathBuf]) {
        let Some(window) = self.window(incident) else { return };
        self.growing.retain(|(known, _)| *known != window);
        let frozen: io::Result<()> =
            remove(&window).and_then(|()| create_directory(&window)).and_then(|()| {
                write_incident(&window, incident)?;
                // One that somebody removed costs none of the others.
                let linked = segments.iter().map(|segment| link(segment, &window));
                linked.filter(|linked| !is_gone(linked)).collect()
            });
        if let Err(error) = frozen {
            tracing::warn!(incident = incident.id, %error, "cannot keep the recording of an incident");
        }
        if let Some(until) = Instant::now().checked_add(AFTER) {
            self.growing.push((window.clone(), until));
        }
        self.make_room(&window);
    }

    /// Writes the newest state of an incident, if its window still exists.
    pub(super) fn update(&mut self, incident: &Incident) {
        if let Some(window) = self.window(incident).filter(|window| window.is_dir())
            && let Err(error) = write_incident(&window, incident)
        {
            tracing::debug!(incident = incident.id, %error, "cannot write the newest state of an incident");
        }
    }

    /// Adds a segment to the windows that are not complete.
    pub(super) fn add_segment(&mut self, segment: &Path) {
        for (window, _) in &self.growing {
            if let Err(error) = link(segment, window) {
                tracing::debug!(window = %window.display(), %error, "cannot keep a segment");
            }
        }
    }

    /// Completes the windows whose end has passed.
    pub(super) fn complete_expired(&mut self, current: &Path) {
        let now = Instant::now();
        if self.growing.iter().any(|(_, until)| *until <= now) {
            self.add_segment(current);
            self.growing.retain(|(_, until)| *until > now);
            self.make_room(Path::new(""));
        }
    }

    /// `None` where the id is not valid as a directory name.
    fn window(&self, Incident { id, episode, .. }: &Incident) -> Option<PathBuf> {
        let name = if *episode > 1 { format!("{id}-{episode}") } else { id.clone() };
        is_id(id).then(|| self.directory.join(name))
    }

    /// Removes windows until they are few and small enough: those of closed incidents first, the oldest first.
    fn make_room(&mut self, spared: &Path) {
        let Ok(mut windows) = list(&self.directory) else { return };
        windows.sort_by(|(_, a), (_, b)| {
            let rank = |incident: &Option<Incident>| {
                incident.as_ref().map(|incident| (incident.closed.is_none(), incident.opened.clone()))
            };
            rank(a).cmp(&rank(b))
        });
        let mut left = windows.len();
        for (window, _) in windows.iter().filter(|(window, _)| window != spared) {
            if left <= WINDOWS && size(&self.directory) <= BYTES {
                return;
            }
            if let Err(error) = remove(window) {
                tracing::debug!(window = %window.display(), %error, "cannot remove an old window");
            }
            self.growing.retain(|(growing, _)| growing != window);
            left -= 1;
        }
    }
}

/// The windows below a directory, each with its incident where that can be read.
pub(super) fn list(directory: &Path) -> io::Result<Vec<(PathBuf, Option<Incident>)>> {
    let mut windows = Vec::new();
    for entry in fs::read_dir(directory)? {
        let window = entry?.path();
        if window.is_dir() {
            let incident = read_incident(&window).ok();
            windows.push((window, incident));
        }
    }
    windows.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(windows)
}

pub(super) fn read_incident(window: &Path) -> io::Result<Incident> {
    Ok(serde_json::from_slice(&fs::read(window.join(INCIDENT))?)?)
}

/// Id and episode in the name of a window; also `ID-1` for the first episode.
pub(super) fn id_and_episode(name: &str) -> (&str, Option<u32>) {
    let numbered = name.rsplit_once('-').and_then(|(id, episode)| Some((id, episode.parse().ok()?)));
    numbered.map_or((name, None), |(id, episode)| (id, Some(episode)))
}

/// Whether it can be the id of an incident, which is also the name of a directory.
pub(super) fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn write_incident(window: &Path, incident: &Incident) -> io::Result<()> {
    let new = window.join(INCIDENT_NEW);
    create_private(&new)?.write_all(&serde_json::to_vec(incident)?)?;
    fs::rename(&new, window.join(INCIDENT))
}

fn is_gone(linked: &io::Result<()>) -> bool {
    linked.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// A hard link follows its segment; a copy is made again when the segment is complete.
fn link(segment: &Path, window: &Path) -> io::Result<()> {
    let Some(name) = segment.file_name() else { return Ok(()) };
    let kept = window.join(name);
    if let (Ok(existing), Ok(segment)) = (fs::metadata(&kept), fs::metadata(segment))
        && (existing.dev(), existing.ino()) == (segment.dev(), segment.ino())
    {
        return Ok(());
    }
    match fs::hard_link(segment, &kept) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        Err(_) => {
            io::copy(&mut fs::File::open(segment)?, &mut create_private(&kept)?)?;
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn remove(window: &Path) -> io::Result<()> {
    match fs::remove_dir_all(window) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn size(directory: &Path) -> u64 {
    let mut counted = HashSet::new();
    let windows = list(directory).unwrap_or_default();
    let segments = windows.iter().flat_map(|(window, _)| numbered(window).unwrap_or_default());
    segments
        .filter_map(|(_, path)| fs::metadata(path).ok())
        .filter(|metadata| counted.insert((metadata.dev(), metadata.ino())))
        .map(|metadata| metadata.len())
        .sum()
}
