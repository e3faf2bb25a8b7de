//! How fast `kevtmon holders` names who holds a mount, beside fuser(1), lsof(8) and lsfd(1): among processes in one mount namespace, and
//! in a hundred of which one sees the mount; how fast the daemon does; what they do where the server of a mount is stopped; and
//! what refused unmounts cost the daemon. It fails where ours are not as much faster as they have to be. `cargo bench --bench holders 2000/100 stopped refusals` is a part of it.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "it prints figures, and a set-up that fails must end it"
)]

mod answer;
mod crowd;
mod refusals;
mod stopped;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::{env, io};

use answer::{Program, ask};
use crowd::Crowd;
use kevtmon_tests::daemon::launch;
use kevtmon_tests::limits::{Limits, spread};
use kevtmon_tests::mount::{Mount, is_about};
use kevtmon_tests::process::{hold_by_cwd, hold_by_fd};
use kevtmon_tests::random::rounds;

const NAMESPACES: usize = 100;
/// Processes, and rounds unless `KEVTMON_TEST_ROUNDS` says otherwise.
const SIZES: [(usize, u64); 3] = [(100, 15), (2_000, 9), (10_000, 3)];
/// Among fewer processes it is the start of a program that takes the time.
const MANY: usize = 2_000;
/// In so many namespaces one of ours has to be so many times as fast as another program.
const FASTER: [(usize, Program, Program, f64); 4] = [
    (1, Program::Kevtmon, Program::Fuser, 1.3),
    (1, Program::Kevtmon, Program::Lsof, 5.0),
    (1, Program::Kevtmon, Program::Lsfd, 1.0),
    (NAMESPACES, Program::KevtmonNear, Program::Fuser, 5.0),
];

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((act, rest)) if act == "crowd" => return crowd::be(rest).map(|()| ExitCode::SUCCESS),
        Some((act, rest)) if act == "serve" => return stopped::serve(rest).map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    // Cargo adds `--bench`.
    let wanted: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| *wanted == name);
    let mut limits = Limits::default();
    for (processes, count) in SIZES {
        for namespaces in [1, NAMESPACES] {
            if is_wanted(&format!("{processes}/{namespaces}")) {
                side_by_side(processes, namespaces, rounds(count), &mut limits);
            }
        }
    }
    if is_wanted("stopped") {
        stopped::measure();
    }
    if is_wanted("refusals") {
        refusals::measure(&mut limits);
    }
    if !limits.is_empty() {
        println!("{limits}");
    }
    Ok(limits.exit_code())
}

/// Asks all of them in turn, and then the daemon.
fn side_by_side(processes: usize, namespaces: usize, rounds: u64, limits: &mut Limits) {
    let _crowd = Crowd::start(processes, namespaces);
    let mount = Mount::new();
    let holders = [hold_by_fd(&mount.file()), hold_by_cwd(mount.point())];
    let expected: BTreeSet<u32> = holders.iter().map(|holder| holder.pid()).collect();
    println!(
        "{processes} processes in {namespaces} mount namespaces, {rounds} rounds in turn (seconds: min / median / max)"
    );
    let mut times: Vec<_> = Program::installed().into_iter().map(|program| (program, Vec::new())).collect();
    for _ in 0..rounds {
        let mut found = Vec::new();
        for (program, seconds) in &mut times {
            let answer = ask(*program, mount.point(), None);
            assert!(answer.pids.is_superset(&expected), "{program:?} named {:?}", answer.pids);
            seconds.push(answer.seconds);
            found.push(answer.pids);
        }
        assert!(found.iter().all(|pids| pids.is_subset(&found[0])), "others named more: {found:?}");
    }
    let medians = times.into_iter().map(|(program, mut seconds)| {
        let (least, median, most) = spread(&mut seconds);
        println!("  {:22} {least:.3} / {median:.3} / {most:.3}", program.name());
        (program, median)
    });
    let medians: Vec<(Program, f64)> = medians.collect();
    if processes >= MANY {
        judge(&medians, (processes, namespaces), limits);
    }
    let (own, others): (Vec<_>, Vec<_>) = medians.into_iter().partition(|(program, _)| program.is_own());
    let scan = scan_of_daemon(&mount, &expected, rounds.min(3));
    println!("  a scan of the daemon   {scan:.3} in the median, until it names them");
    println!("  all name the holders; how many times as long the others take:");
    let own = own.into_iter().map(|(program, seconds)| (program.name(), seconds));
    for (name, seconds) in own.chain([("the daemon", scan)]) {
        let ratio = |(program, other): &(Program, f64)| format!("{} {:.2}", program.name(), other / seconds);
        println!("    {name:22} {}", others.iter().map(ratio).collect::<Vec<_>>().join(", "));
    }
}

/// Adds how many times as fast ours are as those that they are compared with.
fn judge(medians: &[(Program, f64)], (processes, namespaces): (usize, usize), limits: &mut Limits) {
    let median = |wanted: Program| medians.iter().find(|(program, _)| *program == wanted);
    for (_, own, other, limit) in FASTER.into_iter().filter(|(of, ..)| *of == namespaces) {
        if let (Some((own, seconds)), Some((other, longer))) = (median(own), median(other)) {
            let what = format!("{} beside {}, {processes}/{namespaces}", own.name(), other.name());
            limits.at_least(&what, limit, longer / seconds, "x");
        }
    }
}

/// Seconds that a scan of the daemon takes after a refused unmount, in the median.
fn scan_of_daemon(mount: &Mount, expected: &BTreeSet<u32>, rounds: u64) -> f64 {
    let mut seconds: Vec<f64> = (0..rounds)
        .map(|_| {
            let mut daemon = launch().start();
            mount.umount_refused();
            daemon.wait_for("the holders of the mount", |event| {
                let holders = event.list("/holders");
                is_about(event, "mount.busy", mount.point())
                    && expected.iter().all(|pid| holders.iter().any(|holder| holder["pid"] == *pid))
            });
            daemon.metrics().count("kevtmon_holders_scan_seconds_sum", &[])
        })
        .collect();
    spread(&mut seconds).1
}
