use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use kevtmon_observation::{LogSays, Observation};
use kevtmon_testing::patience::eventually;
use kevtmon_types::settings::Values;

use super::*;

fn values(files: &[&Path]) -> Values {
    let mut values = Values::default();
    values.set(&FILES, Files(files.iter().map(|path| path.to_path_buf()).collect()));
    values
}

fn follower(files: &[&Path]) -> (Follower, mpsc::Receiver<Observation>) {
    follower_of(&values(files))
}

fn follower_of(values: &Values) -> (Follower, mpsc::Receiver<Observation>) {
    let (tx, rx) = mpsc::channel(64);
    let logs = Logs::open(values).unwrap();
    let told = status(std::iter::empty());
    (Follower { logs, tx, told, left_out: LeftOut::default(), progress: Arc::default() }, rx)
}

fn append(path: &Path, text: &str) {
    File::options().append(true).create(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

fn append_and_look(follower: &mut Follower, path: &Path, text: &str) -> Vec<Fact> {
    append(path, text);
    follower.look()
}

#[test]
fn without_a_log_in_the_configuration_nothing_is_read() {
    assert!(Logs::open(&Values::default()).is_none());
}

#[test]
fn a_line_that_is_recognised_is_handed_on_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.log");
    append(&path, "rbd image kube/old is still being used\n");
    let (mut follower, _rx) = follower(&[&path]);
    assert_eq!(follower.look(), []);
    append(
        &path,
        "nothing of interest\nE1 --key=AQs3cr3t rbd image kube/index is still being used, key AQs3cr3t\n",
    );
    let facts = follower.look();
    let [Fact::Log(line)] = &facts[..] else { panic!("{facts:?}") };
    assert_eq!(line.log, path.display().to_string());
    assert_eq!(line.text, "rbd image kube/index is still being used");
    assert!(matches!(&line.says, LogSays::RbdRefused(refusal) if refusal.image == "index"));
    assert!(!format!("{facts:?}").contains("AQs3cr3t"));
}

#[test]
fn a_flood_of_such_lines_is_cut_and_counted_once_in_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.log");
    append(&path, "");
    let (mut follower, _rx) = follower(&[&path]);
    follower.look();
    for round in 0..2 {
        append(&path, &"rbd image kube/index is still being used\n".repeat(1000));
        let facts = follower.look();
        let lines = facts.iter().filter(|fact| matches!(fact, Fact::Log(_))).count();
        assert_eq!(lines, LINES);
        let losses: Vec<&Loss> = facts
            .iter()
            .filter_map(|fact| if let Fact::Lost(loss) = fact { Some(loss) } else { None })
            .collect();
        let expected =
            Loss { source: "logs".into(), reason: "too-many-lines".into(), count: Some(1000 - LINES as u64) };
        assert_eq!(losses, if round == 0 { vec![&expected] } else { Vec::new() });
    }
    // What was not said then is not forgotten.
    assert_eq!(follower.left_out.beyond, 1000 - LINES as u64);
}

#[test]
fn a_log_that_cannot_be_read_is_told_once_and_so_is_that_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.log");
    fs::create_dir(&path).unwrap();
    let (mut follower, _rx) = follower(&[&path]);
    let facts = follower.look();
    let [Fact::Source(status)] = &facts[..] else { panic!("{facts:?}") };
    let reason = status.reason.clone().unwrap();
    assert!(status.up && reason.contains("kubelet.log: not a regular file"), "{reason}");
    assert_eq!(follower.look(), []);
    fs::remove_dir(&path).unwrap();
    append(&path, "");
    assert_eq!(follower.look(), [Fact::Source(SourceStatus::up(SourceKind::Logs, NAME))]);
}

#[test]
fn a_log_that_is_not_there_for_a_minute_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.log");
    let (mut follower, _rx) = follower(&[&path]);
    for _ in 1..follow::MISSED_MAX {
        assert_eq!(follower.look(), [], "it may be rotated");
    }
    let facts = follower.look();
    let [Fact::Source(status)] = &facts[..] else { panic!("{facts:?}") };
    let reason = format!("{} is not there", path.display());
    assert!(status.up && status.reason.as_ref() == Some(&reason), "{status:?}");
    assert_eq!(follower.look(), []);
    append(&path, "");
    assert_eq!(follower.look(), [Fact::Source(SourceStatus::up(SourceKind::Logs, NAME))]);
}

#[test]
fn a_look_that_does_not_end_is_told_by_who_waits_for_it_and_so_is_that_it_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.log");
    append(&path, "");
    let (mut follower, mut told) = follower(&[&path]);
    let (ticks, mut due) = mpsc::channel(1);
    let (tx, progress) = (follower.tx.clone(), Arc::clone(&follower.progress));
    let mut pace = Pace { ticks, tx, progress, missed: 0 };
    assert_eq!(follower.look(), []);
    // The first is taken by nobody, and those after it have no room.
    for _ in 0..pace::MISSED_MAX {
        assert!(pace.tick());
    }
    assert!(told.try_recv().is_err(), "it may be slow");
    assert!(pace.tick() && pace.tick());
    let Fact::Source(status) = told.try_recv().unwrap().fact else { panic!() };
    let reason = status.reason.unwrap();
    assert!(!status.up && reason.ends_with(&format!("; it waits at {}", path.display())), "{reason}");
    assert!(told.try_recv().is_err(), "it is told once");
    assert_eq!(follower.look(), [Fact::Source(SourceStatus::up(SourceKind::Logs, NAME))]);
    due.try_recv().unwrap();
    assert!(pace.tick() && pace.missed == 0);
    drop(due);
    assert!(!pace.tick(), "nobody reads any more");
}

#[test]
fn a_log_that_grows_without_end_takes_nothing_from_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let [flooded, quiet] = ["a", "b"].map(|name| dir.path().join(name));
    for path in [&flooded, &quiet] {
        append(path, "");
    }
    let (mut follower, _rx) = follower(&[&flooded, &quiet]);
    follower.look();
    append(&flooded, &"x\n".repeat(2 * BYTES));
    // Whichever of them is looked at first.
    for image in ["one", "two"] {
        append(&quiet, &format!("rbd image kube/{image} is still being used\n"));
        let facts = follower.look();
        let told = |fact: &Fact| matches!(fact, Fact::Log(line) if line.text.contains(image));
        assert!(facts.iter().any(told), "{facts:?}");
    }
    let more = append_and_look(&mut follower, &flooded, "rbd image kube/three is still being used\n");
    assert_eq!(more, [], "it is behind");
}

#[test]
fn a_path_that_is_not_absolute_and_too_many_are_refused() {
    let read = |text: &str| serde_json::from_str::<Files>(text).map(|files| files.0.len());
    assert_eq!(read("[\"/var/log/kubelet.log\"]").unwrap(), 1);
    for text in ["[\"kubelet.log\"]", "[\"/var/../log\"]", "[\"\"]"] {
        assert!(read(text).unwrap_err().to_string().contains("expected an absolute path"), "{text}");
    }
    let many: Vec<String> = (0..9).map(|number| format!("\"/{number}\"")).collect();
    assert!(read(&format!("[{}]", many.join(","))).unwrap_err().to_string().contains("8 files at most"));
}

/// A script in place of journalctl, written by another process: a child of another test may have a file of this one open for a
/// moment, and then it cannot be executed (ETXTBSY).
fn journalctl(path: &Path, body: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]).arg(path);
    assert!(command.arg(format!("#!/bin/sh\n{body}\n")).status().unwrap().success());
}

#[test]
fn lines_of_a_unit_in_the_journal_are_of_a_log_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("journalctl");
    let said = "E1 --key=AQs3cr3t rbd image kube/index is still being used";
    let entry = format!("{{\"MESSAGE\":\"{said}\",\"_SYSTEMD_UNIT\":\"kubelet.service\"}}");
    journalctl(&program, &format!("echo '{entry}'; exec sleep 1000"));
    let mut values = Values::default();
    values.set(&JOURNAL, Units(vec!["kubelet.service".into()]));
    values.set(&JOURNALCTL, Program(program));
    let (mut follower, _rx) = follower_of(&values);
    let mut facts = Vec::new();
    eventually("the line is read", || {
        facts.append(&mut follower.look());
        !facts.is_empty()
    });
    let [Fact::Log(line)] = &facts[..] else { panic!("{facts:?}") };
    assert_eq!((line.log.as_str(), line.text.as_str()), ("journal:kubelet.service", &said[18..]));
}

#[test]
fn a_journal_that_cannot_be_read_is_told_and_the_files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (program, path) = (dir.path().join("journalctl"), dir.path().join("kubelet.log"));
    append(&path, "");
    let mut values = values(&[&path]);
    values.set(&JOURNAL, Units(vec!["kubelet.service".into()]));
    values.set(&JOURNALCTL, Program(program.clone()));
    let (mut follower, _rx) = follower_of(&values);
    let facts = follower.look();
    let [Fact::Source(status)] = &facts[..] else { panic!("{facts:?}") };
    let reason = format!("the journal: there is no {}", program.display());
    assert!(status.up && status.reason.as_ref() == Some(&reason), "{status:?}");
    let facts = append_and_look(&mut follower, &path, "rbd image kube/index is still being used\n");
    assert!(matches!(&facts[..], [Fact::Log(_)]), "{facts:?}");
}

#[test]
fn a_unit_has_its_full_name_and_the_program_its_path() {
    let read = |text: &str| serde_json::from_str::<Units>(text).map(|units| units.0.len());
    assert_eq!(read("[\"kubelet.service\",\"a\\\\x2db@1:c_.scope\"]").unwrap(), 2);
    let long = format!("[\"{}.service\"]", "a".repeat(250));
    for text in [
        "[\"kubelet\"]", "[\".service\"]", "[\"a b.service\"]", "[\"a\\nb.service\"]", "[\"*.service\"]",
        &long,
    ] {
        assert!(read(text).unwrap_err().to_string().contains("expected the full name of a unit"), "{text}");
    }
    let many: Vec<String> = (0..9).map(|number| format!("\"{number}.service\"")).collect();
    assert!(read(&format!("[{}]", many.join(","))).unwrap_err().to_string().contains("8 units at most"));
    assert!(serde_json::from_str::<Program>("\"/usr/bin/journalctl\"").is_ok());
    assert!(serde_json::from_str::<Program>("\"journalctl\"").is_err());
}

#[tokio::test]
async fn what_is_followed_arrives_as_observations_until_nobody_takes_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.log");
    let (tx, mut rx) = mpsc::channel(64);
    Logs::open(&values(&[&path])).unwrap().start(tx);
    let first = rx.recv().await.unwrap().fact;
    assert_eq!(first, Fact::Source(SourceStatus::up(SourceKind::Logs, NAME)));
    append(&path, "rbd image kube/index is still being used\n");
    // Whether it was there at the first look depends on when that was: it is appended until one is told.
    let line = loop {
        tokio::select! {
            observed = rx.recv() => break observed.unwrap().fact,
            () = sleep(INTERVAL) => append(&path, "rbd image kube/index is still being used\n"),
        }
    };
    assert!(matches!(&line, Fact::Log(_)), "{line:?}");
}
