//! When TLS handshakes begin: each takes up to some milliseconds of a core, and anybody who reaches the port can ask for one.
//!
//! So they begin at a bounded rate, and of one address at a fifth of it: who asks without end leaves turns to others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Handshakes that are begun at once when they come, on average and at most one after another.
const INTERVAL: Duration = Duration::from_millis(20);
const BURST: u32 = 50;
/// One of so many may be of the same address.
const SHARE: u32 = 5;
/// Who would have to wait longer is disconnected.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HandshakeRate {
    all: Bucket,
    /// Those that were used a moment ago: as the turns are bounded, so are they.
    of: BTreeMap<IpAddr, Bucket>,
}

/// When as many may begin at once as at the beginning; `None` at the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bucket(Option<Instant>);

impl Bucket {
    /// How long the next one waits, and what is left then; `None` where that would be too long.
    fn next(self, now: Instant, interval: Duration, burst: u32) -> Option<(Duration, Self)> {
        let next = self.0.unwrap_or(now).max(now) + interval;
        let wait = next.saturating_duration_since(now + interval * burst);
        (wait <= PATIENCE).then_some((wait, Self(Some(next))))
    }
}

impl HandshakeRate {
    /// How long a client waits for its turn; `None` where that would be too long, which takes no turn.
    pub(super) fn take(&mut self, from: IpAddr, now: Instant) -> Option<Duration> {
        let from = key(from);
        let own = self.of.get(&from).copied().unwrap_or_default();
        let (own_wait, own) = own.next(now, INTERVAL * SHARE, BURST / SHARE)?;
        let (wait, all) = self.all.next(now, INTERVAL, BURST)?;
        self.all = all;
        self.of.retain(|_, bucket| bucket.0.is_some_and(|unused| unused > now));
        self.of.insert(from, own);
        Some(wait.max(own_wait))
    }
}

/// What one client can have any number of: addresses of the node itself, and those of an IPv6 network.
fn key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    #[test]
    fn handshakes_begin_at_a_bounded_rate_and_who_would_wait_long_is_disconnected() {
        let (mut handshake_rate, now) = (HandshakeRate::default(), Instant::now());
        let waits: Vec<Duration> =
            (0..1000).map_while(|number| handshake_rate.take(address(number), now)).collect();
        assert_eq!(waits.iter().filter(|wait| wait.is_zero()).count(), 50, "at once");
        assert_eq!(waits.len(), 50 + 100, "and those of two seconds");
        assert!(waits.is_sorted() && waits.last() == Some(&PATIENCE));
        let later = now + Duration::from_secs(60);
        assert_eq!(handshake_rate.take(address(0), later), Some(Duration::ZERO));
        assert_eq!(handshake_rate.of.len(), 1, "who waits for nothing any more is forgotten");
    }

    #[test]
    fn one_address_gets_a_fifth_of_the_turns_and_the_others_get_theirs_at_once() {
        for (first, second) in [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1", "::ffff:192.0.2.1"),
            ("127.0.0.1", "127.9.9.9"),
            ("127.0.0.1", "::1"),
            ("2001:db8::1", "2001:db8::ffff:0:0:1"),
        ] {
            let (mut handshake_rate, begin) = (HandshakeRate::default(), Instant::now());
            let same: [IpAddr; 2] = [first.parse().unwrap(), second.parse().unwrap()];
            let mut taken = 0;
            for millisecond in 0..10_000 {
                let now = begin + Duration::from_millis(millisecond);
                taken += same.iter().filter(|from| handshake_rate.take(**from, now).is_some()).count();
                if millisecond % 1000 == 999 {
                    assert_eq!(
                        handshake_rate.take(address(1), now),
                        Some(Duration::ZERO),
                        "{first} {second}"
                    );
                }
            }
            assert!((100..140).contains(&taken), "{first} {second}: {taken}");
        }
    }

    #[test]
    fn addresses_of_different_clients_share_no_turns() {
        let (mut handshake_rate, now) = (HandshakeRate::default(), Instant::now());
        while handshake_rate.take(address(1), now).is_some() {}
        for other in ["10.0.0.2", "127.0.0.1", "2001:db8::1", "2001:db8:0:1::1"] {
            assert_eq!(handshake_rate.take(other.parse().unwrap(), now), Some(Duration::ZERO), "{other}");
        }
    }
}
