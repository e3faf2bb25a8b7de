//! Objects beside each other, in the running kernel.

use kevtmon_ebpf::lanes::Rate;

use super::*;
use crate::error_chain::chain;
use crate::sources::bpf::hooks::HookChoices;
use crate::sources::bpf::objects::CORE;

static SECOND: Object = Object { name: "second", bytes: CORE.bytes };
static BROKEN: Object = Object { name: "broken", bytes: b"not an ELF file" };

const CONFIG: BpfConfig = BpfConfig {
    ring_bytes: 64 << 10,
    user_rate: Rate::new(10, 100),
    source_rate: Rate::new(2000, 4096),
    hooks: HookChoices::AUTO,
    log: false,
};

/// Loads these objects; `None` where this process or this build cannot.
fn objects(wanted: &[&'static Object]) -> Option<Objects> {
    match Objects::load(&CONFIG, wanted) {
        Ok(objects) => Some(objects),
        Err(error) if !nix::unistd::geteuid().is_root() || CORE.bytes.is_empty() => {
            eprintln!("skipped: {}", chain(&error));
            None
        }
        Err(error) => panic!("{}", chain(&error)),
    }
}

fn map_id(objects: &Objects, object: usize, map: &str) -> u32 {
    let ebpf = objects.loaded[object].1.as_ref().unwrap();
    match ebpf.map(map).unwrap() {
        aya::maps::Map::RingBuf(data)
        | aya::maps::Map::Array(data)
        | aya::maps::Map::PerCpuArray(data)
        | aya::maps::Map::LruHashMap(data)
        | aya::maps::Map::HashMap(data) => data.info().unwrap().id(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_objects_share_the_ring_and_the_counters_and_nothing_else() {
    let Some(objects) = objects(&[&CORE, &SECOND]) else { return };
    for map in SHARED_MAPS {
        assert_eq!(map_id(&objects, 0, map), map_id(&objects, 1, map), "{map}");
    }
    assert_ne!(map_id(&objects, 0, "STARTED"), map_id(&objects, 1, "STARTED"));
}

#[test]
fn an_object_that_is_refused_leaves_the_others_alone() {
    let Some(mut objects) = objects(&[&BROKEN, &CORE]) else { return };
    for hook in HOOKS {
        for program in hook.programs() {
            assert!(objects.find(program).is_ok(), "{}", program.name);
        }
    }
    let program =
        Program { object: &BROKEN, name: "neigh_update", attach: Attach::BtfTracepoint("neigh_update") };
    let refused = objects.attach(HOOKS[0], &[program]).unwrap_err();
    assert!(matches!(&refused, AttachError::Object(_)), "{refused:?}");
    assert!(objects.into_source(false).is_ok());
}

#[test]
fn without_any_object_there_is_one_reason() {
    let Err(error) = Objects::load(&CONFIG, &[&BROKEN]) else { panic!("loaded") };
    assert!(!chain(&error).is_empty());
}

#[test]
fn a_rung_with_a_program_that_is_refused_attaches_none() {
    let Some(mut objects) = objects(&[&CORE]) else { return };
    let good = Program { object: &CORE, name: "neigh_update", attach: Attach::BtfTracepoint("neigh_update") };
    let bad =
        Program { object: &CORE, name: "neigh_timer_handler", attach: Attach::BtfTracepoint("no_such") };
    let refused = objects.attach(HOOKS[0], &[good, bad]).unwrap_err();
    assert!(refused.to_string().contains("neigh_timer_handler"), "{refused}");
    let good = Program { object: &CORE, name: "neigh_update", attach: Attach::BtfTracepoint("neigh_update") };
    objects.attach(HOOKS[0], &[good]).expect("it was unloaded and can be loaded again");
}

#[test]
fn what_the_configuration_switches_off_is_not_loaded() {
    let mut hooks = HookChoices::AUTO;
    HOOKS.iter().for_each(|hook| hooks.set(hook, super::super::hooks::Choice::Off));
    let loaded = load(&BpfConfig { hooks, ..CONFIG });
    assert!(loaded.programs.is_none() && loaded.failure.is_none());
    assert!(loaded.statuses.iter().all(|status| status.reason().as_deref() == Some("switched off")));
}
