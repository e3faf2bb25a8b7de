//! The state of the node from the flight recorder when no daemon runs: the model at the last observation that was
//! recorded.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use kevtmon_core::state::NodeState;
use thiserror::Error;

use super::replay::{ReplayError, play};
use super::segments::{DIRECTORY, numbered};

/// Why the recorded state cannot be read.
#[derive(Debug, Error)]
pub enum OfflineStateError {
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot replay {}", .path.display())]
    Replay { path: PathBuf, source: ReplayError },
}

/// The model as it was last recorded in this state directory; `None` where nothing was. Each segment begins with
/// the complete state of the core, so the newest that can be read is enough.
pub fn offline_state(state_dir: &Path) -> Result<Option<NodeState>, OfflineStateError> {
    let directory = state_dir.join(DIRECTORY);
    let segments = match numbered(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        segments => segments.map_err(|source| OfflineStateError::Read { path: directory, source })?,
    };
    let mut newest_error = None;
    for (_, path) in segments.into_iter().rev() {
        match end_of(&path) {
            Ok(None) => {}
            Ok(state) => return Ok(state),
            Err(error) => newest_error = newest_error.or(Some(error)),
        }
    }
    newest_error.map_or(Ok(None), Err)
}

fn end_of(segment: &Path) -> Result<Option<NodeState>, OfflineStateError> {
    let path = || segment.to_owned();
    let file = File::open(segment).map_err(|source| OfflineStateError::Read { path: path(), source })?;
    let played = play(BufReader::new(file), None, |_event| Ok(()))
        .map_err(|source| OfflineStateError::Replay { path: path(), source })?;
    Ok(played.core.map(|core| core.state(played.summary.until)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::golden::fixtures;
    use super::*;

    #[test]
    fn the_newest_segment_that_can_be_read_has_the_state() {
        let dir = tempfile::tempdir().unwrap();
        assert!(offline_state(dir.path()).unwrap().is_none(), "nothing was recorded");
        let recorder = dir.path().join(DIRECTORY);
        fs::create_dir(&recorder).unwrap();
        fs::write(recorder.join("0000000002.ndjson"), "{\"format\":\"something else\"}\n").unwrap();
        let error = offline_state(dir.path()).unwrap_err();
        assert!(error.to_string().contains("0000000002.ndjson"), "{error}");
        let fixture = fixtures().into_iter().next().unwrap();
        fs::copy(fixture, recorder.join("0000000001.ndjson")).unwrap();
        let state = offline_state(dir.path()).unwrap().unwrap();
        assert_eq!(state.node, "slave-197");
        assert!(!state.namespaces.is_empty());
    }
}
