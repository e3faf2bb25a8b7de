//! Random trees of directories, links, mounts, bind mounts and covers, random ways to name what is in them, and unmounts of
//! which the kernel tells what they meant.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::random::Random;
use holder::Holder;

pub mod call;
mod holder;
pub mod refusal;

/// A directory tree below a base, in the mount namespace of this thread.
#[derive(Debug)]
pub struct Tree<'r> {
    pub(crate) random: &'r mut Random,
    base: PathBuf,
    directories: Vec<PathBuf>,
    links: Vec<PathBuf>,
    named: usize,
    /// They stay where they are while others cover it.
    pub(crate) holders: Vec<Holder>,
    /// What lies elsewhere and is bound, too.
    pub(crate) foreign: Option<PathBuf>,
}

impl<'r> Tree<'r> {
    /// One that has only a tmpfs at its base.
    pub fn new(random: &'r mut Random, base: &Path) -> Self {
        let (directories, links, holders) = (vec![base.to_owned()], Vec::new(), Vec::new());
        let mut tree =
            Self { random, base: base.to_owned(), directories, links, named: 0, holders, foreign: None };
        tree.mount(base);
        tree
    }

    /// Binds this directory, too, which lies elsewhere.
    #[must_use]
    pub fn with_foreign(self, directory: &Path) -> Self {
        Self { foreign: Some(directory.to_owned()), ..self }
    }

    /// True once in so many times.
    pub fn is_once_in(&mut self, times: usize) -> bool {
        self.random.one_in(times)
    }

    /// Makes directories down to this one, and mounts something there.
    pub fn mount_below(&mut self, path: &Path) {
        std::fs::create_dir_all(path).expect("directories can be made");
        let above = path.ancestors().skip(1).take_while(|above| *above != self.base);
        self.directories.extend(above.map(Path::to_owned));
        self.directories.push(path.to_owned());
        self.mount(path);
    }

    fn name(&mut self, prefix: &str) -> String {
        self.named += 1;
        format!("{prefix}{}", self.named)
    }

    fn directory(&mut self) -> PathBuf {
        self.directories.retain(|path| path.is_dir());
        self.random.pick(&self.directories).clone()
    }

    /// Adds a directory or a mount.
    pub fn grow(&mut self) {
        let at = self.directory();
        match self.random.below(6) {
            0 | 1 => {
                let path = at.join(self.name("d"));
                // What is bound there may have one of this name.
                std::fs::create_dir_all(&path).expect("a directory can be made");
                self.directories.push(path);
            }
            2 if at != self.base => {
                let other = self.foreign.clone().filter(|_| self.random.one_in(2));
                let other = other.unwrap_or_else(|| self.directory());
                // A directory that is bound below itself, or above, is a tree without end to look at.
                if !at.starts_with(&other) && !other.starts_with(&at) {
                    bind(&other, &at);
                }
            }
            _ if at != self.base => self.mount(&at),
            _ => {}
        }
    }

    /// Mounts a tmpfs, often on top of another one, with some directories in it.
    fn mount(&mut self, at: &Path) {
        let none = MsFlags::empty();
        mount(Some("kevtmon"), at, Some("tmpfs"), none, None::<&str>).expect("a tmpfs can be mounted");
        for _ in 0..2 {
            let path = at.join(self.name("d"));
            std::fs::create_dir(&path).expect("a directory can be made");
            self.directories.push(path);
        }
    }

    /// Changes something where a mount was refused, or a link that may lead there.
    pub(crate) fn change(&mut self, at: &Path) -> &'static str {
        match self.random.below(5) {
            0 => {
                self.mount(at);
                self.holders.push(Holder::at(at));
                "covered"
            }
            1 => {
                detach(at);
                "detached"
            }
            2 => {
                detach(at);
                if at.is_dir() {
                    self.mount(at);
                    self.holders.push(Holder::at(at));
                }
                "replaced"
            }
            3 if !self.links.is_empty() => {
                let (link, to) = (self.random.pick(&self.links).clone(), self.directory());
                let spare = link.with_file_name(self.name("s"));
                // It may be covered by now.
                let swapped = symlink(&to, &spare).and_then(|()| std::fs::rename(&spare, &link));
                if swapped.is_ok() { "a link swapped" } else { "nothing" }
            }
            _ => {
                bind(at, at);
                "bound on itself"
            }
        }
    }

    /// Some way to write an absolute path, as seen from a root directory.
    fn spell(&mut self, target: &Path, root: &Path, links: usize) -> String {
        let below = target.strip_prefix(root).expect("a root above");
        let mut text = String::new();
        let mut at = root.to_owned();
        let names: Vec<&OsStr> = below.iter().collect();
        for (index, name) in names.iter().enumerate() {
            at.push(name);
            let is_last = index + 1 == names.len();
            if links > 0 && self.random.one_in(3) {
                text = self.link(&at, root, links);
                continue;
            }
            match self.random.below(6) {
                0 => text.push_str("/."),
                1 => text.push('/'),
                2 if !is_last => write!(text, "/{}/..", name.display()).expect("a string"),
                _ => {}
            }
            write!(text, "/{}", name.display()).expect("a string");
        }
        text
    }

    /// A new link to a directory, itself named through links, as seen from a root directory.
    fn link(&mut self, target: &Path, root: &Path, links: usize) -> String {
        let name = self.name("l");
        let mut places = self.directories.clone();
        places.retain(|place| place.is_dir() && place.starts_with(root) && !place.starts_with(target));
        if places.is_empty() {
            return format!("/{}", target.strip_prefix(root).expect("a root above").display());
        }
        let place = self.random.pick(&places).clone();
        let to = if self.random.one_in(2) {
            self.spell(target, root, links - 1)
        } else {
            relative(target, &place)
        };
        let link = place.join(&name);
        symlink(to, &link).expect("a link can be made");
        self.links.push(link);
        format!("/{}/{name}", place.strip_prefix(root).expect("a root above").display())
    }
}

fn bind(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("a bind mount can be made");
}

fn detach(at: &Path) {
    // What is there may be no mount.
    let _ = umount2(at, MntFlags::MNT_DETACH);
}

/// The way from one directory to another, both without links.
fn relative(to: &Path, from: &Path) -> String {
    let shared = to.iter().zip(from.iter()).take_while(|(one, other)| one == other).count();
    let mut way: Vec<String> = vec!["..".to_owned(); from.iter().count() - shared];
    way.extend(to.iter().skip(shared).map(|name| name.to_string_lossy().into_owned()));
    if way.is_empty() { ".".to_owned() } else { way.join("/") }
}
