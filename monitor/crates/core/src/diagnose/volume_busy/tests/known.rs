//! Scans that fail, after others that did not.

use kevtmon_event::Confidence;

use super::*;

type Scan = fn(u64, &str) -> HolderReport;

fn skipped(id: u64, path: &str) -> HolderReport {
    HolderReport::skipped(id, path)
}

/// Time ran out before anybody was found.
fn cut(id: u64, path: &str) -> HolderReport {
    let found = holders(id, path);
    let mut report = HolderReport { holders: Vec::new(), verdict: Verdict::Incomplete, ..found };
    report.blind_spot(None, "the time for one scan ran out");
    report
}

/// A process may not be read, and time did not run out.
fn blind(id: u64, path: &str) -> HolderReport {
    let mut report = holders(id, path);
    report.blind_spot(Some((7, None)), "it may not be read");
    report
}

fn holds(event: &Event) -> Vec<u32> {
    event.holders.iter().flatten().map(|holder| holder.pid).collect()
}

const HELD: &str = "held by glusterfs (pid 94549) with an open file, which serves a volume of pod \
                    cam/web-fddf96444-stxpf";

#[test]
fn a_scan_that_was_cut_or_skipped_makes_the_incident_less_certain() {
    let whole = |id, path: &str| {
        let mut report = holders(id, path);
        report.blind_spot(None, "the time for one scan ran out");
        report
    };
    let scans: [(Scan, _); 6] = [
        (holders, Confidence::Certain),
        (blind, Confidence::Certain),
        (whole, Confidence::Likely),
        (cut, Confidence::Likely),
        (skipped, Confidence::Likely),
        (not_a_mount, Confidence::Likely),
    ];
    for (scan, expected) in scans {
        let mut node = terminating();
        node.scan = scan;
        node.observe(umount(Some(16)));
        assert_eq!(node.open()[0].confidence, expected, "{}", node.open()[0].summary);
    }
}

#[test]
fn what_a_scan_finds_later_updates_the_incident_and_makes_it_certain() {
    let mut node = terminating();
    node.scan = |id, path| HolderReport { goes_on: true, ..cut(id, path) };
    node.observe(umount(Some(16)));
    let mut asked = node.requests.iter();
    let found = asked.find_map(|request| match request {
        Request::Holders { id, path, .. } => Some(holders(*id, path)),
        _ => None,
    });
    let found = found.expect("a scan is asked for");
    node.run_for(5 * S);
    let last = node.open()[0].last_seen.clone();
    node.observe(Fact::Holders(Box::new(found)));
    let updated = node.last_incident();
    assert_eq!(updated.kind, Kind::IncidentUpdated);
    assert!(updated.message.contains(HELD), "{}", updated.message);
    assert_eq!(holds(updated), [94_549]);
    let incident = updated.incident.as_ref().unwrap();
    assert_eq!((incident.confidence, incident.count), (Confidence::Certain, 1));
    assert_eq!(incident.last_seen, last, "nobody tried again");
}

#[test]
fn what_is_known_stays_when_a_later_scan_fails_and_after_a_restart() {
    for scan in [skipped as Scan, not_a_mount, cut] {
        let node = busy();
        let mut next = TestNode::booted(node.resume_state());
        next.start(Vec::new());
        next.observe(task(30_001, "/bin/umount"));
        // The clock of the boot runs on.
        next.run_until(702 * S);
        for mut node in [node, next] {
            node.run_for(20 * S);
            node.scan = scan;
            node.observe(umount(Some(16)));
            node.observe(umount(Some(16)));
            let incident = node.open().remove(0);
            assert_eq!(incident.confidence, Confidence::Certain, "it was seen");
            let told = format!("; at 20:11:41 UTC {HELD}");
            assert!(incident.summary.ends_with(&told), "{}", incident.summary);
            assert!(incident.advice.iter().any(|step| step.command == "kill 94549"), "{incident:?}");
            let updated = node.last_incident();
            assert_eq!((updated.kind, holds(updated)), (Kind::IncidentUpdated, vec![94_549]));
            assert_eq!(updated.holders_verdict, Some(Verdict::Processes));
            assert!(updated.holders_age_ms >= Some(20_000), "{updated:?}");
            assert_eq!(updated.holders_complete, Some(false));
            assert!(!updated.holders_unreadable.is_empty(), "it says what failed");
            assert!(updated.mount.as_ref().unwrap().identity.is_some());
            node.scan = holders;
            node.run_for(20 * S);
            node.observe(umount(Some(16)));
            node.observe(umount(Some(16)));
            let summary = &node.open()[0].summary;
            assert!(
                summary.contains(": at 20:12:") && summary.matches(" UTC held by glusterfs").count() == 1,
                "{summary}"
            );
        }
    }
}
