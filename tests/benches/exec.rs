//! The cost of observation for who starts programs that are no CNI plugins, one after another, in turn with and without
//! the daemon. Each fork and exec passes the hook `exec`, which looks at the path and at nothing else.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "it prints figures, and a set-up that fails must end it"
)]

use std::process::Command;
use std::time::Instant;

use kevtmon_tests::daemon::launch;
use kevtmon_tests::limits::spread;

const PROGRAMS: u32 = 2_000;
const ROUNDS: usize = 9;

fn main() {
    run();
    let (mut bare, mut watched) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(run());
        let daemon = launch().start();
        let hook = [("attach_mode", "tp_btf"), ("hook", "exec")];
        let attached = daemon.metrics().count("kevtmon_hook_info", &hook);
        assert!(attached > 0.0, "the hook is not attached: there is nothing to measure");
        watched.push(run());
    }
    let mut ratios: Vec<f64> = bare.iter().zip(&watched).map(|(bare, watched)| watched / bare).collect();
    let ratio = spread(&mut ratios);
    let (bare, watched) = (spread(&mut bare), spread(&mut watched));
    println!("exec       {PROGRAMS} programs started, {ROUNDS} rounds in turn (min / median / max)");
    println!("           bare    {:.1} / {:.1} / {:.1} µs each", bare.0, bare.1, bare.2);
    println!("           watched {:.1} / {:.1} / {:.1} µs each", watched.0, watched.1, watched.2);
    println!("           ratio   {:.3} / {:.3} / {:.3}", ratio.0, ratio.1, ratio.2);
}

/// Microseconds from the fork of a program to its end.
fn run() -> f64 {
    let start = Instant::now();
    for _ in 0..PROGRAMS {
        let status = Command::new("/bin/true").env_clear().status().expect("/bin/true starts");
        assert!(status.success(), "/bin/true ended with {status}");
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(PROGRAMS)
}
