//! The tarball: one directory with the daemon and all that belongs to it, to be installed by hand.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::Release;
use crate::reference::{COMPLETIONS, CONFIGURATION, PAGES};
use crate::tree::{PLAIN, PROGRAM, Tree, compress};

/// Files of the checkout, and where they are in the tarball.
const FILES: [(&str, &str); 6] = [
    ("deploy/systemd/kevtmon.service", "kevtmon.service"),
    ("deploy/systemd/kevtmon.catalog", "kevtmon.catalog"),
    ("README.md", "README.md"),
    ("SECURITY.md", "SECURITY.md"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("LICENSE-MIT", "LICENSE-MIT"),
];

/// Packs it into a directory; returns the file.
pub fn pack(release: &Release, into: &Path) -> Result<PathBuf> {
    let name = release.name();
    let work = into.join(format!("{name}.work"));
    let tree = Tree::new(work)?;
    tree.copy(&release.daemon, &format!("{name}/kevtmon"), PROGRAM)?;
    for (from, place) in FILES {
        tree.copy(&release.root.join(from), &format!("{name}/{place}"), PLAIN)?;
    }
    tree.copy(&release.reference.join(CONFIGURATION), &format!("{name}/{CONFIGURATION}"), PLAIN)?;
    for directory in [PAGES, COMPLETIONS] {
        tree.copy_all(&release.reference.join(directory), &format!("{name}/{directory}"))?;
    }
    tree.copy_all(&release.root.join("docs"), &format!("{name}/docs"))?;
    let archive = into.join(format!("{name}.tar"));
    tree.pack(&archive, release.time)?;
    tree.remove()?;
    compress(&archive)
}
