//! The names of an event as numbers: keys and conditions on them enter, numbers and ranges of numbers leave.
//!
//! The top byte of a number is its namespace. Process ids, IPv4 addresses and the first twelve digits of a
//! container's id are themselves; other names are hashed to 56 bits, where two of a hundred thousand collide in
//! one of ten million stores.

use std::net::Ipv4Addr;
use std::path::Path;

use kevtmon_event::Event;

use crate::query::key::{self, Family, Key, Lookup};

const SPACE_SHIFT: u32 = 56;
const VALUE: u64 = (1 << SPACE_SHIFT) - 1;
/// Digits of a container's id that are indexed.
const CONTAINER_DIGITS: usize = 12;

/// The key of every event. Classes are the other numbers of its namespace.
pub(super) const ALL: i64 = 0;
const CONTAINER: u8 = 4;
/// A directory above a mount point.
const ABOVE: u8 = 12;
const ACCOUNT: u8 = 18;

/// Part of the file format, like all numbers here.
fn space(family: Family) -> u8 {
    match family {
        Family::Pod => 1,
        Family::PodName => 2,
        Family::Uid => 3,
        Family::Container => CONTAINER,
        Family::ContainerName => 5,
        Family::Ip => 6,
        Family::Neighbor => 7,
        Family::Path => 8,
        Family::Link => 9,
        Family::Interface => 10,
        Family::Pid => 11,
        Family::Netns => 13,
        Family::Volume => 14,
        Family::Device => 15,
        Family::Incident => 16,
        Family::NetnsName => 17,
    }
}

fn in_space(space: u8, value: u64) -> i64 {
    (i64::from(space) << SPACE_SHIFT) | i64::try_from(value & VALUE).unwrap_or(0)
}

/// FNV-1a, folded.
fn hashed(text: &str) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash ^ (hash >> SPACE_SHIFT)
}

fn number(family: Family, text: &str) -> i64 {
    let value = match family {
        Family::Container => container_range(text).map(|(first, _)| first),
        Family::Pid => text.parse::<u32>().ok().map(u64::from),
        Family::Ip | Family::Neighbor => {
            text.parse::<Ipv4Addr>().ok().map(|address| u64::from(u32::from(address)))
        }
        _ => None,
    };
    in_space(space(family), value.unwrap_or_else(|| hashed(text)))
}

/// First and last value of the ids that begin like this; `None` when no id does.
fn container_range(prefix: &str) -> Option<(u64, u64)> {
    let digits = prefix.get(..prefix.len().min(CONTAINER_DIGITS))?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let open = 4 * (CONTAINER_DIGITS - digits.len());
    let first = u64::from_str_radix(digits, 16).ok()? << open;
    Some((first, first | ((1 << open) - 1)))
}

/// The key of the events of an account.
pub(super) fn of_account(account: i64) -> i64 {
    in_space(ACCOUNT, u64::try_from(account).unwrap_or(VALUE))
}

/// All that an event with these names stands under.
pub(super) fn keys<'a>(
    class: i64,
    account: i64,
    names: impl Iterator<Item = i64> + 'a,
) -> impl Iterator<Item = i64> + 'a {
    [ALL, class, of_account(account)].into_iter().chain(names)
}

/// The names of the event, sorted.
pub(super) fn names(event: &Event) -> Vec<i64> {
    let mut numbers = Vec::new();
    key::visit(event, |family, value, _role| {
        numbers.push(number(family, value));
        if family == Family::Path {
            let above = Path::new(value).ancestors().skip(1).filter_map(Path::to_str);
            numbers.extend(above.map(|path| in_space(ABOVE, hashed(path))));
        }
    });
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Names as they are in a row.
pub(super) fn to_bytes(names: &[i64]) -> Vec<u8> {
    names.iter().flat_map(|name| name.to_le_bytes()).collect()
}

/// The names of a row.
pub(super) fn from_bytes(bytes: &[u8]) -> impl Iterator<Item = i64> {
    bytes.as_chunks::<8>().0.iter().map(|name| i64::from_le_bytes(*name))
}

/// The keys of the events that meet a condition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    /// First number, inclusive.
    pub(super) first: i64,
    /// Last number, inclusive.
    pub(super) last: i64,
    /// Whether other events have these keys, too, so that each event has to be checked.
    pub(super) is_rough: bool,
}

impl Range {
    pub(super) fn single(key: i64) -> Self {
        Self { first: key, last: key, is_rough: false }
    }

    pub(super) fn contains(&self, key: i64) -> bool {
        (self.first..=self.last).contains(&key)
    }
}

pub(super) fn range(lookup: &Lookup) -> Range {
    let single = Range::single;
    match lookup {
        Lookup::Exact(key) => {
            Range { is_rough: key.family == Family::Container, ..single(number(key.family, &key.value)) }
        }
        Lookup::Prefix(Key { family: Family::Container, value }) => match container_range(value) {
            Some((first, last)) => {
                Range { first: in_space(CONTAINER, first), last: in_space(CONTAINER, last), is_rough: false }
            }
            None => Range { first: 1, last: 0, is_rough: false },
        },
        Lookup::Prefix(Key { family: Family::Path, value }) if value.ends_with('/') => {
            let path = if value.len() > 1 { value.trim_end_matches('/') } else { value };
            single(in_space(ABOVE, hashed(path)))
        }
        // The prefix of a hashed name cannot be looked up, and no query needs it.
        Lookup::Prefix(_) => Range { is_rough: true, ..single(ALL) },
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_testing::sample;

    use super::*;

    fn finds(lookup: &Lookup, event: &Event) -> bool {
        let (range, names) = (range(lookup), names(event));
        assert!(names.is_sorted());
        keys(1, 1, names.into_iter()).any(|key| range.contains(key))
    }

    #[test]
    fn an_event_stands_under_each_of_its_keys() {
        for event in sample::all() {
            for (key, _role) in key::keys(&event) {
                assert!(finds(&Lookup::Exact(key.clone()), &event), "{key}");
                assert!(finds(&Lookup::Prefix(key.clone()), &event) || key.family == Family::Path, "{key}");
            }
        }
        let other = Lookup::exact(Family::Pid, "1");
        assert!(!finds(&other, &sample::deletion()));
    }

    #[test]
    fn a_container_is_found_by_any_number_of_first_digits() {
        let event = sample::deletion();
        let id = event.target.as_ref().unwrap().container.as_ref().unwrap().id.clone();
        for digits in [1, 4, 11, 12, 13, 64] {
            assert!(finds(&Lookup::prefix(Family::Container, &id[..digits]), &event), "{digits}");
        }
        for other in ["593e", "0", "", "pause"] {
            assert!(!finds(&Lookup::prefix(Family::Container, other), &event), "{other}");
        }
    }

    #[test]
    fn a_mount_is_found_below_each_directory_above_it() {
        let event = sample::busy();
        let below = |path: &str| finds(&Lookup::prefix(Family::Path, path), &event);
        assert!(below("/") && below("/var/lib/kubelet/") && below("/var/lib/kubelet/pods/3f0f/"));
        assert!(!below("/var/lib/kubelet/pods/3f0/") && !below("/mnt/"));
        let path = event.mount.as_ref().unwrap().path.clone();
        assert!(!below(&format!("{path}/")), "it is not below itself");
    }

    #[test]
    fn the_numbers_are_part_of_the_file_format() {
        assert_eq!(in_space(space(Family::Incident), 1), 0x1000_0000_0000_0001);
        assert_eq!(number(Family::Path, "/a"), 0x08d6_6707_b49c_d92a);
        assert_eq!(number(Family::Pid, "1"), 0x0b00_0000_0000_0001);
        assert_eq!(number(Family::Neighbor, "10.0.0.1"), 0x0700_0000_0a00_0001);
        assert_eq!(number(Family::Container, &"593d8a89ee37".repeat(5)), 0x0400_593d_8a89_ee37);
    }
}
