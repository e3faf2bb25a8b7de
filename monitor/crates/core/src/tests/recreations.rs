//! Containers that are made instead of others.

use ContainerState::{Created, Exited, Running};
use kevtmon_event::{Recreation, RecreationReason};
use kevtmon_testing::schema::assert_valid;

use super::*;

const SECOND: u64 = 1_000 * MS;
const OLD_HASH: u64 = 1_559_107_639;
const NEW_HASH: u64 = 1_428_860_573;

/// An attempt of the container `etcd` of a pod.
fn etcd(attempt: u32, spec_hash: u64, state: ContainerState) -> ContainerFacts {
    let Fact::Container(facts) = container(state) else { unreachable!() };
    let pod = facts.pod.clone().map(|pod| PodIdentity { container_name: Some("etcd".into()), ..pod });
    ContainerFacts {
        id: attempt.to_string().repeat(64),
        pod,
        sandbox: false,
        exit: (state == Exited).then_some(ContainerExit { code: Some(137), oom_killed: None }),
        incarnation: Incarnation {
            attempt: Some(attempt),
            spec_hash: Some(spec_hash),
            image_id: Some("sha256:0".into()),
            created_s: Some(100 + i64::from(attempt)),
            error: None,
        },
        ..*facts
    }
}

fn claimed(facts: ContainerFacts) -> ContainerFacts {
    ContainerFacts { pod: facts.pod.map(|pod| PodIdentity { proof: PodProof::Claimed, ..pod }), ..facts }
}

/// The recreations that these reports lead to, one after another.
fn recreations(reports: &[ContainerFacts]) -> Vec<Recreation> {
    let mut core = core();
    for (time, facts) in (1..).zip(reports) {
        core.observe(at(time * SECOND, Fact::Container(Box::new(facts.clone()))));
    }
    of(&mut core).into_iter().map(|event| *event.recreation.unwrap()).collect()
}

fn of(core: &mut Core) -> Vec<Event> {
    let all = events(core).into_iter().filter(|event| event.kind == Kind::ContainerRecreated);
    all.inspect(assert_valid).collect()
}

#[test]
fn a_container_of_another_hash_was_made_anew_once_it_runs() {
    let found = recreations(&[
        etcd(0, OLD_HASH, Running),
        etcd(0, OLD_HASH, Exited),
        etcd(1, NEW_HASH, Created),
        etcd(1, NEW_HASH, Running),
        etcd(1, NEW_HASH, Exited),
        etcd(1, NEW_HASH, Running),
    ]);
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!(found.reason, RecreationReason::SpecHashChanged);
    assert_eq!((found.previous_attempt, found.attempt), (Some(0), Some(1)));
    let hash = found.previous_spec_hash.as_ref().unwrap();
    assert_eq!((hash.hex.as_str(), hash.decimal.as_str()), ("5cee1837", "1559107639"));
    assert_eq!((found.same_sandbox, found.previous.exit_code), (Some(true), Some(137)));
}

#[test]
fn the_reason_is_what_differs_between_the_two() {
    let with = |change: fn(&mut ContainerFacts)| {
        let mut new = etcd(1, OLD_HASH, Running);
        change(&mut new);
        let found = recreations(&[etcd(0, OLD_HASH, Exited), new]);
        found.first().map(|found| found.reason)
    };
    assert_eq!(with(|_| {}), Some(RecreationReason::Exited));
    assert_eq!(
        with(|new| new.incarnation.spec_hash = Some(NEW_HASH)),
        Some(RecreationReason::SpecHashChanged)
    );
    let other_image: fn(&mut ContainerFacts) = |new| {
        new.incarnation.spec_hash = Some(NEW_HASH);
        new.incarnation.image_id = Some("sha256:1".into());
    };
    assert_eq!(with(other_image), Some(RecreationReason::ImageChanged));
    assert_eq!(with(|new| new.incarnation.spec_hash = None), Some(RecreationReason::Unknown));
    assert_eq!(with(|new| new.incarnation.attempt = Some(0)), Some(RecreationReason::Exited));
    assert_eq!(with(|new| new.pod.as_mut().unwrap().uid = "other".into()), None, "another pod");
    assert_eq!(with(|new| new.sandbox = true), None, "a sandbox");
}

#[test]
fn a_claim_speaks_of_claims_only() {
    assert_eq!(recreations(&[etcd(0, OLD_HASH, Exited), claimed(etcd(1, NEW_HASH, Running))]), []);
    let mut core = core();
    for facts in [claimed(etcd(0, OLD_HASH, Exited)), claimed(etcd(1, NEW_HASH, Running))] {
        core.observe(at(SECOND, Fact::Container(Box::new(facts))));
    }
    let event = of(&mut core).pop().unwrap();
    assert!(event.target.as_ref().unwrap().is_claimed());
    assert!(event.message.contains("(claims to be pod lijiaob/etcd1-0) was re-created"), "{}", event.message);
}

#[test]
fn what_confirms_the_pod_may_come_after_the_start() {
    let new = etcd(1, NEW_HASH, Running);
    assert_eq!(recreations(&[etcd(0, OLD_HASH, Exited), claimed(new.clone()), new]).len(), 1);
}

#[test]
fn ended_containers_tell_of_it_after_the_fact() {
    let snapshot = |core: &mut Core, time| {
        let containers = vec![etcd(0, OLD_HASH, Exited), etcd(1, NEW_HASH, Running)];
        let fact = Fact::RuntimeSnapshot {
            runtime: "docker".into(),
            source: "docker".into(),
            read: Some(time),
            containers,
        };
        core.observe(at(time, fact));
    };
    let mut first = core();
    snapshot(&mut first, 500 * SECOND);
    let event = of(&mut first).pop().unwrap();
    assert!(event.recreation.as_ref().unwrap().found_at_start);
    assert_eq!(event.at, 101 * SECOND, "when it was created");
    assert!(event.message.contains("was re-created before the daemon started"), "{}", event.message);
    snapshot(&mut first, 560 * SECOND);
    assert_eq!(of(&mut first), [], "once");
    for (last_alive, expected) in [(100, 1), (200, 0)] {
        let mut next = core();
        next.observe(at(400 * SECOND, Fact::Restarted { last_alive: last_alive * SECOND }));
        snapshot(&mut next, 500 * SECOND);
        assert_eq!(of(&mut next).len(), expected, "what an earlier run has told is told once");
    }
}

#[test]
fn a_second_socket_with_the_same_containers_tells_nothing_again() {
    let mut core = core();
    for (time, source) in [(500, "docker:/a"), (501, "docker:/b")] {
        let of_source = |facts| ContainerFacts { source: source.into(), ..facts };
        let containers =
            [etcd(0, OLD_HASH, Exited), etcd(1, NEW_HASH, Running)].map(of_source).into_iter().collect();
        let (runtime, source) = ("docker".to_owned(), source.to_owned());
        core.observe(at(time * SECOND, Fact::RuntimeSnapshot { runtime, source, read: None, containers }));
    }
    assert_eq!(of(&mut core).len(), 1);
}
