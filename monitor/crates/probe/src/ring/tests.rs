use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Waker};

use kevtmon_observation::{Source, TaskFacts, TaskKey};

use super::*;

/// A task with arguments of so many bytes.
fn task(bytes: usize) -> Observation {
    let task = TaskFacts {
        key: TaskKey { tgid: 1, start_ns: 1, exec_id: 1 },
        uid: 1000,
        cmdline: Some("x".repeat(bytes)),
        netns: 1,
        mntns: 1,
        ..TaskFacts::default()
    };
    Observation { at: 1, source: Source::Bpf, fact: Fact::Task(Box::new(task)) }
}

/// Sends until there is no room; how many were sent.
fn fill(outlet: &mut Outlet, bytes: usize) -> usize {
    let mut context = Context::from_waker(Waker::noop());
    let mut sent = 0;
    while let std::task::Poll::Ready(slot) = pin!(outlet.slot()).poll(&mut context) {
        slot.unwrap().send(task(bytes));
        sent += 1;
    }
    sent
}

#[test]
fn what_the_core_has_not_taken_is_bounded_by_its_texts_too() {
    const PLACES: usize = 4096;
    let (tx, mut rx) = mpsc::channel(PLACES);
    let mut outlet = Outlet { tx, texts: 0 };
    let sent = fill(&mut outlet, 24 << 10);
    assert_eq!(sent, UNTAKEN_TEXTS.div_ceil(24 << 10));
    for _ in 0..sent - LEFT {
        rx.try_recv().unwrap();
    }
    assert_eq!(fill(&mut outlet, 24 << 10), sent, "there is room again once few are left");
    while rx.try_recv().is_ok() {}
    assert_eq!(fill(&mut outlet, 0), PLACES, "short ones have every place");
}
