//! A directory with the files of a package, as they will lie on a machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::tool::run;

/// Mode of what is only read.
pub(crate) const PLAIN: u32 = 0o644;
/// Mode of what is executed.
pub(crate) const PROGRAM: u32 = 0o755;

pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn new(root: PathBuf) -> Result<Self> {
        let context = || format!("cannot make {}", root.display());
        if root.exists() {
            fs::remove_dir_all(&root).with_context(context)?;
        }
        directory(&root)?;
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn write(&self, place: &str, content: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        let path = self.place(place)?;
        fs::write(&path, content)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    pub(crate) fn copy(&self, from: &Path, place: &str, mode: u32) -> Result<()> {
        let path = self.place(place)?;
        fs::copy(from, &path)
            .and_then(|_| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .with_context(|| format!("cannot copy {} to {}", from.display(), path.display()))
    }

    /// Copies all files of a directory that has no other in it.
    pub(crate) fn copy_all(&self, from: &Path, place: &str) -> Result<()> {
        for (name, path) in files(from)? {
            self.copy(&path, &format!("{place}/{name}"), PLAIN)?;
        }
        Ok(())
    }

    fn place(&self, place: &str) -> Result<PathBuf> {
        let path = self.root.join(place);
        let mut above: Vec<&Path> =
            path.ancestors().skip(1).take_while(|above| *above != self.root).collect();
        above.reverse();
        for above in above {
            directory(above)?;
        }
        Ok(path)
    }

    /// Packs it as a tar archive: in the order of the names, of root, and all of the same time.
    pub(crate) fn pack(&self, into: &Path, time: u64) -> Result<()> {
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--format=gnu", "--owner=0", "--group=0", "--numeric-owner"]);
        tar.arg(format!("--mtime=@{time}")).arg("-C").arg(&self.root).arg("-cf").arg(into);
        tar.args(entries(&self.root)?.iter().map(|(name, _)| name));
        run(&mut tar).map(drop)
    }

    pub(crate) fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.root).with_context(|| format!("cannot delete {}", self.root.display()))
    }
}

/// Whatever umask this process has.
fn directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot make {}", path.display()))
}

/// The files in a directory, by the name.
pub(crate) fn files(directory: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut all = entries(directory)?;
    all.retain(|(_, path)| path.is_file());
    Ok(all)
}

fn entries(directory: &Path) -> Result<Vec<(String, PathBuf)>> {
    let context = || format!("cannot list {}", directory.display());
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).with_context(context)? {
        let entry = entry.with_context(context)?;
        all.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    all.sort();
    Ok(all)
}

/// Compresses a file, without its name and time in the result: `FILE` becomes `FILE.gz`, which is returned.
pub(crate) fn compress(file: &Path) -> Result<PathBuf> {
    run(Command::new("gzip").args(["-9nf", "--"]).arg(file))?;
    let mut compressed = file.as_os_str().to_owned();
    compressed.push(".gz");
    Ok(compressed.into())
}
