//! What stands in for `journalctl` is a script of the test's own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use kevtmon_testing::patience::eventually;
use tempfile::TempDir;

use super::*;
use crate::capabilities;

const KUBELET: &str = "kubelet.service";
const ALL: usize = 1 << 20;

struct Fake {
    directory: TempDir,
    journal: Journal,
    lines: Vec<(usize, String)>,
    malformed: u64,
    interruptions: u32,
}

impl Fake {
    /// `body`: what it does; its directory is `$D`.
    fn new(body: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journalctl");
        let script = format!("#!/bin/sh\nD={}\nPATH=/usr/bin:/bin\n{body}\n", directory.path().display());
        write_program(&path, &script, 0o755);
        let units = vec![KUBELET.to_owned(), "containerd.service".to_owned()];
        let journal = Journal::new(path, units);
        Self { directory, journal, lines: Vec::new(), malformed: 0, interruptions: 0 }
    }

    fn printing(entries: &[&str]) -> Self {
        let fake = Self::new("cat $D/entries; exec sleep 1000");
        fs::write(fake.directory.path().join("entries"), entries.join("\n") + "\n").unwrap();
        fake
    }

    fn look(&mut self) -> Looked {
        let lines = &mut self.lines;
        let looked = self.journal.look(ALL, &mut |unit, line| lines.push((unit, line.to_owned())));
        self.malformed += looked.malformed;
        self.interruptions += u32::from(looked.was_interrupted);
        looked
    }

    fn look_until(&mut self, is_done: impl Fn(&Self) -> bool) {
        eventually("the program has done that", || {
            self.look();
            is_done(self)
        });
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }

    fn problem(&self) -> String {
        self.journal.problem().unwrap_or_default()
    }
}

/// Written by another process: a child of another test may have a file of this one open for a moment, and then it cannot be
/// executed (ETXTBSY).
fn write_program(path: &Path, text: &str, mode: u32) {
    let mut command = Command::new("sh");
    command.args(["-c", "printf %s \"$1\" >\"$0\" && chmod $2 \"$0\""]).arg(path).arg(text);
    assert!(command.arg(format!("{mode:o}")).status().unwrap().success());
}

fn entry(unit: &str, message: &str) -> String {
    format!("{{\"MESSAGE\":{message},\"_SYSTEMD_UNIT\":\"{unit}\"}}")
}

#[test]
fn lines_of_the_units_that_were_named_are_handed_on_and_no_others() {
    let moment = Moment::now();
    let old = format!(
        "{{\"MESSAGE\":\"old\",\"_SYSTEMD_UNIT\":\"{KUBELET}\",\"_BOOT_ID\":\"{}\",\"__MONOTONIC_TIMESTAMP\":\"{}\"}}",
        moment.boot, moment.monotonic
    );
    let mut fake = Fake::printing(&[
        &old,
        &entry(KUBELET, "\"first\\nsecond\""),
        "no entry",
        "{\"MESSAGE\":\"faked\",\"UNIT\":\"kubelet.service\",\"_SYSTEMD_UNIT\":\"user.service\"}",
        &entry("containerd.service", "[104,105]"),
        &entry(KUBELET, "null"),
        &entry(KUBELET, "\"last\""),
    ]);
    fake.look_until(|fake| fake.lines.last().is_some_and(|(_, line)| line == "last"));
    let lines: Vec<(usize, &str)> = fake.lines.iter().map(|(unit, line)| (*unit, line.as_str())).collect();
    assert_eq!(lines, [(0, "first"), (0, "second"), (1, "hi"), (0, "last")]);
    assert_eq!((fake.malformed, fake.journal.problem()), (2, None));
}

#[test]
fn the_program_is_given_the_units_and_has_nothing_else_of_this_process() {
    let held = fs::File::open("/dev/null").unwrap();
    let mut fake =
        Fake::new("env >$D/env; ls -l /proc/$$/fd >$D/fds; echo \"$@\" >$D/arguments; exec sleep 1000");
    fake.look_until(|fake| fake.file("arguments").ends_with('\n'));
    assert_eq!(
        fake.file("arguments").trim(),
        "--follow --since=now --no-tail --no-pager --output=json --output-fields=MESSAGE,_SYSTEMD_UNIT \
         _SYSTEMD_UNIT=kubelet.service _SYSTEMD_UNIT=containerd.service"
    );
    assert!(!fake.file("env").contains("CARGO"), "{}", fake.file("env"));
    let fds = fake.file("fds");
    let numbers: Vec<&str> =
        fds.lines().filter_map(|line| line.split_once(" -> ")?.0.rsplit(' ').next()).collect();
    // The shell has its script open.
    let inherited = numbers.iter().filter_map(|number| number.parse::<u32>().ok()).filter(|fd| *fd < 10);
    assert_eq!(inherited.collect::<Vec<_>>(), [0, 1, 2], "{fds}");
    drop(held);
}

#[test]
fn the_program_may_do_nothing_but_read() {
    let mut fake =
        Fake::new("cat /proc/$$/status >$D/status.new; mv $D/status.new $D/status; exec sleep 1000");
    fake.look_until(|fake| !fake.file("status").is_empty());
    let status = fake.file("status");
    let mask = |set: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    };
    let allowed = capabilities::mask(&[capabilities::DAC_READ_SEARCH]);
    assert_eq!((mask("CapEff:") & !allowed, mask("CapPrm:") & !allowed), (0, 0), "{status}");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
}

#[test]
fn where_there_is_no_such_program_or_others_may_write_to_it_that_is_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journalctl");
    let problem = || {
        let mut journal = Journal::new(path.clone(), vec![KUBELET.to_owned()]);
        assert_eq!(journal.look(ALL, &mut |_, _| {}), Looked::default());
        journal.problem().unwrap()
    };
    let shown = path.display();
    assert_eq!(problem(), format!("the journal: there is no {shown}"));
    write_program(&path, "#!/bin/sh\nexec sleep 1000\n", 0o775);
    assert_eq!(
        problem(),
        format!("the journal: {shown} is not executed, as others than root may write to it")
    );
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(problem().starts_with(&format!("the journal: cannot start {shown}: ")), "{}", problem());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(problem(), format!("the journal: {shown} is not a regular file"));
}

#[test]
fn a_program_that_ends_is_started_again_after_more_and_more_looks() {
    let mut fake = Fake::new("echo x >>$D/starts; echo 'Failed to open files: \u{1b}Bad' >&2; exit 7");
    let shown = fake.directory.path().join("journalctl").display().to_string();
    // Here looks follow each other at once.
    fake.journal.settled = u32::MAX;
    fake.look_until(|fake| fake.interruptions == 1);
    assert_eq!(
        fake.problem(),
        format!("the journal: {shown} has ended with code 7: Failed to open files:  Bad")
    );
    let mut pauses = Vec::new();
    while pauses.len() < 8 {
        pauses.push(fake.journal.pause.0);
        let before = fake.interruptions;
        fake.look_until(|fake| fake.interruptions > before);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64]);
    assert_eq!(fake.file("starts").lines().count(), 9);
}

#[test]
fn a_program_that_works_again_has_no_problem_any_more() {
    let mut fake = Fake::new("[ -e $D/works ] || exit 1\nexec sleep 1000");
    fake.look_until(|fake| fake.interruptions == 1);
    fs::write(fake.directory.path().join("works"), "").unwrap();
    fake.look_until(|fake| fake.journal.running.is_some());
    for _ in fake.journal.looks..SETTLED {
        assert!(fake.problem().contains("has ended with code 1"), "{}", fake.problem());
        fake.look();
    }
    assert_eq!((fake.journal.problem(), fake.journal.pause), (None, (0, 1)));
}

#[test]
fn a_program_that_knows_no_fields_is_started_without_them_at_once() {
    let mut fake = Fake::new(
        "case \"$*\" in *output-fields*) echo \"journalctl: unrecognized option '--output-fields=X'\" >&2; exit 1;; esac\n\
         echo '{\"MESSAGE\":\"hi\",\"_SYSTEMD_UNIT\":\"kubelet.service\",\"_UID\":\"0\"}'; exec sleep 1000",
    );
    fake.look_until(|fake| !fake.lines.is_empty());
    assert_eq!((fake.interruptions, fake.journal.problem()), (0, None));
}

#[test]
fn what_the_program_complains_of_is_told_while_it_runs() {
    let mut fake = Fake::new("echo 'No journal files were found.' >&2; yes complaint >&2");
    fake.look_until(|fake| !fake.problem().is_empty());
    assert!(fake.problem().ends_with("says \"No journal files were found.\""), "{}", fake.problem());
}

#[test]
fn a_program_that_closes_its_output_and_stays_is_ended() {
    let mut fake = Fake::new("echo $$ >$D/pid; exec >&-; exec sleep 1000");
    fake.look_until(|fake| fake.interruptions == 1);
    assert!(fake.problem().ends_with("journalctl prints no more"), "{}", fake.problem());
    let pid = fake.file("pid").trim().parse().unwrap();
    fake.look_until(|_| !Proc::default().is_alive(pid));
}

#[test]
fn a_line_that_is_far_too_long_is_left_out_and_counted() {
    let mut fake = Fake::new("head -c 3000000 /dev/zero; echo; cat $D/entries; exec sleep 1000");
    fs::write(fake.directory.path().join("entries"), entry(KUBELET, "\"hi\"") + "\n").unwrap();
    fake.look_until(|fake| !fake.lines.is_empty());
    assert_eq!((fake.malformed, fake.journal.problem()), (1, None));
}

#[test]
fn entries_that_are_long_over_are_left_out_with_what_is_behind_them() {
    let mut fake = Fake::new("until [ -e $D/entries ]; do sleep 0.01; done; cat $D/entries; exec sleep 1000");
    fake.journal.behind = 0;
    fake.look();
    let Moment { boot, monotonic } = Moment::now();
    let late = format!(
        "{{\"MESSAGE\":\"a\",\"_SYSTEMD_UNIT\":\"{KUBELET}\",\"_BOOT_ID\":\"{boot}\",\"__MONOTONIC_TIMESTAMP\":\"{monotonic}\"}}"
    );
    fs::write(fake.directory.path().join("new"), late + "\n").unwrap();
    fs::rename(fake.directory.path().join("new"), fake.directory.path().join("entries")).unwrap();
    let mut is_behind = false;
    eventually("the entry is read", || {
        is_behind |= fake.look().is_behind;
        is_behind
    });
    assert!(fake.journal.running.is_none() && fake.journal.problem().is_none());
    fake.look();
    assert!(fake.journal.running.is_some(), "it is started again");
}

#[test]
fn the_program_ends_with_the_thread_that_reads_it() {
    let pid = std::thread::spawn(|| {
        let mut fake = Fake::new("echo $$ >$D/pid; exec sleep 1000");
        fake.look_until(|fake| fake.file("pid").ends_with('\n'));
        let pid: u32 = fake.file("pid").trim().parse().unwrap();
        // As where the whole daemon is killed: nobody drops it.
        std::mem::forget(fake.journal.running.take());
        pid
    });
    let pid = pid.join().unwrap();
    eventually("it has ended", || !Proc::default().is_alive(pid));
}
