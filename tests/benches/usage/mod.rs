//! What the daemon uses, as the kernel counts it.

use std::{fs, io};

use kevtmon_tests::daemon::Daemon;

/// What its threads have run so far: the first number of proc_pid_schedstat(5), nanoseconds.
pub(crate) fn processor_seconds(daemon: &Daemon) -> io::Result<f64> {
    let nanoseconds = sum_of_threads(daemon, "schedstat", |text| text.split_whitespace().next())?;
    Ok(nanoseconds / 1e9)
}

/// The sum of a number in a file of each thread.
pub(crate) fn sum_of_threads(
    daemon: &Daemon,
    file: &str,
    number: impl Fn(&str) -> Option<&str>,
) -> io::Result<f64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid()))?;
    let texts = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join(file)).ok());
    Ok(texts.filter_map(|text| number(&text)?.trim().parse::<f64>().ok()).sum())
}

/// Its memory, by kind and at most.
pub(crate) fn memory(daemon: &Daemon) -> io::Result<String> {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid()))?;
    let wanted = ["VmRSS", "RssAnon", "RssFile", "RssShmem", "VmHWM"];
    let lines = status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    Ok(lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", "))
}
