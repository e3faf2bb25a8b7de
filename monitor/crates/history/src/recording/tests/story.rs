//! The window of an incident replays to the events that were emitted live, wherever it begins.

use super::super::incident_windows::{DIRECTORY, list};
use super::golden::{fixtures, observations};
use super::*;

/// Segments of twelve seconds.
const SHORT: FlightLimits = FlightLimits { minutes: 1, max_mib: 16 };

#[test]
fn a_frozen_window_says_the_same_of_its_incident_wherever_it_begins() {
    let (mut opened, mut went_on) = (0, 0);
    for path in fixtures() {
        let dir = tempfile::tempdir().unwrap();
        let (header, observations) = observations(&path);
        let mut live = Live::with(header.settings);
        live.recorder.add_flight(dir.path(), &SHORT).unwrap();
        for Observation { at, fact, .. } in observations {
            live.observe(at, fact);
        }
        let said = String::from_utf8(live.finish()).unwrap();
        let windows = list(&dir.path().join(DIRECTORY)).unwrap();
        assert_eq!(!windows.is_empty(), said.contains("incident.opened"), "{}", path.display());
        for (window, kept) in windows {
            let kept = kept.unwrap();
            let segments = numbered(&window).unwrap();
            assert!(segments.len() > 2, "{}: {segments:?}", path.display());
            for (number, segment) in segments {
                let mut packed = Vec::new();
                super::super::bundle::bundle(
                    dir.path(),
                    &format!("{}-{}", kept.id, kept.episode),
                    &Writer::default(),
                    String::new(),
                    &mut packed,
                )
                .unwrap();
                let (again, summary) = replayed(&packed);
                let again = String::from_utf8(again).unwrap();
                assert!(said.ends_with(&again), "{} from {number}:\n{again}", path.display());
                assert_eq!((summary.skipped, summary.gaps.len(), summary.cut.len()), (0, 0, 0));
                if number > 0 {
                    let of_it =
                        |kind: &str| again.lines().any(|line| line.contains(kind) && line.contains(&kept.id));
                    opened += usize::from(of_it("incident.opened"));
                    went_on += usize::from(of_it("incident.closed") && !of_it("incident.opened"));
                }
                fs::remove_file(segment).unwrap();
            }
        }
    }
    assert!(opened > 0 && went_on > 0, "{opened} {went_on}");
}
