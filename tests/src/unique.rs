//! Names that no other test on this machine uses at the same time.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A number that this process has not used yet.
#[must_use]
pub fn number() -> u32 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A name of at most 15 characters, so that it can be an interface: prefix, process, number.
#[must_use]
pub fn name(prefix: &str) -> String {
    let name = format!("{prefix}{:x}x{:x}", std::process::id(), number());
    assert!(name.len() <= 15, "{name} is too long for an interface");
    name
}

/// An address in 10.`first`.0.0/16 that no other test on this machine has had lately: daemons see the pods of all of them.
#[must_use]
pub fn address(first: u8) -> String {
    let number = machine_wide();
    format!("10.{first}.{}.{}", number / 254 % 256, 1 + number % 254)
}

/// The first three numbers of a network's addresses, in 10.`first`.0.0/10, that no other test on this machine has had lately.
#[must_use]
pub fn subnet(first: u8) -> [u8; 3] {
    let [.., high, low] = machine_wide().to_be_bytes();
    [10, first | high & 0x3f, low]
}

/// A number that no other test process has taken before.
fn machine_wide() -> u32 {
    drop(std::fs::create_dir_all("/run/lock"));
    take_from(Path::new("/run/lock/kevtmon-tests-numbers"))
}

/// Takes the next of the numbers of a file.
fn take_from(path: &Path) -> u32 {
    let mut options = File::options();
    let file = options.create(true).truncate(false).read(true).write(true).open(path);
    let file = file.expect("the file of numbers can be opened");
    file.lock().expect("a lock can be taken");
    let mut last = [0; 4];
    // A new one is empty.
    let _ = file.read_at(&mut last, 0).expect("the last number can be read");
    let next = u32::from_le_bytes(last).wrapping_add(1);
    file.write_all_at(&next.to_le_bytes(), 0).expect("a number can be taken");
    next
}

/// The id of a container.
#[must_use]
pub fn container_id() -> String {
    format!("{:064x}", u64::from(std::process::id()) << 32 | u64::from(number()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    #[test]
    fn nobody_takes_a_number_that_another_one_has() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("numbers");
        let take = || (0..100).map(|_| take_from(&path)).collect::<Vec<_>>();
        let taken: BTreeSet<u32> = thread::scope(|scope| {
            let takers = [(); 4].map(|()| scope.spawn(take));
            takers.into_iter().flat_map(|taker| taker.join().expect("no panic")).collect()
        });
        assert_eq!(taken, (1..=400).collect());
    }

    #[test]
    fn addresses_and_networks_are_where_they_are_wanted_and_differ() {
        let addresses: BTreeSet<Ipv4Addr> =
            (0..300).map(|_| address(60).parse().expect("an address")).collect();
        assert_eq!(addresses.len(), 300);
        for address in addresses {
            let [ten, first, _, last] = address.octets();
            assert!(ten == 10 && first == 60 && !matches!(last, 0 | 255), "{address}");
        }
        let networks: BTreeSet<[u8; 3]> = (0..300).map(|_| subnet(192)).collect();
        assert_eq!(networks.len(), 300);
        assert!(networks.iter().all(|[ten, second, _]| *ten == 10 && *second >= 192), "{networks:?}");
    }
}
