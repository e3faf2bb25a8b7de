//! The tenant of what is recorded.

use kevtmon_event::Priority;
use kevtmon_testing::facts;

use super::*;

#[test]
fn what_a_container_does_to_its_network_without_end_takes_no_place_of_what_others_do() {
    const OWN: NsInum = 1000;
    const SECONDS: u64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let mut live = Live::in_flight(dir.path());
    let container = ContainerFacts { netns: Some(OWN), ..facts::container(&"c".repeat(64)) };
    live.observe(4, Fact::Container(Box::new(container)));
    for number in 0..SECONDS * 5000 {
        let at = SECOND + number * SECOND / 5000;
        live.observe(at, link(OWN, 3, if number % 2 == 0 { iff::UP } else { 0 }));
        live.observe(at, Fact::NetnsStale { netns: OWN, told: false });
        if number % 1000 == 0 {
            live.observe(at, busy(&format!("/mnt/{number}")));
        }
    }
    live.observe(100 * SECOND, Fact::Stop);
    assert_eq!(live.discarded("recorder", "queue-full"), 0, "all of everybody is discarded then");
    assert!(live.discarded("recorder", "over-budget") > SECONDS * 1000);
    live.finish();
    let recording = segments(&dir.path().join("recorder"));
    assert!(recording.len() < 4 << 20, "{}", recording.len());
    let text = String::from_utf8(recording).unwrap();
    let of_root = text.lines().filter(|line| line.contains(r#""fact":{"umount":"#)).count();
    assert_eq!(of_root as u64, SECONDS * 5);
}

#[test]
fn what_is_found_on_behalf_of_a_user_is_charged_to_him() {
    let mut live = Live::new();
    live.begin();
    let Fact::Task(facts) = task() else { unreachable!() };
    let cgroup = Some("/user.slice/user-1000.slice/session-3.scope".into());
    live.observe(4, Fact::Task(Box::new(TaskFacts { uid: 1000, cgroup, ..*facts })));
    let Fact::Umount(attempt) = busy("/mnt/x") else { unreachable!() };
    let context = Some(TaskContext { uid: 1000, ..TaskContext::default() });
    let actor = TaskRef { context, ..attempt.actor.clone() };
    live.core.observe(Observation {
        at: 5,
        source: Source::Daemon,
        fact: Fact::Umount(Box::new(UmountAttempt { actor, ..*attempt })),
    });
    let requested = live.core.take_output().find_map(|output| match output {
        Output::Request(Request::Holders { id, .. }) => Some(id),
        _ => None,
    });
    let fact = Fact::Holders(Box::new(HolderReport::skipped(requested.unwrap(), "/mnt/x")));
    let tenant = live.core.tenant_of(&Observation { at: 6, source: Source::Daemon, fact });
    assert_eq!((tenant.priority, &*tenant.name), (Priority::Foreign, "user-1000.slice"));
}
