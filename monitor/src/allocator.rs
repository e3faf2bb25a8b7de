//! Memory that is free in this process but not yet for others.
//!
//! The allocator keeps what was freed in small pieces between pieces in use. After the type information of the
//! kernel was parsed, and after a storm of events, that is several times what the daemon needs.

/// Events between two looks that make a storm.
const STORM: u64 = 2048;
/// So few, and it is over.
const CALM: u64 = 64;

/// Gives all free memory back to the kernel; takes milliseconds.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim only touches the allocator's free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Tells when a storm is over.
#[derive(Debug, Default)]
pub struct Weather {
    events: u64,
    stormy: bool,
}

impl Weather {
    /// An event passed.
    pub fn event(&mut self) {
        self.events += 1;
    }

    /// Called every few seconds: whether a storm has ended since the last call.
    pub fn has_calmed(&mut self) -> bool {
        let events = std::mem::take(&mut self.events);
        if events >= STORM {
            self.stormy = true;
        }
        events <= CALM && std::mem::take(&mut self.stormy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_over_once_when_few_events_pass() {
        let mut weather = Weather::default();
        assert!(!weather.has_calmed(), "there was none");
        let mut after = |events: u64| {
            (0..events).for_each(|_| weather.event());
            weather.has_calmed()
        };
        assert!(!after(STORM));
        assert!(!after(CALM + 1), "it is ebbing");
        assert!(after(CALM));
        assert!(!after(0));
        assert!(!after(STORM - 1));
        assert!(!after(0), "a busy time is no storm");
    }
}
