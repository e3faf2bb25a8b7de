//! Whether what leads to a mount may have been put there after a call began.

use kevtmon_observation::CallStart;
use kevtmon_types::clock::{boot_now, realtime_offset_ns};
use nix::time::{ClockId, clock_gettime};

use super::path::captured;
use super::*;
use crate::resolve::replaced::LATE_NS;

/// A call before which everything is that was made until now, and nothing that is made from now on, however late the clock of
/// file systems may be.
fn begin() -> u64 {
    let coarse_now = || clock_gettime(ClockId::from_raw(libc::CLOCK_REALTIME_COARSE)).unwrap();
    let before = coarse_now();
    while coarse_now() == before {
        std::thread::yield_now();
    }
    let began = boot_now() + LATE_NS;
    let now = clock_gettime(ClockId::CLOCK_REALTIME).unwrap();
    // That clock shows a time before this one until it ticks, and after a tick that came late still an earlier one.
    while coarse_now() <= now {
        std::thread::yield_now();
    }
    began
}

fn heard(at: u64) -> CallStart {
    CallStart { at, realtime_offset_ns: realtime_offset_ns() }
}

fn may_be_replaced(path: &Path, began: Option<u64>) -> bool {
    is_doubted(path, began.map(heard))
}

fn is_doubted(path: &Path, began: Option<CallStart>) -> bool {
    let root = captured(Path::new("/"));
    let origin = PathOrigin { root, cwd: None, doubt: None, table: None, target: None, began };
    let request = ScanRequest { origin: Some(Box::new(origin)), ..request(path) };
    let found = first(&Proc::default(), &request, Deadline::after(AMPLE));
    assert!(found.report.mount.is_some(), "{found:?}");
    found.may_be_replaced
}

/// What is done below a directory.
type Exchange = fn(&Path);

#[test]
fn what_was_put_into_a_path_after_the_call_leaves_it_in_doubt_and_what_is_beside_does_not() {
    let mut sandbox = MountSandbox::new();
    fs::create_dir(sandbox.path("base")).unwrap();
    for name in ["base/data/vol", "base/other/vol"] {
        sandbox.mount(name);
    }
    let [base, link] = ["base", "base/link"].map(|name| sandbox.path(name));
    symlink("data", &link).unwrap();
    let path = link.join("vol");
    assert!(may_be_replaced(&path, None), "when it began is not known");
    assert!(!may_be_replaced(&path, Some(begin())));

    let began = begin();
    fs::create_dir(base.join("beside")).unwrap();
    fs::write(base.join("other/file"), "x").unwrap();
    assert!(!may_be_replaced(&path, Some(began)));

    let exchanges: [(&str, Exchange); 4] = [
        ("another link is renamed to it", |base| {
            symlink("other", base.join("new")).unwrap();
            fs::rename(base.join("new"), base.join("link")).unwrap();
        }),
        ("it is removed and made again", |base| {
            fs::remove_file(base.join("link")).unwrap();
            symlink("data", base.join("link")).unwrap();
        }),
        ("a directory is renamed to where it leads", |base| {
            fs::rename(base.join("data"), base.join("aside")).unwrap();
            fs::rename(base.join("other"), base.join("data")).unwrap();
        }),
        // That could be the mount point, seen from elsewhere.
        ("a directory is renamed beside the mount", |base| {
            fs::create_dir(base.join("data/new")).unwrap();
            fs::rename(base.join("data/new"), base.join("data/old")).unwrap();
        }),
    ];
    for (what, exchange) in exchanges {
        let began = begin();
        assert!(!may_be_replaced(&path, Some(began)), "before {what}");
        exchange(&base);
        assert!(may_be_replaced(&path, Some(began)), "{what}");
        assert!(!may_be_replaced(&path, Some(begin())), "after {what}");
    }
}

#[test]
fn a_path_is_in_doubt_if_the_clock_was_set_since_the_call() {
    let mut sandbox = MountSandbox::new();
    let path = sandbox.mount("vol");
    let CallStart { at, realtime_offset_ns } = heard(begin());
    for (milliseconds, is_set) in [(0, false), (-10, false), (2_000, true), (-2_000, true)] {
        let realtime_offset_ns = realtime_offset_ns - milliseconds * 1_000_000;
        assert_eq!(
            is_doubted(&path, Some(CallStart { at, realtime_offset_ns })),
            is_set,
            "{milliseconds} ms"
        );
    }
}

#[test]
fn the_directories_that_a_path_starts_from_count_too() {
    let mut sandbox = MountSandbox::new();
    fs::create_dir(sandbox.path("base")).unwrap();
    let [one, other] = ["base/one/vol", "base/other/vol"].map(|name| sandbox.mount(name));
    let cwd = captured(one.parent().unwrap());
    let doubted = |began| {
        let (root, cwd) = (captured(Path::new("/")), cwd.clone());
        let origin =
            PathOrigin { root, cwd, doubt: None, table: None, target: None, began: Some(heard(began)) };
        let (path, origin) = ("vol".to_owned(), Some(Box::new(origin)));
        let found =
            first(&Proc::default(), &ScanRequest { path, origin, ..request(&one) }, Deadline::after(AMPLE));
        assert!(found.report.mount.is_some(), "{found:?}");
        found.may_be_replaced
    };
    let began = begin();
    assert!(!doubted(began));
    let [one, other] = [&one, &other].map(|mount| mount.parent().unwrap());
    fs::rename(one, sandbox.path("base/aside")).unwrap();
    fs::rename(other, one).unwrap();
    assert!(doubted(began));
}
