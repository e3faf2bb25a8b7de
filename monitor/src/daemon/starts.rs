//! Counts the starts that came to no good end, so that kernel programs which end the daemon, or the whole node, do so three
//! times and not for ever.
//!
//! The count is in a file of the state directory, on the disk before any program is loaded: it is to outlive a kernel that
//! stops. Who has run for a minute, or is stopped, removes it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kevtmon_probe::hooks::CRASH_LOOP;
use kevtmon_sources::procfs::readers::unless_it_hangs;
use kevtmon_types::regular_file;

use crate::config::{Config, REQUIRE_EBPF, STATE_DIR};

/// Name of the file in the state directory.
const FILE: &str = "starts";
/// After so many, programs are left out.
const MANY: u32 = 3;
/// Who runs for longer has not ended by what is done at the start.
const SHORT: Duration = Duration::from_secs(60);
/// The file has a number; one of anybody else's may have more.
const LONGEST: u64 = 16;

/// This start, and how many before it ended within a minute.
#[derive(Debug)]
pub(super) struct Starts {
    before: u32,
    began: Instant,
    /// The file, until it is removed.
    file: Option<PathBuf>,
}

impl Starts {
    /// Counts this one. Where kernel programs are required, nothing is left out, and so nothing is counted.
    pub(super) fn count(config: &Config) -> Self {
        match config.get(&REQUIRE_EBPF) {
            true => Self { before: 0, began: Instant::now(), file: None },
            false => Self::count_in(&config.get(&STATE_DIR)),
        }
    }

    fn count_in(directory: &Path) -> Self {
        let path = directory.join(FILE);
        let (of, at) = (directory.to_owned(), path.clone());
        let (before, file) = match unless_it_hangs(move || add(&of, &at)) {
            Some(Ok(before)) => (before, Some(path)),
            // Once the disk answers, it is counted.
            None => {
                tracing::warn!(path = %path.display(), "a disk does not answer, so this start may not be counted");
                (0, Some(path))
            }
            Some(Err(error)) => {
                tracing::warn!(path = %path.display(), %error, "cannot count starts, so none is without kernel programs");
                (0, None)
            }
        };
        Self { before, began: Instant::now(), file }
    }

    /// Why kernel programs are left out, if they are.
    pub(super) fn withheld(&self) -> Option<&'static str> {
        (self.before >= MANY).then_some(CRASH_LOOP)
    }

    /// From time to time, while the daemon works.
    pub(super) fn tick(&mut self) {
        self.forget_after(self.began.elapsed());
    }

    fn forget_after(&mut self, lasted: Duration) {
        if lasted >= SHORT {
            self.forget();
        }
    }

    /// This one has ended well, or lasts.
    pub(super) fn forget(&mut self) {
        let Some(path) = self.file.take() else { return };
        let at = path.clone();
        match unless_it_hangs(move || fs::remove_file(at)).unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))
        {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "the count of starts cannot be removed");
            }
            _ => {}
        }
    }
}

/// How many were counted before this one, which is added.
fn add(directory: &Path, path: &Path) -> io::Result<u32> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = regular_file::open_as(&mut options, path)?;
    let mut text = String::new();
    // What is no number counts for nothing.
    let _ = (&file).take(LONGEST).read_to_string(&mut text);
    let before: u32 = text.trim().parse().unwrap_or_default();
    file.set_len(0)?;
    io::Seek::rewind(&mut file)?;
    writeln!(file, "{}", before.saturating_add(1))?;
    file.sync_all()?;
    // Its name, too.
    File::open(directory)?.sync_all()?;
    Ok(before)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn counted(directory: &Path) -> Option<String> {
        fs::read_to_string(directory.join(FILE)).ok()
    }

    #[test]
    fn after_three_that_ended_early_the_next_are_without_programs() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("not/there/yet");
        for before in 0..3 {
            let start = Starts::count_in(&state);
            assert_eq!((start.before, start.withheld()), (before, None));
        }
        for before in [3, 4] {
            let start = Starts::count_in(&state);
            assert_eq!((start.before, start.withheld()), (before, Some(CRASH_LOOP)));
        }
        assert_eq!(counted(&state).as_deref(), Some("5\n"));
    }

    #[test]
    fn one_that_lasts_or_is_stopped_begins_the_count_anew() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path();
        drop(Starts::count_in(state));
        let mut lasting = Starts::count_in(state);
        lasting.forget_after(SHORT / 2);
        assert_eq!(counted(state).as_deref(), Some("2\n"));
        lasting.forget_after(SHORT);
        assert_eq!(counted(state), None);
        let mut stopped = Starts::count_in(state);
        assert_eq!(stopped.before, 0);
        // It is another's by now.
        lasting.forget_after(SHORT);
        assert_eq!(counted(state).as_deref(), Some("1\n"));
        stopped.forget();
        assert_eq!(counted(state), None);
    }

    #[test]
    fn what_is_no_count_is_not_followed_and_counts_for_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path();
        fs::write(state.join(FILE), "nonsense that is longer than a number").unwrap();
        assert_eq!(Starts::count_in(state).before, 0);
        assert_eq!(counted(state).as_deref(), Some("1\n"));
        let precious = state.join("precious");
        fs::write(&precious, "7").unwrap();
        fs::remove_file(state.join(FILE)).unwrap();
        symlink(&precious, state.join(FILE)).unwrap();
        let start = Starts::count_in(state);
        assert_eq!((start.before, &start.file), (0, &None));
        assert_eq!(fs::read_to_string(&precious).unwrap(), "7");
    }
}
