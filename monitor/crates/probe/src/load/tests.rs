//! The programs in the running kernel.

use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

use kevtmon_ebpf::lanes::Rate;
use kevtmon_observation::NsInum;
use kevtmon_types::error_chain::chain;
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::hooks::HookChoices;

const CONFIG: BpfConfig = BpfConfig {
    ring_bytes: 64 << 10,
    user_rate: Rate::new(10, 100),
    source_rate: Rate::new(2000, 4096),
    hooks: HookChoices::AUTO,
    iterators: true,
    types: None,
    log: false,
    withheld: None,
};

/// Loads the object; `None` where this process or this build cannot.
fn object() -> Option<Object> {
    match Object::load(&CONFIG) {
        Ok(object) => Some(object),
        Err(error) if !nix::unistd::geteuid().is_root() || programs().is_empty() => {
            eprintln!("skipped: {}", chain(&error));
            None
        }
        Err(error) => panic!("{}", chain(&error)),
    }
}

#[test]
fn a_attach_mode_with_a_program_that_is_refused_attaches_none() {
    let Some(mut object) = object() else { return };
    let good = Program { name: "neigh_update", attach: Attach::BtfTracepoint("neigh_update") };
    let bad = Program { name: "neigh_timer_handler", attach: Attach::BtfTracepoint("no_such") };
    let refused = object.attach(HOOKS[0], &[good, bad]).unwrap_err();
    assert!(refused.to_string().contains("neigh_timer_handler"), "{refused}");
    let good = Program { name: "neigh_update", attach: Attach::BtfTracepoint("neigh_update") };
    object.attach(HOOKS[0], &[good]).expect("it was unloaded and can be loaded again");
}

#[test]
fn a_program_that_can_be_done_without_is_told_where_it_is_refused() {
    let Some(mut object) = object() else { return };
    let good = Program { name: "neigh_update", attach: Attach::BtfTracepoint("neigh_update") };
    let extra = Program { name: "path_umount", attach: Attach::Function("no_such_function") };
    let kprobe = Program { name: "kp_path_umount", attach: Attach::Kprobe("no_such_function") };
    let lacks = object.attach(HOOKS[0], &[good, extra, kprobe]).expect("the others are attached");
    let lacks = lacks.expect("it lacks one");
    assert!(lacks.starts_with("without path_umount: ") && lacks.contains(", kp_path_umount: "), "{lacks}");
}

#[test]
fn a_kprobe_takes_the_place_of_a_program_that_is_refused() {
    let Some(mut object) = object() else { return };
    let refused = Program { name: "no_such_program", attach: Attach::Function("path_umount") };
    let kprobe = Program { name: "kp_path_umount", attach: Attach::Kprobe("path_umount") };
    let lacks = object.attach(HOOKS[0], &[refused, kprobe]).expect("it needs neither");
    assert_eq!(lacks.is_none(), Path::new("/sys/bus/event_source/devices/kprobe").exists(), "{lacks:?}");
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
    let Some(mut object) = object() else { return };
    let mut elsewhere = Expected::WITHOUT_TYPES;
    elsewhere.layout.arguments += 8;
    object.syscalls = Ok(elsewhere);
    let umount = HOOKS.iter().find(|hook| hook.name == "umount").unwrap();
    let status = HookStatus::select(umount, super::super::hooks::Choice::Auto, |programs| {
        object.attach(umount, programs).map_err(|error| chain(&error))
    });
    assert!(status.attach_mode.is_none());
    let reason = status.reason().unwrap();
    assert!(reason.ends_with("has name of sys_enter_umount at byte 24, tracefs at byte 16"), "{reason}");
}

#[test]
fn without_types_only_programs_that_need_none_are_attached() {
    let Some(mut object) = object() else { return };
    let hidden = || io::Error::from(io::ErrorKind::NotFound);
    object.types = Err(Arc::new(BpfError::NoBtf { path: BTF_PATH, source: hidden() }));
    let attach_modes = HOOKS.iter().map(|hook| {
        let status = HookStatus::select(hook, super::super::hooks::Choice::Auto, |programs| {
            object.attach(hook, programs).map_err(|error| chain(&error))
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
fn types_in_a_file_that_is_called_after_another_kernel_are_not_read() {
    let of = |name: &str| types_of_file(&Path::new("/nowhere").join(name)).unwrap_err().to_string();
    assert!(of("5.10.btf").contains("/nowhere/5.10.btf is not called "), "{}", of("5.10.btf"));
    let own = of(&format!("{}.btf", KernelFacts::read().release));
    assert!(own.ends_with(".btf cannot be read"), "{own}");
}

#[test]
fn a_socket_that_stayed_in_another_network_namespace_is_listed() {
    let Some(mut object) = object() else { return };
    let iterators = match object.iterators() {
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
