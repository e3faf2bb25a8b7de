//! What all nodes of a cluster do at once, such as sending when a server is back, each does at a moment of its own.

use ring::digest::{SHA256, digest};

/// From 0 to less than 1; the same for one boot of one node.
pub(super) fn share(boot_id: &str) -> f64 {
    const PARTS: u64 = 10_000;
    let hash = digest(&SHA256, boot_id.as_bytes());
    let number = hash.as_ref().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    (number % PARTS) as f64 / PARTS as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boots_have_shares_of_their_own() {
        let (one, other) = (share("one boot"), share("another boot"));
        assert_ne!(one, other);
        assert!((0.0..1.0).contains(&one) && (0.0..1.0).contains(&other));
        assert_eq!(share("one boot"), one);
    }
}
