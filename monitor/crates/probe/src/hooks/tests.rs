//! The table as a whole, the values of `[hooks]`, and the attach mode that is selected.

use std::collections::BTreeSet;

use kevtmon_observation::Loss;
use kevtmon_types::settings::{Description as _, Values};

use super::*;
use crate::{iterators, object, syscall_context, task};

/// Panics when two are the same.
fn assert_unique<T: Ord + std::fmt::Debug>(all: impl IntoIterator<Item = T>) {
    let mut seen = BTreeSet::new();
    for one in all {
        assert!(!seen.contains(&one), "{one:?} twice");
        seen.insert(one);
    }
    assert!(!seen.is_empty());
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[test]
fn every_name_in_the_table_is_unique() {
    assert_unique(HOOKS.iter().map(|hook| hook.name));
    assert!(HOOKS.iter().all(|hook| is_name(hook.name) && hook.name != "ring_kib"));
    for hook in HOOKS {
        assert!(hook.attach_modes.iter().all(|attach_mode| is_name(attach_mode.name)), "{}", hook.name);
        assert!(!hook.observes.is_empty() && !hook.without.is_empty(), "{}", hook.name);
        for (index, attach_mode) in hook.attach_modes.iter().enumerate() {
            assert_eq!(attach_mode.lost.is_some(), index > 0, "{} {}", hook.name, attach_mode.name);
        }
        // With `auto` and `off`, which no attach mode may be called.
        assert_unique(hook.choices());
    }
    assert_unique(HOOKS.iter().flat_map(|hook| hook.programs()).map(|program| program.name));
    assert_unique(
        HOOKS
            .iter()
            .filter_map(|hook| hook.offsets)
            .chain([task::OFFSETS, syscall_context::OFFSETS, iterators::OFFSETS])
            .map(|it| it.global),
    );
}

#[test]
fn every_record_and_counter_belongs_to_one_hook() {
    assert_unique(records().flat_map(|records| records.kinds).map(|(kind, _)| kind));
    let counts = || records().flat_map(|records| records.counts);
    let losses = || records().flat_map(|records| records.losses);
    assert_unique(counts().map(|count| count.counter).chain(losses().map(|loss| loss.counter)));
    assert_unique(counts().map(|count| (format!("{:?}", count.metric), count.labels)));
    assert_unique(losses().map(|loss| loss.reason));
    let of_users = losses().filter(|loss| loss.reason.ends_with(Loss::OF_USERS)).count();
    assert_eq!(of_users, 4, "of neighbors, unmounts, removals and tasks");
    for hook in HOOKS {
        let counts_with_links = hook.name == "sysctl";
        assert!(!hook.records.kinds.is_empty(), "{}", hook.name);
        assert_eq!(hook.records.losses.is_empty(), counts_with_links, "{}", hook.name);
    }
}

#[test]
fn a_call_whose_return_is_looked_at_is_seen_to_begin() {
    for hook in HOOKS {
        let called = |at: &str| -> BTreeSet<String> {
            let events = hook.programs().flat_map(|program| program.attach.syscall_events());
            events.filter_map(|event| event.strip_prefix(at).map(str::to_owned)).collect()
        };
        assert_eq!(called("sys_enter_"), called("sys_exit_"), "{}", hook.name);
        let counts = |metric| -> BTreeSet<&[&str]> {
            hook.records.counts.iter().filter(|it| it.metric == metric).map(|it| it.labels).collect()
        };
        assert_eq!(counts(KernelMetric::MountBusy), counts(KernelMetric::MountUnproven), "{}", hook.name);
    }
}

#[test]
fn every_program_of_the_table_is_in_the_object() {
    if object::programs().is_empty() {
        eprintln!("skipped: built without kernel programs");
        return;
    }
    for program in HOOKS.iter().flat_map(|hook| hook.programs()) {
        let named = |name: &str| object::programs().windows(name.len()).any(|bytes| bytes == name.as_bytes());
        assert!(named(&format!("\0{}\0", program.name)), "{}", program.name);
    }
    let globals = HOOKS.iter().filter_map(|hook| hook.offsets).chain([
        task::OFFSETS,
        syscall_context::OFFSETS,
        iterators::OFFSETS,
    ]);
    for global in globals.map(|offsets| format!("\0{}\0", offsets.global)) {
        let mut bytes = object::programs().windows(global.len());
        assert!(bytes.any(|bytes| bytes == global.as_bytes()), "{global}");
    }
}

#[test]
fn the_running_kernel_has_all_that_the_programs_read() {
    let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        eprintln!("skipped: this kernel has no BTF");
        return;
    };
    let btf = Btf::parse(&bytes).unwrap();
    for offsets in HOOKS.iter().filter_map(|hook| hook.offsets).chain([
        task::OFFSETS,
        syscall_context::OFFSETS,
        iterators::OFFSETS,
    ]) {
        let resolved = (offsets.resolve)(&btf).unwrap();
        assert!(resolved.iter().any(|byte| *byte != 0), "{}", offsets.global);
    }
}

#[test]
fn a_choice_is_auto_a_attach_mode_or_off() {
    assert_eq!(TWO.choice("auto"), Some(Choice::Auto));
    assert_eq!(TWO.choice("off"), Some(Choice::Off));
    assert_eq!(TWO.choice("slow"), Some(Choice::AttachMode("slow")));
    for hook in HOOKS {
        for name in hook.choices() {
            assert_eq!(hook.choice(name).unwrap().name(), name);
        }
    }
    assert!(TWO.choice("Auto").is_none() && TWO.choice("").is_none());
    let error = TWO.parse("kprobe".into()).unwrap_err();
    assert_eq!(error, r#""kprobe" is not valid: expected one of auto, fast, slow, netlink, off"#);
}

#[test]
fn what_is_not_chosen_is_auto() {
    let mut values = Values::default();
    let choices = HookChoices::from_values(&values);
    assert!(HOOKS.iter().all(|hook| choices.of(hook) == Choice::Auto));
    values.store(HOOKS[0], HOOKS[0].parse("off".into()).unwrap());
    let choices = HookChoices::from_values(&values);
    assert_eq!(choices.of(HOOKS[0]), Choice::Off);
    assert!(HOOKS[1..].iter().all(|hook| choices.of(hook) == Choice::Auto));
    assert_eq!(values.stored(HOOKS[0]).to_toml(), "off".into());
}

/// Two attach modes of programs above one that always works.
const TWO: Hook = Hook {
    name: "two",
    observes: "things",
    without: "nothing is known of things",
    attach_modes: &[
        AttachMode { name: "fast", note: None, lost: None, mechanism: Mechanism::Programs(&[tp_btf("a")]) },
        AttachMode {
            name: "slow",
            note: None,
            lost: Some("the second thing"),
            mechanism: Mechanism::Programs(&[tp_btf("b"), tp_btf("c")]),
        },
        AttachMode {
            name: "netlink",
            note: Some("no actor"),
            lost: Some("who did the thing"),
            mechanism: Mechanism::NeighborMessages,
        },
    ],
    offsets: None,
    records: Records { kinds: &[], counts: &[], losses: &[] },
    skipped: "two-run-skipped",
};

/// The same without the last.
const PROGRAMS_ONLY: Hook =
    Hook { name: "programs_only", attach_modes: TWO.attach_modes.split_at(2).0, ..TWO };

/// What is tried on a kernel that refuses these programs, and the result.
fn select(hook: &'static Hook, choice: Choice, refused: &[(&str, &str)]) -> (Vec<&'static str>, HookStatus) {
    let mut tried = Vec::new();
    let status = HookStatus::select(hook, choice, |programs| {
        tried.push(programs[0].name);
        match refused.iter().find(|(name, _)| *name == programs[0].name) {
            Some((_, reason)) => Err((*reason).to_owned()),
            None => Ok(None),
        }
    });
    (tried, status)
}

fn attach_mode(status: &HookStatus) -> Option<&str> {
    status.attach_mode.map(|attach_mode| attach_mode.name)
}

#[test]
fn the_best_attach_mode_that_works_is_taken_and_no_other_tried() {
    let (tried, status) = select(&TWO, Choice::Auto, &[]);
    assert_eq!((tried, attach_mode(&status), status.reason()), (vec!["a"], Some("fast"), None));
    let (tried, status) = select(&TWO, Choice::Auto, &[("a", "no fentry")]);
    assert_eq!((tried, attach_mode(&status)), (vec!["a", "b"], Some("slow")));
    assert_eq!(status.reason().as_deref(), Some("no fentry"));
}

#[test]
fn every_refused_attach_mode_has_its_reason() {
    let (_, status) = select(&TWO, Choice::Auto, &[("a", "no fentry"), ("b", "no tracefs")]);
    assert_eq!(attach_mode(&status), Some("netlink"));
    assert_eq!(status.reason().as_deref(), Some("fast: no fentry; slow: no tracefs"));
    assert!(status.needs_neighbor_messages() && status.lacks_programs());

    let (_, status) = select(&PROGRAMS_ONLY, Choice::Auto, &[("a", "no BTF"), ("b", "no BTF")]);
    let shown = status.source_status();
    assert_eq!((shown.source.as_str(), shown.up, shown.attach_mode), ("hook.programs_only", false, None));
    assert_eq!(shown.reason.as_deref(), Some("no BTF"), "the same reason is given once");
}

#[test]
fn a_chosen_attach_mode_is_tried_first_and_those_below_it_next() {
    let (tried, status) = select(&TWO, Choice::AttachMode("slow"), &[("b", "no tracefs")]);
    assert_eq!((tried, attach_mode(&status)), (vec!["b"], Some("netlink")));
    assert_eq!(status.reason().as_deref(), Some("fast: switched off; slow: no tracefs"));

    let (tried, status) = select(&TWO, Choice::AttachMode("netlink"), &[]);
    assert_eq!((tried, attach_mode(&status)), (vec![], Some("netlink")));
    assert_eq!(status.reason().as_deref(), Some("switched off"));
    assert!(!status.lacks_programs(), "none was wanted");
}

#[test]
fn a_hook_that_is_off_tries_nothing() {
    let (tried, status) = select(&TWO, Choice::Off, &[]);
    assert_eq!((tried, attach_mode(&status)), (vec![], None));
    let shown = status.source_status();
    assert_eq!((shown.up, shown.reason.as_deref()), (false, Some("switched off")));
    assert!(!status.needs_neighbor_messages() && !status.lacks_programs());
}

#[test]
fn what_a_attach_mode_does_without_is_no_reason_against_it() {
    let status = HookStatus::select(&TWO, Choice::Auto, |_| Ok(Some("without x: no fentry".to_owned())));
    let shown = status.source_status();
    assert_eq!((shown.attach_mode.as_deref(), shown.reason), (Some("fast"), None));
    assert_eq!(shown.lacks.as_deref(), Some("without x: no fentry"));
}

#[test]
fn the_explanation_names_every_choice() {
    assert_eq!(
        TWO.explanation(),
        "How things are observed: auto (the best way that the kernel supports), fast, slow, netlink (no actor) or off."
    );
}
