//! What a randomized test does: all of it follows from a seed, which is printed, and `KEVTMON_TEST_SEED` repeats a run.

use std::time::{SystemTime, UNIX_EPOCH};

/// A generator of pseudo-random numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    /// With the seed of the environment, which may be `random`; else always the same one.
    #[must_use]
    pub fn new() -> Self {
        match std::env::var_os("KEVTMON_TEST_SEED") {
            Some(seed) if seed == "random" => Self::printed(Self::drawn()),
            _ => Self::printed(setting("KEVTMON_TEST_SEED").unwrap_or(1)),
        }
    }

    fn drawn() -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_secs() << 30 | u64::from(now.subsec_nanos())
    }

    #[expect(clippy::print_stdout, reason = "who repeats a test that failed looks for it there")]
    fn printed(seed: u64) -> Self {
        println!("KEVTMON_TEST_SEED={seed}");
        Self::of(seed)
    }

    /// With this seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// What repeats the run.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A number below `end`.
    ///
    /// # Panics
    /// When there is none.
    pub fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.state;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let value = usize::try_from((value ^ (value >> 31)) >> 1).expect("64 bits");
        value % end
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of a list that is not empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// The seeds of a randomized test: that of the environment, else those that once showed something false, so that a change is
/// judged and not the dice. `KEVTMON_TEST_SEED=random` is another one each time.
#[must_use]
pub fn seeds(known: &[u64]) -> Vec<Random> {
    match std::env::var_os("KEVTMON_TEST_SEED") {
        Some(_) => vec![Random::new()],
        None => known.iter().copied().map(Random::printed).collect(),
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}

/// How long a randomized test is: `KEVTMON_TEST_ROUNDS`, else as many rounds as it has by itself.
#[must_use]
pub fn rounds(default: u64) -> u64 {
    setting("KEVTMON_TEST_ROUNDS").unwrap_or(default)
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
