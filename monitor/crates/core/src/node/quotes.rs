//! For which incidents lines of logs were quoted of late: a log says the same again and again.

use kevtmon_observation::BootNs;
use serde::{Deserialize, Serialize};

/// The same is quoted for one incident again after this time.
const AGAIN_NS: BootNs = 600 * 1_000_000_000;
/// Quotes that are remembered; beyond that nothing is quoted.
const QUOTES_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Quote {
    incident: String,
    /// What the line was about.
    says: String,
    at: BootNs,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quotes {
    quotes: Vec<Quote>,
}

impl Quotes {
    /// Remembers a quote, if it is to be made.
    pub fn admits(&mut self, at: BootNs, incident: &str, says: &str) -> bool {
        self.expire(at);
        let is_known = self.quotes.iter().any(|quote| quote.incident == incident && quote.says == says);
        let has_room = !is_known && self.quotes.len() < QUOTES_MAX;
        if has_room {
            self.quotes.push(Quote { incident: incident.to_owned(), says: says.to_owned(), at });
        }
        has_room
    }

    pub fn expire(&mut self, now: BootNs) {
        self.quotes.retain(|quote| quote.at.saturating_add(AGAIN_NS) > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_quoted_once_in_ten_minutes_for_an_incident() {
        let mut quotes = Quotes::default();
        assert!(quotes.admits(0, "a", "hung-task"));
        assert!(!quotes.admits(AGAIN_NS - 1, "a", "hung-task"));
        assert!(quotes.admits(AGAIN_NS - 1, "a", "thin-deletion"));
        assert!(quotes.admits(AGAIN_NS - 1, "b", "hung-task"));
        assert!(quotes.admits(AGAIN_NS, "a", "hung-task"));
        for number in 0..1000 {
            quotes.admits(AGAIN_NS, &number.to_string(), "hung-task");
        }
        assert_eq!(quotes.quotes.len(), QUOTES_MAX);
    }
}
