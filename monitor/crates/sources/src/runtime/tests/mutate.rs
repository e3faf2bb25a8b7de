//! Answers of runtimes as they should not be: cut, flipped, repeated, nested, with huge numbers and strings.

use kevtmon_testing::random::Random;
use serde_json::{Value, json};

/// Longer than any name.
const HUGE_TEXT: usize = 100_000;
/// Deeper than what any decoder follows.
const DEPTH: usize = 300;

/// Spoils bytes at some places, or leaves them as they are.
pub(crate) fn bytes(random: &mut Random, answer: &[u8]) -> Vec<u8> {
    let mut bytes = answer.to_vec();
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(40)).min(bytes.len());
        let piece = bytes[at..end].to_vec();
        match random.below(7) {
            0 => bytes.truncate(at),
            1 => bytes[at..end].iter_mut().for_each(|byte| *byte ^= 1 << random.below(8)),
            2 => drop(bytes.splice(at..at, piece.repeat(1 + random.below(200)))),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let openings: [&[u8]; 4] = [b"[", b"{\"a\":", b"\x0a\xff\x01", b"\x0b"];
                let opening = *random.pick(&openings);
                drop(bytes.splice(at..at, opening.repeat(DEPTH)));
            }
            5 => drop(bytes.splice(at..at, std::iter::repeat_n(b'x', random.below(HUGE_TEXT)))),
            _ => {
                let numbers: [&[u8]; 3] = [b"99999999999999999999", b"-1e999", &[0xff; 9]];
                let number = *random.pick(&numbers);
                drop(bytes.splice(at..end, number.iter().copied()));
            }
        }
    }
    bytes
}

/// Puts something else in some places of a document.
pub(crate) fn json(random: &mut Random, document: &Value) -> Value {
    let mut document = document.clone();
    for _ in 0..random.below(4) {
        replace(random, &mut document);
    }
    document
}

/// Puts something else here, or in a place within.
fn replace(random: &mut Random, place: &mut Value) {
    let within = match place {
        Value::Array(all) => all.iter_mut().collect(),
        Value::Object(all) => all.values_mut().collect(),
        _ => Vec::new(),
    };
    if within.is_empty() || random.one_in(4) {
        *place = other(random, place);
    } else {
        let chosen = random.below(within.len());
        within.into_iter().skip(chosen).take(1).for_each(|place| replace(random, place));
    }
}

fn other(random: &mut Random, value: &Value) -> Value {
    match random.below(12) {
        0 => Value::Null,
        1 => json!([]),
        2 => json!({}),
        3 => json!(""),
        4 => json!("x".repeat(random.below(HUGE_TEXT))),
        5 => json!("\u{1b}[2J\u{202e}\0\n"),
        6 => json!(u64::MAX),
        7 => json!(i64::MIN),
        8 => json!(1e300),
        9 => json!(true),
        10 => (0..random.below(DEPTH)).fold(value.clone(), |inner, _| json!([inner])),
        _ => json!([value, value]),
    }
}
