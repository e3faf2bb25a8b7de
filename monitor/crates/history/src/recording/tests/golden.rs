//! Recordings with a reviewed output: `tests/fixtures/NAME.ndjson` must give the events of `NAME.golden`. With
//! `KEVTMON_BLESS=1` the output is written again; review its diff.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;
use kevtmon_core::diagnose::kind;
use kevtmon_core::{Core, Output, Resume};
use kevtmon_observation::{Fact, Observation};
use kevtmon_render::Pretty;
use kevtmon_testing::same::assert_same;
use kevtmon_testing::schema::assert_is_marked;

use super::super::format::Header;
use super::super::reader::{Line, Reader};
use super::super::replay::{Summary, replay};

pub(in crate::recording) fn fixtures() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|suffix| suffix == "ndjson"));
    paths.sort();
    assert!(paths.len() >= 2, "fixtures are missing in {}", directory.display());
    paths
}

/// Each event as text, and below it as JSON.
fn answer(recording: &[u8]) -> (String, Summary) {
    let pretty = Pretty { colour: false, zone: TimeZone::UTC };
    let mut text = String::new();
    let summary = replay(recording, None, |event| {
        assert_is_marked(&event);
        if let Some(incident) = &event.incident {
            assert!(kind(&incident.kind).unwrap().severities.contains(&incident.severity), "{incident:?}");
        }
        text.push_str(&pretty.text(&event));
        writeln!(text, "  {}\n", serde_json::to_string(&event).unwrap()).unwrap();
        Ok(())
    })
    .unwrap();
    (text, summary)
}

#[test]
fn every_fixture_says_what_was_reviewed() {
    let bless = std::env::var_os("KEVTMON_BLESS").is_some();
    for path in fixtures() {
        let (said, summary) = answer(&fs::read(&path).unwrap());
        assert_eq!((summary.skipped, &summary.cut[..]), (0, &[][..]), "{}: {summary:?}", path.display());
        let golden = path.with_extension("golden");
        if bless {
            fs::write(&golden, &said).unwrap();
        }
        let reviewed = fs::read_to_string(&golden).unwrap_or_default();
        let differs = said.lines().zip(reviewed.lines()).find(|(said, reviewed)| said != reviewed);
        assert!(
            said == reviewed,
            "{} differs; see the difference with KEVTMON_BLESS=1 and git diff\nfirst: {differs:#?}",
            path.display()
        );
    }
}

/// A kubelet that deletes a pod in peace takes the gateway of its sandbox along, as in the failures.
#[test]
fn only_what_is_a_failure_raises_an_incident() {
    let is_quiet = |path: &PathBuf| {
        let (said, _) = answer(&fs::read(path).unwrap());
        assert!(said.contains("daemon.stopping"), "{} is whole", path.display());
        !said.contains("incident.opened")
    };
    let quiet: Vec<PathBuf> = fixtures().into_iter().filter(is_quiet).collect();
    let [only] = &quiet[..] else { panic!("one fixture is of no failure: {quiet:?}") };
    let (said, _) = answer(&fs::read(only).unwrap());
    assert!(only.ends_with("graceful-deletion.ndjson") && said.contains("static gateway"), "{only:?}");
}

#[test]
fn a_replay_gives_the_same_bytes_twice() {
    for path in fixtures() {
        let recording = fs::read(&path).unwrap();
        assert_eq!(answer(&recording), answer(&recording), "{}", path.display());
    }
}

pub(in crate::recording) fn observations(path: &Path) -> (Header<'static>, Vec<Observation>) {
    let recording = fs::read(path).unwrap();
    let mut reader = Reader::new(&recording[..]);
    let Some(Line::Part(header)) = reader.next_line().unwrap() else { panic!("no header") };
    let observations = std::iter::from_fn(|| match reader.next_line().unwrap()? {
        Line::Observation(observation) => Some(observation),
        other => panic!("{other:?}"),
    });
    (*header, observations.collect())
}

pub(in crate::recording) fn feed(core: &mut Core, observations: &[Observation]) -> Vec<Output> {
    let mut said = Vec::new();
    for observation in observations {
        core.observe(observation.clone());
        said.extend(core.take_output());
    }
    said
}

#[test]
fn a_recording_can_begin_at_any_moment_and_goes_on_as_the_core_did() {
    for path in fixtures() {
        let (header, observations) = observations(&path);
        for cut in 0..=observations.len() {
            let (before, after) = observations.split_at(cut);
            let mut core = Core::new(header.settings.clone(), Resume::default());
            feed(&mut core, before);
            let written = written(&core);
            let (settings, saved) = serde_json::from_slice(&written).unwrap();
            let mut restored = Core::restore(settings, saved).unwrap();
            assert!(restored.take_output().next().is_none(), "restoring says nothing");
            assert_eq!(text(&self::written(&restored)), text(&written), "{} at {cut}", path.display());
            assert_same(&restored, &core, &format!("{} at {cut}", path.display()));

            let (live, again) = (feed(&mut core, after), feed(&mut restored, after));
            assert_eq!(again, live, "{} at {cut}", path.display());
            assert_same(&restored, &core, &format!("{} at its end after {cut}", path.display()));
        }
    }
}

fn written(core: &Core) -> Vec<u8> {
    serde_json::to_vec(&(core.settings(), core.save().unwrap())).unwrap()
}

fn text(written: &[u8]) -> &str {
    std::str::from_utf8(written).unwrap()
}

#[test]
fn every_fixture_is_a_daemon_that_became_ready_and_ended() {
    for path in fixtures() {
        let (_, observations) = observations(&path);
        assert_eq!(observations.last().unwrap().fact, Fact::Stop, "{}", path.display());
    }
}
