//! `why`: answered in the daemon, from one moment, with few requests.

use kevtmon_history::query::why::Outcome;

use super::*;

#[test]
fn a_story_has_every_event_that_the_model_knows() {
    let rig = Rig::new();
    rig.push(1..=2);
    rig.core.seq.store(3, Ordering::Relaxed);
    thread::scope(|scope| {
        let asking = scope.spawn(|| rig.remote().why("lijiaob/etcd1-0").unwrap());
        eventually("the model was copied", || rig.core.copies.load(Ordering::Relaxed) == 1);
        rig.push([3]);
        let Outcome::Story(story) = asking.join().unwrap() else { panic!() };
        let repeated = story.steps[0].repeated.as_ref().unwrap();
        assert_eq!((story.steps[0].seq, repeated.count, repeated.last_seq), (1, 2, 3));
    });
    // One copy of the model was all that the core had to do.
    assert_eq!(rig.core.copies.load(Ordering::Relaxed), 1);
}

#[test]
fn an_event_that_never_comes_does_not_hold_the_answer() {
    let rig = Rig::new();
    rig.push(1..=2);
    rig.core.seq.store(9, Ordering::Relaxed);
    let Outcome::Story(story) = rig.remote().why("lijiaob/etcd1-0").unwrap() else { panic!() };
    assert_eq!(story.steps[0].repeated.as_ref().unwrap().last_seq, 2);
}

#[test]
fn a_missing_and_a_long_subject_are_refused_and_an_ambiguous_one_gives_its_meanings() {
    let rig = Rig::new();
    rig.push(1..=2);
    for query in ["", "?subject=", "?subject=%20", "?word=x", &format!("?subject={}", "x".repeat(5_000))] {
        let refusal = rig.ask(&format!("/v1/why{query}"));
        assert!(refusal.starts_with("HTTP/1.1 400 "), "{query}: {refusal}");
    }
    assert!(rig.ask("/v1/why?subject=nobody").contains("{\"unknown\":{\"from\":\"2026-01-02T03:00:01"));
    assert!(
        rig.ask("/v1/why?subject=lijiaob%2Fetcd1-0").contains("{\"story\":{\"node\":\"n\",\"subject\":{")
    );
}
