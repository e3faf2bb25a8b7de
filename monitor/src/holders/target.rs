//! Which path an unmount meant: what the caller gave goes in, an absolute path in the view of its mount
//! namespace comes out, and where to walk it from.
//!
//! Lexical only; [`super::resolve`] follows symbolic links.

use super::ScanRequest;
use crate::sources::procfs::Proc;

/// A path to walk, from the root directory of a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Walk {
    /// The process.
    pub(super) tgid: u32,
    /// Absolute, from that root.
    pub(super) path: String,
}

/// Where to walk a path from: the root of its caller; if that is gone, of another process of its namespace
/// that is not in a chroot. `None` when no such process is left, or the path names a descriptor.
pub(super) fn walk(proc: &Proc, request: &ScanRequest, members: impl Iterator<Item = u32>) -> Option<Walk> {
    let path = request.path.as_str();
    if magic_link(path, request.tgid).is_some() {
        return None;
    }
    let root = |tgid| proc.link(tgid, "root").filter(|root| root.starts_with('/'));
    let Some(own_root) = root(request.tgid) else {
        let is_whole = |tgid: &u32| root(*tgid).as_deref() == Some("/");
        let tgid = members.into_iter().find(is_whole).filter(|_| path.starts_with('/'))?;
        return Some(Walk { tgid, path: path.to_owned() });
    };
    if path.starts_with('/') {
        return Some(Walk { tgid: request.tgid, path: path.to_owned() });
    }
    let cwd = proc.link(request.tgid, "cwd")?;
    let below = cwd.strip_prefix(own_root.trim_end_matches('/')).filter(|below| {
        // Outside of its root a process sees no absolute path of its directory.
        below.is_empty() || below.starts_with('/')
    })?;
    Some(Walk { tgid: request.tgid, path: format!("{below}/{path}") })
}

/// The absolute, normalised path; `None` when it was relative to a process that is gone.
pub(super) fn absolute(proc: &Proc, request: &ScanRequest) -> Option<String> {
    let path = request.path.as_str();
    if let Some((link, rest)) = magic_link(path, request.tgid) {
        // Links are relative to the root of the namespace, so no chroot is put in front.
        let base = proc.link(request.tgid, &link).filter(|base| base.starts_with('/'))?;
        return Some(normalise(&format!("{base}/{rest}")));
    }
    if path.starts_with('/') {
        // Whether a caller that is gone was in a chroot is unknown; hardly any is.
        let root = proc.link(request.tgid, "root").filter(|root| root.starts_with('/')).unwrap_or_default();
        // `..` does not lead out of a chroot.
        return Some(normalise(&format!("{root}{}", normalise(path))));
    }
    let cwd = proc.link(request.tgid, "cwd").filter(|cwd| cwd.starts_with('/'))?;
    Some(normalise(&format!("{cwd}/{path}")))
}

/// Splits `/proc/self/fd/7/rest` into `fd/7` and `rest`.
fn magic_link(path: &str, tgid: u32) -> Option<(String, String)> {
    let path = normalise(path);
    let below = match path.strip_prefix("/dev/fd/") {
        Some(fd) => format!("fd/{fd}"),
        None => {
            let (owner, below) = path.strip_prefix("/proc/")?.split_once('/')?;
            let own = tgid.to_string();
            [own.as_str(), "self", "thread-self"].contains(&owner).then(|| below.to_owned())?
        }
    };
    let depth = match below.split('/').next()? {
        "fd" => 2,
        "cwd" | "root" => 1,
        _ => return None,
    };
    let parts: Vec<&str> = below.split('/').collect();
    let (link, rest) = parts.split_at_checked(depth)?;
    Some((link.join("/"), rest.join("/")))
}

/// Removes `.`, `..`, doubled and trailing slashes.
fn normalise(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn request(tgid: u32) -> ScanRequest {
        ScanRequest { id: 1, mntns: 1, tgid, path: String::new(), follow: true }
    }

    /// The path that caller 42 meant, with these links.
    fn meant(links: &[(&str, &str)], path: &str) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("42/fd")).unwrap();
        for (link, target) in links {
            symlink(target, root.path().join("42").join(link)).unwrap();
        }
        let request = ScanRequest { path: path.to_owned(), ..request(42) };
        absolute(&Proc::new(root.path()), &request)
    }

    #[test]
    fn a_relative_path_starts_at_the_callers_directory() {
        let cwd = [("cwd", "/srv/a"), ("root", "/")];
        assert_eq!(meant(&cwd, "../b//c/./").as_deref(), Some("/srv/b/c"));
        assert_eq!(meant(&cwd, ".").as_deref(), Some("/srv/a"));
        assert_eq!(meant(&[], "b"), None);
        assert_eq!(meant(&[("cwd", "(unreachable)/a")], "b"), None);
    }

    #[test]
    fn an_absolute_path_needs_no_caller() {
        assert_eq!(meant(&[], "/srv//a/../b/").as_deref(), Some("/srv/b"));
        assert_eq!(meant(&[], "/..").as_deref(), Some("/"));
    }

    #[test]
    fn a_path_within_a_chroot_starts_there_and_does_not_leave_it() {
        let jail = [("root", "/jail"), ("cwd", "/jail/in")];
        assert_eq!(meant(&jail, "/../vol").as_deref(), Some("/jail/vol"));
        assert_eq!(meant(&jail, "vol").as_deref(), Some("/jail/in/vol"));
    }

    fn walked(links: &[(u32, &str, &str)], path: &str) -> Option<(u32, String)> {
        let root = tempfile::tempdir().unwrap();
        for (tgid, link, target) in links {
            fs::create_dir_all(root.path().join(tgid.to_string())).unwrap();
            symlink(target, root.path().join(tgid.to_string()).join(link)).unwrap();
        }
        let request = ScanRequest { path: path.to_owned(), ..request(42) };
        let walk = walk(&Proc::new(root.path()), &request, [7, 8].into_iter())?;
        Some((walk.tgid, walk.path))
    }

    #[test]
    fn a_path_is_walked_from_the_root_of_whoever_gave_it_or_of_one_like_it() {
        let there = [(42, "root", "/jail"), (42, "cwd", "/jail/in"), (7, "root", "/")];
        assert_eq!(walked(&there, "/vol/../x"), Some((42, "/vol/../x".into())));
        assert_eq!(walked(&there, "vol"), Some((42, "/in/vol".into())));
        let gone = [(7, "root", "/jail"), (8, "root", "/")];
        assert_eq!(walked(&gone, "/vol"), Some((8, "/vol".into())));
        assert_eq!(walked(&gone, "vol"), None, "whose directory nobody knows any more");
        assert_eq!(walked(&gone[..1], "/vol"), None, "none is left outside of a chroot");
        assert_eq!(walked(&[(42, "root", "/jail"), (42, "cwd", "/srv")], "vol"), None);
    }

    #[test]
    fn a_descriptor_stands_for_what_it_has_open() {
        let links = [("fd/7", "/srv/vol"), ("fd/8", "pipe:[1]"), ("root", "/jail"), ("cwd", "/jail/in")];
        for path in ["/proc/self/fd/7", "/proc/42/fd/7/", "/proc/thread-self/fd/7/x/..", "/dev/fd/7"] {
            assert_eq!(meant(&links, path).as_deref(), Some("/srv/vol"), "{path}");
        }
        assert_eq!(meant(&links, "/proc/self/root/vol").as_deref(), Some("/jail/vol"));
        assert_eq!(meant(&links, "/proc/self/cwd").as_deref(), Some("/jail/in"));
        assert_eq!(meant(&links, "/proc/self/fd/8"), None);
        assert_eq!(meant(&links, "/proc/self/fd/9"), None);
        assert_eq!(
            meant(&links, "/proc/sys/fs/binfmt_misc").as_deref(),
            Some("/jail/proc/sys/fs/binfmt_misc")
        );
    }
}
