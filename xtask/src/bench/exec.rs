//! The cost of observation for who starts programs that are no CNI plugins, one after another, in turn with and without
//! the daemon. Each fork and exec passes the hook `exec`, which looks at the path and at nothing else.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::environment::Daemon;
use super::spread;

const PROGRAMS: u32 = 2_000;
const ROUNDS: usize = 9;

pub(super) fn exec(binary: &Path) -> Result<()> {
    run()?;
    let (mut bare, mut watched) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(run()?);
        let daemon = Daemon::start(binary)?;
        ensure!(
            daemon.metric("kevtmon_hook_info{attach_mode=\"tp_btf\",hook=\"exec\"}")? > 0.0,
            "the hook is not attached: there is nothing to measure"
        );
        watched.push(run()?);
    }
    let mut ratios: Vec<f64> = bare.iter().zip(&watched).map(|(bare, watched)| watched / bare).collect();
    let ratio = spread(&mut ratios);
    let (bare, watched) = (spread(&mut bare), spread(&mut watched));
    eprintln!("exec       {PROGRAMS} programs started, {ROUNDS} rounds in turn (min / median / max)");
    eprintln!("           bare    {:.1} / {:.1} / {:.1} µs each", bare.0, bare.1, bare.2);
    eprintln!("           watched {:.1} / {:.1} / {:.1} µs each", watched.0, watched.1, watched.2);
    eprintln!("           ratio   {:.3} / {:.3} / {:.3}", ratio.0, ratio.1, ratio.2);
    Ok(())
}

/// Microseconds from the fork of a program to its end.
fn run() -> Result<f64> {
    let start = Instant::now();
    for _ in 0..PROGRAMS {
        let status = Command::new("/bin/true").env_clear().status().context("cannot start /bin/true")?;
        ensure!(status.success(), "/bin/true ended with {status}");
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(PROGRAMS))
}
