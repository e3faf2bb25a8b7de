//! Objects beside each other, in the running kernel.

use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

use kevtmon_ebpf::lanes::Rate;
use kevtmon_observation::NsInum;
use kevtmon_types::error_chain::chain;
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::hooks::HookChoices;
use crate::objects::CORE;

static SECOND: Object = Object { name: "second", bytes: crate::objects::programs };
static BROKEN: Object = Object { name: "broken", bytes: || b"not an ELF file" };

const CONFIG: BpfConfig = BpfConfig {
    ring_bytes: 64 << 10,
    user_rate: Rate::new(10, 100),
    source_rate: Rate::new(2000, 4096),
    hooks: HookChoices::AUTO,
    iterators: true,
    log: false,
    withheld: None,
};

/// Loads these objects; `None` where this process or this build cannot.
fn objects(wanted: &[&'static Object]) -> Option<Objects> {
    match Objects::load(&CONFIG, wanted) {
        Ok(objects) => Some(objects),
        Err(error) if !nix::unistd::geteuid().is_root() || (CORE.bytes)().is_empty() => {
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
fn a_attach_mode_with_a_program_that_is_refused_attaches_none() {
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
fn a_program_that_can_be_done_without_is_told_where_it_is_refused() {
    let Some(mut objects) = objects(&[&CORE]) else { return };
    let good = Program { object: &CORE, name: "neigh_update", attach: Attach::BtfTracepoint("neigh_update") };
    let extra = Program { object: &CORE, name: "path_umount", attach: Attach::Function("no_such_function") };
    let lacks =
        objects.attach(HOOKS[0], &[good, extra]).expect("the others are attached").expect("it lacks one");
    assert!(lacks.starts_with("without path_umount: "), "{lacks}");
}

#[test]
fn what_the_configuration_switches_off_is_not_loaded() {
    let mut hooks = HookChoices::AUTO;
    HOOKS.iter().for_each(|hook| hooks.set(hook, super::super::hooks::Choice::Off));
    let loaded = load(&BpfConfig { hooks, iterators: false, ..CONFIG });
    assert!(loaded.programs.is_none() && loaded.failure.is_none());
    assert!(loaded.statuses.iter().all(|status| status.reason().as_deref() == Some("switched off")));
}

#[test]
fn what_is_withheld_is_not_loaded_and_attach_modes_without_programs_remain() {
    let loaded = load(&BpfConfig { withheld: Some("not now"), ..CONFIG });
    assert!(loaded.programs.is_none() && loaded.failure.is_none());
    assert_eq!(loaded.iterators.err().as_deref(), Some("not now"));
    for status in &loaded.statuses {
        assert_eq!(status.reason().as_deref(), Some("not now"));
        let attach_mode = status.attach_mode.map(|attach_mode| attach_mode.name);
        assert_eq!(
            attach_mode,
            (status.hook.name == "neighbor").then_some("netlink"),
            "{}",
            status.hook.name
        );
    }
}

#[test]
fn a_system_call_whose_context_is_elsewhere_is_not_traced() {
    let Some(mut objects) = objects(&[&CORE]) else { return };
    let mut elsewhere = Expected::WITHOUT_TYPES;
    elsewhere.layout.arguments += 8;
    objects.syscalls = Ok(elsewhere);
    let umount = HOOKS.iter().find(|hook| hook.name == "umount").unwrap();
    let status = HookStatus::select(umount, super::super::hooks::Choice::Auto, |programs| {
        objects.attach(umount, programs).map_err(|error| chain(&error))
    });
    assert!(status.attach_mode.is_none());
    let reason = status.reason().unwrap();
    assert!(reason.ends_with("has name of sys_enter_umount at byte 24, tracefs at byte 16"), "{reason}");
}

#[test]
fn without_types_only_programs_that_need_none_are_attached() {
    let Some(mut objects) = objects(&[&CORE]) else { return };
    let hidden = || io::Error::from(io::ErrorKind::NotFound);
    objects.types = Err(Arc::new(BpfError::NoBtf { path: BTF_PATH, source: hidden() }));
    let attach_modes = HOOKS.iter().map(|hook| {
        let status = HookStatus::select(hook, super::super::hooks::Choice::Auto, |programs| {
            objects.attach(hook, programs).map_err(|error| chain(&error))
        });
        (hook.name, status.attach_mode.map(|attach_mode| attach_mode.name), status.reason().unwrap())
    });
    for (hook, attach_mode, reason) in attach_modes {
        let expected = match hook {
            "umount" => Some("helpers"),
            "neighbor" => Some("netlink"),
            _ => None,
        };
        assert_eq!(attach_mode, expected, "{hook}");
        assert!(reason.contains(BTF_PATH), "{hook}: {reason}");
    }
}

#[test]
fn a_socket_that_stayed_in_another_network_namespace_is_listed() {
    let Some(mut objects) = objects(&[&CORE]) else { return };
    let iterators = match objects.iterators() {
        Ok(iterators) => iterators,
        Err(error) => return eprintln!("skipped: {}", chain(&error)),
    };
    let netns = || NsInum::try_from(std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino()).unwrap();
    // The socket stays where it was made, and its thread ends.
    let made = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        (UdpSocket::bind("0.0.0.0:0").unwrap(), netns())
    });
    let here = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (there, elsewhere) = made.join().unwrap();
    let listed = iterators.handle().open().unwrap().sockets_elsewhere(netns()).unwrap();
    let of = |socket: &UdpSocket| {
        let fd = u32::try_from(socket.as_raw_fd()).unwrap();
        let own = listed.iter().find(|listed| (listed.tgid, listed.fd) == (std::process::id(), fd));
        own.map(|listed| listed.netns)
    };
    assert_eq!((of(&there), of(&here)), (Some(elsewhere), None));
}
