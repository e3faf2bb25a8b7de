//! Requests in, answers out: of an empty /proc, or with no thread at all.

use kevtmon_observation::{DetachedMount, MeantMount, MountIdentity, Observation, Verdict};
use kevtmon_sources::procfs::Proc;
use kevtmon_testing::patience::until;
use tokio::sync::mpsc::Receiver;

use super::rest::HASTE_FACTOR;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn request(id: u64) -> ScanRequest {
    let (path, origin) = ("/vol".to_owned(), None);
    ScanRequest { id, mntns: 1, tgid: 1, path, origin, follow: true, ..ScanRequest::default() }
}

fn presence(id: u64) -> PresenceRequest {
    let identity = MountIdentity {
        unique: None,
        mount_id: 2,
        parent_id: 1,
        device: "0:9".to_owned(),
        root: "/".to_owned(),
        mount_point: "/vol".to_owned(),
    };
    PresenceRequest { id, mntns: 1, tgid: 1, identity, at: None }
}

fn share(rank: Rank) -> Share {
    Share { rank, account: "x".to_owned() }
}

fn host() -> Share {
    share(Rank::Host)
}

fn idle(queue: usize) -> Scanner {
    Scanner { shared: Arc::default(), queue }
}

/// Scans of an empty /proc.
fn start(limits: Limits) -> (tempfile::TempDir, Scanner, Receiver<Observation>) {
    let root = tempfile::tempdir().unwrap();
    let (tx, rx) = tokio::sync::mpsc::channel(8);
    let scanner = spawn(Proc::new(root.path()).into(), tx, limits).unwrap();
    (root, scanner, rx)
}

fn holders(fact: Fact) -> HolderReport {
    match fact {
        Fact::Holders(report) => *report,
        other => panic!("{other:?}"),
    }
}

fn id(work: &Work) -> u64 {
    match work {
        Work::Locate(scan) | Work::Scan(scan) => scan.request.id,
        Work::Presence(request) => request.id,
        Work::StillHeld(request) => request.id,
        Work::Detached(look) => look.request.id,
    }
}

/// What is done at once while it rests like this.
fn all(scanner: &Scanner, rest: Rest) -> Vec<u64> {
    let now = Instant::now();
    let mut state = scanner.shared.lock();
    state.rest = rest;
    let next = || state.next(ScanThread::Host, now).or_else(|| state.next(ScanThread::Others, now));
    std::iter::from_fn(next).map(|(_, work)| id(&work)).collect()
}

#[tokio::test]
async fn each_request_is_answered_in_turn() {
    let (_root, scanner, mut rx) = start(Limits::default());
    for id in [3, 4] {
        assert_eq!(scanner.request(request(id), host()), None);
    }
    for id in [3, 4] {
        let report = holders(rx.recv().await.unwrap().fact);
        assert_eq!((report.id, report.path.as_str(), report.verdict), (id, "/vol", Verdict::Incomplete));
    }
}

#[test]
fn whether_a_mount_is_there_is_answered_before_any_scan() {
    let scanner = idle(1);
    assert_eq!(scanner.request(request(1), host()), None);
    assert_eq!(scanner.presence(presence(2), host()), None);
    let later = Instant::now() + HOUR;
    assert_eq!(all(&scanner, Rest { host: later, begin: later, go_on: later, all: later }), [2]);
    assert_eq!(all(&scanner, Rest::new(Instant::now())), [1]);
}

#[test]
fn what_was_done_for_strangers_delays_no_scan_of_the_host() {
    let scanner = idle(2);
    for (id, share) in [(1, host()), (2, share(Rank::Other))] {
        assert_eq!(scanner.request(request(id), share.clone()), None);
        assert_eq!(scanner.presence(presence(10 + id), share), None);
    }
    let now = Instant::now();
    let mut rest = Rest::new(now);
    let limits = Limits { max_rest: HOUR, max_wait: HOUR, ..Limits::default() };
    rest.add(Rank::Other, HOUR, &limits, now);
    assert_eq!(all(&scanner, rest), [11, 1]);
    let mut rest = Rest::new(now);
    rest.add(Rank::Host, HOUR, &limits, now);
    assert_eq!(all(&scanner, rest), [0; 0], "the host delays all");
    assert_eq!(all(&scanner, Rest::new(now)), [12, 2]);
}

#[test]
fn neither_thread_does_what_is_for_the_other_one() {
    let scanner = idle(4);
    assert_eq!(scanner.request(request(1), share(Rank::Other)), None);
    let now = Instant::now();
    let next = |thread| scanner.shared.lock().next(thread, now).map(|(_, work)| id(&work));
    assert_eq!(next(ScanThread::Host), None);
    assert_eq!(scanner.request(request(2), share(Rank::Volume)), None);
    assert_eq!(next(ScanThread::Host), Some(2), "the other one may be at work on 1");
    assert_eq!(next(ScanThread::Others), Some(1));
}

#[test]
fn what_is_left_of_a_long_scan_of_the_host_delays_no_other_one_for_long() {
    let scanner = idle(2);
    assert_eq!(scanner.request(request(1), host()), None);
    let now = Instant::now();
    let begun = Scan { begun: Some(now), ..request(2).into() };
    assert_eq!(scanner.queue(Work::Scan(Box::new(begun)), host()), None);
    let limits = Limits { max_wait: Duration::ZERO, ..Limits::default() };
    let mut rest = Rest::new(now);
    let budget = |rest: Rest, kind| rest.budget(Rank::Host, kind, &limits, now);
    assert_eq!(budget(rest, Kind::Scan), limits.budget);
    rest.add(Rank::Host, limits.budget, &limits, now);
    rest.go_on = now + HOUR;
    assert_eq!(all(&scanner, rest), [1]);
    assert_eq!(budget(rest, Kind::Scan), limits.budget / HASTE_FACTOR);
    assert_eq!(budget(rest, Kind::Continuation), limits.budget);
    assert_eq!(all(&scanner, Rest::new(now)), [2]);
}

#[test]
fn scans_that_begin_do_not_prolong_the_rest_of_one_that_waits_to_go_on() {
    let scanner = idle(8);
    let limits = Limits { max_rest: HOUR, ..Limits::default() };
    let done = |kind, leaves| {
        let mut state = scanner.shared.lock();
        state.rest_after((Rank::Host, kind), limits.budget, leaves, &limits);
        state.rest.go_on
    };
    let first = done(Kind::Scan, true);
    assert!(first > Instant::now());
    let begun = Scan { begun: Some(Instant::now()), ..request(2).into() };
    assert_eq!(scanner.queue(Work::Scan(Box::new(begun)), host()), None);
    assert_eq!([done(Kind::Scan, true), done(Kind::Scan, false)], [first; 2]);
    assert!(done(Kind::Continuation, true) > first, "another one has gone on");
}

#[test]
fn whoever_has_most_places_loses_one_and_hears_of_it() {
    let scanner = idle(2);
    for id in [1, 2] {
        assert_eq!(scanner.request(request(id), share(Rank::Other)), None);
    }
    let lost = holders(scanner.request(request(3), share(Rank::Volume)).unwrap());
    assert_eq!((lost.id, lost.verdict, lost.blind_spots.len()), (2, Verdict::Skipped, 1));
    assert_eq!(all(&scanner, Rest::new(Instant::now())), [3, 1]);
}

#[test]
fn as_many_scans_wait_as_a_node_has_volumes_and_what_is_left_of_fewer() {
    let scanner = idle(Limits::default().queue);
    for id in 1..=220 {
        assert_eq!(scanner.request(request(id), share(Rank::Volume)), None);
    }
    let begun = |id| Scan { begun: Some(Instant::now()), ..request(id).into() };
    let left = |id| scanner.queue(Work::Scan(Box::new(begun(id))), share(Rank::Volume));
    let lost: Vec<u64> = (1000..1040).filter_map(left).map(|lost| holders(lost).id).collect();
    assert_eq!(lost, (1032..1040).collect::<Vec<_>>());
    assert_eq!(all(&scanner, Rest::new(Instant::now())).len(), 252);
}

#[tokio::test]
async fn the_threads_end_when_the_scanner_is_dropped() {
    let (_root, scanner, mut rx) = start(Limits::default());
    drop(scanner);
    assert_eq!(rx.recv().await, None);
}

#[test]
fn the_end_interrupts_a_rest() {
    let scanner = idle(1);
    let shared = Arc::clone(&scanner.shared);
    let later = Instant::now() + HOUR;
    shared.lock().rest = Rest { host: later, begin: later, go_on: later, all: later };
    let worker = thread::spawn(move || shared.next(ScanThread::Host).is_none());
    assert_eq!(scanner.request(request(1), host()), None);
    drop(scanner);
    assert!(worker.join().unwrap());
}

#[tokio::test]
async fn when_nobody_reads_reports_requests_are_answered_by_themselves() {
    let (_root, scanner, rx) = start(Limits::default());
    drop(rx);
    assert_eq!(scanner.request(request(1), host()), None);
    // The thread notices when it answers; then it has ended for good.
    until("the scanner has ended", || scanner.shared.lock().ended).await;
    assert_eq!(holders(scanner.request(request(2), host()).unwrap()).verdict, Verdict::Skipped);
}

#[test]
fn scans_take_a_twentieth_of_a_core_within_bounds() {
    let longest = Duration::from_secs(10);
    assert_eq!(rest_after(Duration::from_millis(50), longest), Duration::from_millis(950));
    assert_eq!(rest_after(Duration::from_secs(2), longest), longest);
    assert_eq!(rest_after(Duration::MAX, longest), longest);
}

#[test]
fn a_scan_that_loses_its_place_keeps_the_mount_that_was_found() {
    let mount = kevtmon_testing::facts::mount(410);
    let located = HolderReport {
        mount: Some(mount.clone()),
        complete: true,
        verdict: Verdict::Incomplete,
        ..HolderReport::skipped(1, "/vol")
    };
    for (doubt, is_likely) in [(None, false), (Some(Uncertainty::Changed), true)] {
        let progress = Progress { found: Some(Box::new(located.clone())), ..Progress::default() };
        let scan = Scan { progress, doubt, ..request(1).into() };
        let report = holders(Work::Scan(Box::new(scan)).unanswered("no place"));
        assert_eq!((report.mount, report.mount_is_likely), (Some(mount.clone()), is_likely));
        assert_eq!((report.verdict, report.complete), (Verdict::Skipped, false));
        let reasons: Vec<&str> = report.blind_spots.iter().map(|spot| spot.reason.as_str()).collect();
        assert_eq!(
            reasons,
            doubt.map(Uncertainty::reason).into_iter().chain(["no place"]).collect::<Vec<_>>()
        );
    }
}

fn detached_request(id: u64) -> DetachedRequest {
    let meant = MeantMount { id: 900_002, unique: None };
    DetachedRequest::new(id, vec![DetachedMount { meant, path: "/vol".to_owned() }])
}

fn detached_users(fact: Fact) -> (u64, HolderReport) {
    match fact {
        Fact::DetachedUsers { id, mut reports } if reports.len() == 1 => (id, reports.remove(0)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_look_at_detached_mounts_goes_on_until_it_has_been_at_all() {
    let (budget, max_rest, max_wait) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let (root, scanner, mut rx) = start(Limits { budget, max_rest, max_wait, ..Limits::default() });
    for tgid in [11, 12] {
        std::fs::create_dir_all(root.path().join(format!("{tgid}/fd"))).unwrap();
    }
    assert_eq!(scanner.detached(detached_request(7), host()), None);
    let mut parts = 0;
    loop {
        let (id, report) = detached_users(rx.recv().await.unwrap().fact);
        assert_eq!((id, report.cut, report.complete), (7, report.goes_on, false));
        parts += 1;
        if !report.goes_on {
            break;
        }
    }
    assert_eq!(parts, 6, "one for each process, and each part of what is looked at");
}

#[test]
fn looks_at_detached_mounts_that_go_on_leave_scans_their_places() {
    let scanner = idle(Limits::default().queue);
    let mut told =
        HolderReport { goes_on: true, verdict: Verdict::Processes, ..HolderReport::skipped(0, "/vol") };
    told.cut();
    let begun = |id| Detached {
        begun: Some(Instant::now()),
        told: vec![told.clone()],
        ..detached_request(id).into()
    };
    let left = |id| scanner.queue(Work::Detached(Box::new(begun(id))), host());
    let lost: Vec<_> = (1..=5).filter_map(left).map(detached_users).collect();
    let [(5, report)] = &lost[..] else { panic!("{lost:?}") };
    assert_eq!((report.goes_on, report.cut, report.verdict), (false, true, Verdict::Incomplete));
    assert_eq!(report.blind_spots.len(), 2, "{report:?}");
    let now = Instant::now();
    let rest = Rest { go_on: now + HOUR, ..Rest::new(now) };
    assert_eq!(all(&scanner, rest), [0; 0], "they rest as scans do");
    assert_eq!(all(&scanner, Rest::new(now)), [1, 2, 3, 4]);
}
