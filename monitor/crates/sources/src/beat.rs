//! Common moments at which what is read from time to time is read.

use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use kevtmon_types::settings::{Valid, settings};

settings! { "polling":
    /// Longest time between two looks at what the kernel does not announce, such as mounts in other namespaces, RBD images, and
    /// whether a store that failed can be opened again: it shortens the intervals that are longer. Shorter ones find more quickly
    /// what has changed, and take more processor time.
    MAX_INTERVAL: u64 = "max_interval_seconds", default 300, valid Valid::Range(1, 300);
}

static LIMIT: OnceLock<Duration> = OnceLock::new();

pub fn limit(seconds: u64) {
    // A second call changes nothing.
    let _ = LIMIT.set(Duration::from_secs(seconds));
}

const BEATS: [u64; 3] = [20, 10, 5];

/// An interval, or [`MAX_INTERVAL`] if that is shorter.
pub fn limited(interval: Duration) -> Duration {
    LIMIT.get().map_or(interval, |limit| interval.min(*limit))
}

/// The beat that is nearest to the end of a pause; the end itself of one for which there is none. What is looked at from time to
/// time is looked at then, so that one wake-up and one reader process serve all of it.
pub fn at_beat(pause: Duration) -> tokio::time::Instant {
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    let since_first = FIRST.elapsed();
    tokio::time::Instant::from_std(*FIRST + end(since_first, pause))
}

/// When to look again: the same, no later than the configuration says.
pub fn at_look(interval: Duration) -> tokio::time::Instant {
    at_beat(limited(interval))
}

fn end(begin: Duration, pause: Duration) -> Duration {
    let end = begin + pause;
    let is_multiple = |beat: &u64| {
        !pause.is_zero() && pause.as_nanos().is_multiple_of(Duration::from_secs(*beat).as_nanos())
    };
    let Some(beat) = BEATS.into_iter().find(is_multiple) else { return end };
    let half = Duration::from_secs(beat) / 2;
    Duration::from_secs((end + half).as_secs() / beat * beat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_end_at_common_moments() {
        let ms = Duration::from_millis;
        let ends = |begin, pauses: [u64; 5]| pauses.map(|pause| end(ms(begin), ms(pause)).as_millis());
        let pauses = [5_000, 10_000, 20_000, 30_000, 60_000];
        assert_eq!(ends(7_300, pauses), [10_000, 20_000, 20_000, 40_000, 60_000]);
        assert_eq!(ends(7_600, pauses), [15_000, 20_000, 20_000, 40_000, 60_000]);
        assert_eq!(ends(11_000, pauses), [15_000, 20_000, 40_000, 40_000, 80_000]);
        // Late by less than half a beat, it is the next one, and not the one after that.
        assert_eq!(ends(20_003, pauses), [25_000, 30_000, 40_000, 50_000, 80_000]);
        assert_eq!(ends(20_003, [0, 2, 1_000, 4_999, 7_000]), [20_003, 20_005, 21_003, 25_002, 27_003]);
    }

    #[test]
    fn a_beat_is_in_the_future_and_not_far() {
        for pause in [5, 10, 20, 30, 60, 300].map(Duration::from_secs) {
            let before = tokio::time::Instant::now();
            let beat = at_beat(pause);
            assert!(beat + pause / 2 >= before + pause, "{pause:?}");
            assert!(beat <= tokio::time::Instant::now() + pause * 3 / 2, "{pause:?}");
        }
    }
}
