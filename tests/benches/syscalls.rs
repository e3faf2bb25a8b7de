//! The cost of observation for system calls that no mount refuses: those that the hook `remove` passes, the read of a sysctl, which
//! passes the hook `sysctl`, and one that no hook looks at. In turn without the daemon, with it, and with it but without these
//! hooks. The tracepoint of any system call puts all of them on the slow way through the kernel, so the last two differ by the hook
//! alone.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "it prints figures, and a set-up that fails must end it"
)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use kevtmon_tests::daemon::launch;
use kevtmon_tests::limits::spread;
use kevtmon_tests::mount::Scratch;

const ROUNDS: usize = 9;
const CALLS: u32 = 400_000;
const SYSCTL: &str = "/proc/sys/net/ipv4/ip_forward";

/// Nanoseconds of each call, in the order of [`NAMES`].
type Times = [f64; 4];
const NAMES: [&str; 4] = ["getppid", "unlink", "rename", "sysctl"];

fn main() {
    run();
    let (mut bare, mut without, mut watched) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(run());
        {
            let _daemon = launch().config("[hooks]\nremove = \"off\"\nsysctl = \"off\"\n").start();
            without.push(run());
        }
        let daemon = launch().start();
        for (hook, attach_mode) in [("remove", "tracepoint"), ("sysctl", "cgroup")] {
            let labels = [("attach_mode", attach_mode), ("hook", hook)];
            let attached = daemon.metrics().count("kevtmon_hook_info", &labels);
            assert!(attached > 0.0, "the hook {hook} is not attached: there is nothing to measure");
        }
        watched.push(run());
    }
    println!("syscalls   {CALLS} of each, {ROUNDS} rounds in turn, ns each (min / median / max)");
    for (index, name) in NAMES.iter().enumerate() {
        for (state, times) in [("bare", &bare), ("without", &without), ("watched", &watched)] {
            let mut values: Vec<f64> = times.iter().map(|times: &Times| times[index]).collect();
            let (least, median, most) = spread(&mut values);
            println!("           {name:8} {state:8} {least:.0} / {median:.0} / {most:.0}");
        }
    }
}

fn run() -> Times {
    let scratch = Scratch::without_mounts();
    let path = |name: &str| {
        CString::new(scratch.path().join(name).as_os_str().as_bytes()).expect("a path without NUL")
    };
    let (one, other, none) = (path("one"), path("other"), path("none"));
    std::fs::write(scratch.path().join("one"), "").expect("a file can be written");
    // SAFETY: none of these writes, and each path ends with NUL.
    let ppid = timed(|_| unsafe { libc::syscall(libc::SYS_getppid) } > 0);
    // SAFETY: as above. The name does not exist, so that nothing else is measured.
    let unlink = timed(|_| unsafe { libc::unlink(none.as_ptr()) } != 0);
    let rename = timed(|index| {
        let (from, to) = if index % 2 == 0 { (&one, &other) } else { (&other, &one) };
        // SAFETY: as above.
        unsafe { libc::rename(from.as_ptr(), to.as_ptr()) == 0 }
    });
    let (sysctl, mut value) = (File::open(SYSCTL).expect("it can be read"), [0; 16]);
    let sysctl = timed(|_| sysctl.read_at(&mut value, 0).is_ok_and(|read| read > 0));
    [ppid, unlink, rename, sysctl]
}

/// Nanoseconds of one of many calls.
fn timed(mut call: impl FnMut(u32) -> bool) -> f64 {
    let start = Instant::now();
    for index in 0..CALLS {
        assert!(call(index), "a call has another result than expected: {}", io::Error::last_os_error());
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}
