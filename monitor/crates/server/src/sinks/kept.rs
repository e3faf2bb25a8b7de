//! What the store keeps for the next run besides events: only the newest state counts, so it is no queue.

use std::sync::Mutex;

use kevtmon_core::Kept;
use kevtmon_types::lock::lock;

/// That state, on its way from the core to the store.
#[derive(Debug, Default)]
pub struct KeptState(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    kept: Kept,
    has_news: bool,
}

impl KeptState {
    /// Puts the newest state, which the next commit stores.
    pub fn put(&self, kept: Kept) {
        let mut state = lock(&self.0);
        if state.kept != kept {
            *state = State { kept, has_news: true };
        }
    }

    /// What is not stored yet; counts as stored from now on.
    #[must_use]
    pub fn take_unstored(&self) -> Option<Kept> {
        let mut state = lock(&self.0);
        let has_news = std::mem::take(&mut state.has_news);
        has_news.then(|| state.kept.clone())
    }

    /// A new file has nothing of it.
    pub fn store_again(&self) {
        lock(&self.0).has_news = true;
    }
}
