//! Degradations of sources, and their ends.

use super::*;

#[test]
fn each_degradation_of_a_source_has_one_recovery_whatever_else_is_missing() {
    let (a, b) = ("docker:/run/a.sock", "docker:/run/b.sock");
    let mut core = core();
    core.settings.sources =
        BTreeMap::from([(a.to_owned(), false), (b.to_owned(), false), ("optional".to_owned(), true)]);
    for (time, source, up) in [(1, "optional", false), (2, a, false), (3, b, true)] {
        core.observe(at(time, status(source, up)));
    }
    let said = |core: &mut Core| {
        let events = events(core).into_iter();
        events.map(|event| format!("{} {}", event.kind.name(), event.message)).collect::<Vec<_>>()
    };
    assert_eq!(
        said(&mut core),
        [format!("daemon.ready ready without {a}"), format!("daemon.degraded {a} is down: gone")]
    );
    core.observe(at(4, status(b, false)));
    core.observe(at(5, status(b, false)));
    assert_eq!(said(&mut core), [format!("daemon.degraded {b} is down: gone")]);
    // The other one is still missing, and so the core may be restored from here.
    let saved = serde_json::to_string(&core.save().unwrap()).unwrap();
    let settings = core.settings().clone();
    let mut core = Core::restore(settings, serde_json::from_str(&saved).unwrap()).unwrap();
    core.observe(at(6, status(a, true)));
    core.observe(at(7, status("optional", true)));
    let events = events(&mut core);
    assert_eq!((events[0].kind, events[0].message.clone()), (Kind::DaemonRecovered, format!("{a} is back")));
    assert_eq!(events[0].daemon.as_ref().unwrap().degraded.keys().collect::<Vec<_>>(), [b, "optional"]);
    assert_eq!((events[1].kind, events[1].message.as_str()), (Kind::DaemonReady, "optional is up"));
    let lower = SourceStatus {
        attach_mode: Some("tracepoint".into()),
        reason: Some("no BTF".into()),
        ..SourceStatus::up(SourceKind::Hook, b)
    };
    core.observe(at(8, Fact::Source(lower)));
    core.observe(at(9, status(b, true)));
    assert_eq!(
        said(&mut core),
        [
            format!("daemon.degraded {b} is degraded to tracepoint: no BTF"),
            format!("daemon.recovered {b} is back")
        ]
    );
}

#[test]
fn that_the_clock_was_set_ends_after_as_long_a_time_even_in_a_core_that_was_restored() {
    const HOUR: u64 = 3_600_000 * MS;
    let mut core = core();
    let clock = |offset: u64| Fact::Clock { realtime_offset_ns: offset.cast_signed() };
    core.observe(at(1, clock(1_000 * HOUR)));
    for source in ["netlink", "docker"] {
        core.observe(at(2, status(source, true)));
    }
    let kinds = |core: &mut Core| events(core).iter().map(|event| event.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&mut core), [Kind::DaemonReady], "there was no clock before");
    core.observe(at(3, clock(999 * HOUR)));
    assert_eq!(kinds(&mut core), [Kind::DaemonDegraded]);
    let saved = serde_json::to_string(&core.save().unwrap()).unwrap();
    let settings = core.settings().clone();
    let mut restored = Core::restore(settings, serde_json::from_str(&saved).unwrap()).unwrap();
    assert_same(&restored, &core, "after the clock was set");
    restored.observe(at(2 + HOUR, Fact::Tick));
    assert_eq!(kinds(&mut restored), []);
    restored.observe(at(3 + HOUR, Fact::Tick));
    assert_eq!(kinds(&mut restored), [Kind::DaemonRecovered]);
}
