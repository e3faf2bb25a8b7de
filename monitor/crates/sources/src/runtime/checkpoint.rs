//! The checkpoints in which dockershim and cri-dockerd remember the sandboxes of pods: with the checkpoint of a sandbox that
//! is gone, a kubelet takes the sandbox for one that is there and has ended.
//!
//! They appear and go without a sound, so they are looked for when the core asks, by a
//! [reader](crate::procfs::readers): a disk may hang.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kevtmon_observation::{Fact, SandboxCheckpoint};
use serde::{Deserialize, Serialize};

use super::is_container_id;
use crate::Sender;
use crate::kubelet::{below, roots_of_running};
use crate::procfs::Proc;
use crate::procfs::readers::{Job, Readers, reading_none};

/// Where they are, under the id of the sandbox.
pub(super) const CHECKPOINTS: [&str; 2] = ["var/lib/dockershim/sandbox", "var/lib/cri-dockerd/sandbox"];

const PATIENCE: Duration = Duration::from_secs(10);

/// Looks for the checkpoints of these sandboxes: in the host's files, and in those of kubelets that run in a container.
#[derive(Debug, Serialize, Deserialize)]
pub struct FindCheckpoints {
    sandboxes: Vec<String>,
}

impl Job for FindCheckpoints {
    const NAME: &'static str = "checkpoints";
    type Reply = Vec<SandboxCheckpoint>;
    const WAITS_FOR_DISK: bool = true;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let roots: Vec<PathBuf> = [proc.host_root()].into_iter().chain(roots_of_running(proc)).collect();
        reading_none();
        let found = |sandbox: &String| SandboxCheckpoint {
            found: is_container_id(sandbox).then(|| is_in(&roots, sandbox)).flatten(),
            sandbox: sandbox.clone(),
        };
        self.sandboxes.iter().map(found).collect()
    }
}

/// Whether any of these trees has the checkpoint of a sandbox; `None` if it was not found and not all could be read.
fn is_in(roots: &[PathBuf], sandbox: &str) -> Option<bool> {
    let places =
        roots.iter().flat_map(|root| CHECKPOINTS.map(|path| below(root, &format!("/{path}")).join(sandbox)));
    let found: Vec<Option<bool>> = places.map(|place| is_there(&place)).collect();
    if found.contains(&Some(true)) { Some(true) } else { (!found.contains(&None)).then_some(false) }
}

fn is_there(path: &Path) -> Option<bool> {
    match fs::symlink_metadata(path) {
        Ok(file) => Some(file.is_file()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Some(false),
        Err(_) => None,
    }
}

/// Looks, and sends what is found of each; where nobody can look now, that nothing is known.
pub fn look_and_send(readers: &Readers, tx: &Sender, sandboxes: Vec<String>) {
    let job = FindCheckpoints { sandboxes: sandboxes.clone() };
    readers.tell(tx, (job, PATIENCE, "cannot look for the checkpoints of sandboxes"), |found| {
        let unknown = |sandbox| SandboxCheckpoint { sandbox, found: None };
        let found = found.unwrap_or_else(|| sandboxes.into_iter().map(unknown).collect());
        Some(Fact::SandboxCheckpoints(found))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn a_checkpoint_in_any_tree_is_found_and_one_that_could_be_hidden_is_not_known() {
        let (host, container) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let roots = [host.path().to_owned(), container.path().to_owned()];
        assert_eq!(is_in(&roots, ID), Some(false));
        let directory = container.path().join(CHECKPOINTS[1]);
        fs::create_dir_all(&directory).unwrap();
        fs::create_dir(directory.join(ID)).unwrap();
        assert_eq!(is_in(&roots, ID), Some(false), "a checkpoint is a file");
        fs::remove_dir(directory.join(ID)).unwrap();
        fs::write(directory.join(ID), "{}").unwrap();
        assert_eq!(is_in(&roots, ID), Some(true));
        assert_eq!(is_in(&roots[..1], ID), Some(false));
        // A name that leads in a circle can be read by nobody.
        fs::create_dir_all(host.path().join("var/lib")).unwrap();
        std::os::unix::fs::symlink("dockershim", host.path().join("var/lib/dockershim")).unwrap();
        assert_eq!(is_in(&roots[..1], ID), None);
        assert_eq!(is_in(&roots, ID), Some(true));
    }

    #[test]
    fn what_is_no_id_leads_nowhere() {
        let job = FindCheckpoints { sandboxes: vec!["../../etc/passwd".into(), ID.into()] };
        let found = job.run(&Proc::default());
        assert_eq!(found.iter().map(|one| one.found).collect::<Vec<_>>(), [None, Some(false)]);
    }
}
