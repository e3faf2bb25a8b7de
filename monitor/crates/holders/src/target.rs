//! Which path an unmount meant: what the caller gave goes in, and where it starts from comes out.
//!
//! Reads links of the caller at most; [`super::resolve`] walks.

use kevtmon_observation::CallerDirectory;
use kevtmon_sources::procfs::Proc;

use super::ScanRequest;
use super::resolve::{Anchor, Origin, Unresolved};

/// Where the path of a request starts: from what was captured of the caller, else from what /proc shows of it. An
/// absolute path whose caller is not known starts at the root of the namespace; but absolute links in it lead below
/// the caller's.
pub(super) fn origin(proc: &Proc, request: &ScanRequest) -> Result<Origin, Unresolved> {
    let is_relative = !request.path.starts_with('/');
    let (root, cwd) = match &request.origin {
        Some(origin) => (captured(origin.root.as_ref()), captured(origin.cwd.as_ref())),
        None if proc.ns(request.tgid, "mnt") == Some(request.mntns) => {
            (shown(proc, request.tgid, "root"), shown(proc, request.tgid, "cwd"))
        }
        None if !is_relative => {
            let (root, cwd) = (None, None);
            return Ok(Origin { root, cwd, path: request.path.clone(), follow: request.follow });
        }
        None => (None, None),
    };
    let root = Some(root.ok_or(Unresolved::NotCaptured)?);
    let cwd = if is_relative { Some(cwd.ok_or(Unresolved::NotCaptured)?) } else { None };
    Ok(Origin { root, cwd, path: request.path.clone(), follow: request.follow })
}

/// The path of a call from the topmost mount of its namespace, as text: without what its links lead to. `None` where it is not
/// known where it starts, or if it leads upwards.
pub(super) fn text(request: &ScanRequest) -> Option<String> {
    let origin = request.origin.as_ref().filter(|origin| origin.doubt.is_none())?;
    let start = if request.path.starts_with('/') { &origin.root } else { &origin.cwd };
    let start = captured(start.as_ref())?;
    let leads_up = request.path.split('/').any(|name| name == "..");
    (!leads_up).then(|| normalise(&format!("{}/{}", start.path, request.path)))
}

fn captured(directory: Option<&CallerDirectory>) -> Option<Anchor> {
    let directory = directory?;
    Some(Anchor { path: directory.path.clone()?, mount_id: Some(u64::from(directory.mount_id)) })
}

fn shown(proc: &Proc, tgid: u32, link: &str) -> Option<Anchor> {
    let path = proc.link(tgid, link).filter(|path| path.starts_with('/') && !path.ends_with(" (deleted)"))?;
    Some(Anchor { path, mount_id: None })
}

/// What a path leads to that names an open file of the caller: only while the caller lives, and if it has not opened
/// another one meanwhile. `None` for other paths; the inner one where nothing is known.
pub(super) fn descriptor(proc: &Proc, request: &ScanRequest) -> Option<Option<String>> {
    let (link, rest) = magic_link(&request.path, request.tgid)?;
    // Links are relative to the root of the namespace, so no chroot is put in front.
    let base = proc.link(request.tgid, &link).filter(|base| base.starts_with('/'));
    Some(base.map(|base| normalise(&format!("{base}/{rest}"))))
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

    use kevtmon_observation::{PathOrigin, PathUncertainty};

    use super::*;

    /// Namespace 1, in which caller 42 has these links.
    fn proc(links: &[(&str, &str)]) -> (tempfile::TempDir, Proc) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("42/fd")).unwrap();
        fs::create_dir_all(root.path().join("42/ns")).unwrap();
        for (link, target) in [("ns/mnt", "mnt:[1]")].iter().chain(links) {
            symlink(target, root.path().join("42").join(link)).unwrap();
        }
        let proc = Proc::new(root.path());
        (root, proc)
    }

    fn request(path: &str) -> ScanRequest {
        ScanRequest {
            id: 1,
            mntns: 1,
            tgid: 42,
            path: path.to_owned(),
            follow: true,
            ..ScanRequest::default()
        }
    }

    fn start(links: &[(&str, &str)], request: &ScanRequest) -> Option<(String, Option<String>)> {
        let (_files, proc) = proc(links);
        let origin = origin(&proc, request).ok()?;
        Some((origin.root.map_or_else(|| "?".to_owned(), |root| root.path), origin.cwd.map(|cwd| cwd.path)))
    }

    #[test]
    fn what_was_captured_of_the_caller_counts_rather_than_what_has_its_id_now() {
        let links = [("root", "/other"), ("cwd", "/other/in")];
        let at =
            |mount_id, path: Option<&str>| Some(CallerDirectory { mount_id, path: path.map(str::to_owned) });
        let with = |path: &str, root, cwd| {
            let origin =
                Some(Box::new(PathOrigin { root, cwd, doubt: None, table: None, target: None, began: None }));
            start(&links, &ScanRequest { origin, ..request(path) })
        };
        let jail = || at(7, Some("/jail"));
        assert_eq!(with("/vol", jail(), None), Some(("/jail".into(), None)));
        assert_eq!(with("vol", jail(), at(7, Some("/in"))), Some(("/jail".into(), Some("/in".into()))));
        assert_eq!(with("vol", jail(), at(7, None)), None, "a directory that was removed");
        assert_eq!(with("/vol", None, None), None);
    }

    #[test]
    fn the_text_of_a_path_is_one_from_the_topmost_mount_unless_it_leads_upwards() {
        let at = |path: &str| Some(CallerDirectory { mount_id: 7, path: Some(path.to_owned()) });
        let of = |path: &str, doubt| {
            let (root, cwd) = (at("/"), at("/sys/fs/cgroup"));
            let origin =
                Some(Box::new(PathOrigin { root, cwd, doubt, table: None, target: None, began: None }));
            text(&ScanRequest { origin, ..request(path) })
        };
        assert_eq!(of("a/./b/", None).as_deref(), Some("/sys/fs/cgroup/a/b"));
        assert_eq!(of("//sys/fs/cgroup/a", None).as_deref(), Some("/sys/fs/cgroup/a"));
        assert_eq!(of("a/../b", None), None);
        assert_eq!(of("a", Some(PathUncertainty::Changed)), None);
        assert_eq!(text(&request("/a")), None, "without an origin it is about no call");
    }

    #[test]
    fn of_a_caller_that_is_not_captured_proc_shows_the_directories() {
        let links = [("root", "/jail"), ("cwd", "/jail/in")];
        let both = Some(("/jail".to_owned(), Some("/jail/in".to_owned())));
        assert_eq!(start(&links, &request("vol")), both);
        assert_eq!(start(&links, &request("/vol")), Some(("/jail".into(), None)));
        let elsewhere = ScanRequest { mntns: 2, ..request("/vol") };
        assert_eq!(start(&links, &elsewhere), Some(("?".into(), None)), "42 is another process by now");
        assert_eq!(start(&links, &ScanRequest { mntns: 2, ..request("vol") }), None);
        assert_eq!(start(&[("root", "/"), ("cwd", "(unreachable)/a")], &request("b")), None);
    }

    #[test]
    fn a_descriptor_stands_for_what_it_has_open() {
        let links = [("fd/7", "/srv/vol"), ("fd/8", "pipe:[1]"), ("root", "/jail"), ("cwd", "/jail/in")];
        let (_files, proc) = proc(&links);
        let meant = |path: &str| descriptor(&proc, &request(path));
        for path in ["/proc/self/fd/7", "/proc/42/fd/7/", "/proc/thread-self/fd/7/x/..", "/dev/fd/7"] {
            assert_eq!(meant(path), Some(Some("/srv/vol".into())), "{path}");
        }
        assert_eq!(meant("/proc/self/root/vol"), Some(Some("/jail/vol".into())));
        assert_eq!(meant("/proc/self/cwd"), Some(Some("/jail/in".into())));
        assert_eq!(meant("/proc/self/fd/8"), Some(None));
        assert_eq!(meant("/proc/self/fd/9"), Some(None));
        assert_eq!(meant("/proc/sys/fs/binfmt_misc"), None);
        assert_eq!(meant("/srv/vol"), None);
    }
}
