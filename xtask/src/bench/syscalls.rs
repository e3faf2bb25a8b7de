//! The cost of observation for system calls that no mount refuses: those that the hook `remove` passes, and one that no hook
//! looks at. In turn without the daemon, with it, and with it but without that hook. The tracepoint of any system call
//! puts all of them on the slow way through the kernel, so the last two differ by the hook alone.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::environment::Daemon;
use super::spread;

const ROUNDS: usize = 9;
const CALLS: u32 = 400_000;

/// Nanoseconds of each call, in the order of [`NAMES`].
type Times = [f64; 3];
const NAMES: [&str; 3] = ["getppid", "unlink", "rename"];

pub(super) fn syscalls(binary: &Path) -> Result<()> {
    run()?;
    let (mut bare, mut without, mut watched) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(run()?);
        {
            let _daemon = Daemon::configured(binary, "[hooks]\nremove = \"off\"\n")?;
            without.push(run()?);
        }
        let daemon = Daemon::start(binary)?;
        ensure!(
            daemon.metric("kevtmon_hook_info{attach_mode=\"tracepoint\",hook=\"remove\"}")? > 0.0,
            "the hook is not attached: there is nothing to measure"
        );
        watched.push(run()?);
    }
    eprintln!("syscalls   {CALLS} of each, {ROUNDS} rounds in turn, ns each (min / median / max)");
    for (index, name) in NAMES.iter().enumerate() {
        for (state, times) in [("bare", &bare), ("without", &without), ("watched", &watched)] {
            let mut values: Vec<f64> = times.iter().map(|times| times[index]).collect();
            let (least, median, most) = spread(&mut values);
            eprintln!("           {name:8} {state:8} {least:.0} / {median:.0} / {most:.0}");
        }
    }
    Ok(())
}

fn run() -> Result<Times> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| {
        Ok::<_, anyhow::Error>(CString::new(directory.path().join(name).as_os_str().as_bytes())?)
    };
    let (one, other, none) = (path("one")?, path("other")?, path("none")?);
    std::fs::write(directory.path().join("one"), "")?;
    // SAFETY: none of these writes, and each path ends with NUL.
    let ppid = timed(|_| unsafe { libc::syscall(libc::SYS_getppid) } > 0)?;
    // SAFETY: as above. The name does not exist, so that nothing else is measured.
    let unlink = timed(|_| unsafe { libc::unlink(none.as_ptr()) } != 0)?;
    let rename = timed(|index| {
        let (from, to) = if index % 2 == 0 { (&one, &other) } else { (&other, &one) };
        // SAFETY: as above.
        unsafe { libc::rename(from.as_ptr(), to.as_ptr()) == 0 }
    })?;
    Ok([ppid, unlink, rename])
}

/// Nanoseconds of one of many calls.
fn timed(mut call: impl FnMut(u32) -> bool) -> Result<f64> {
    let start = Instant::now();
    for index in 0..CALLS {
        ensure!(call(index), "a call has another result than expected: {}", io::Error::last_os_error());
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS))
}
