//! What host-local has written down of the addresses that it manages, and what it has freed of late; and what libcni has of the
//! devices that plugins made for pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kevtmon_observation::{BootNs, CniDevice, IpamFile, IpamFiles, IpamRecord};
use serde::{Deserialize, Serialize};

/// Addresses that were freed; those that were longest ago go first. Of a pod that lives, an incident tells soon.
const FREED_MAX: usize = 1024;

/// The files, and what they no longer have.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ipam {
    records: BTreeMap<IpAddr, Vec<IpamRecord>>,
    freed: BTreeMap<IpAddr, Vec<Freed>>,
    /// The devices of the host that plugins made for pods.
    devices: BTreeSet<CniDevice>,
    /// When they were read last; absent before the first time.
    read: Option<BootNs>,
    /// Whether what they tell counts, all of it: what is written down in no file is not reserved.
    pub is_complete: bool,
}

/// A reservation that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freed {
    pub network: String,
    pub container: String,
    /// It went after that.
    pub from: BootNs,
    /// And before that.
    pub until: BootNs,
}

impl Ipam {
    pub fn apply(&mut self, at: BootNs, files: IpamFiles) {
        let before = self.read.replace(at);
        let removed = match files.since {
            Some(_) => files.removed,
            None => std::mem::take(&mut self.records).into_values().flatten().collect(),
        };
        if files.since.is_none() {
            self.devices.clear();
        }
        self.devices.retain(|device| !files.devices_removed.contains(device));
        self.devices.extend(files.devices_added);
        let from = files.since.or(before).unwrap_or(at);
        for record in &removed {
            if let Some(records) = self.records.get_mut(&record.address) {
                records.retain(|known| known != record);
            }
        }
        for record in files.added {
            let records = self.records.entry(record.address).or_default();
            if !records.contains(&record) {
                records.push(record);
            }
        }
        self.records.retain(|_, records| !records.is_empty());
        for record in removed {
            self.note_freed(record, from, at);
        }
        let Self { records, freed, .. } = self;
        freed.retain(|address, freed| {
            freed.retain(|freed| !is_reserved(records, *address, &freed.network, &freed.container));
            !freed.is_empty()
        });
        self.is_complete = files.complete;
    }

    fn note_freed(&mut self, record: IpamRecord, from: BootNs, until: BootNs) {
        let (IpamFile::Reservation, Some(container)) = (record.file, record.container) else { return };
        if self.freed.values().map(Vec::len).sum::<usize>() >= FREED_MAX {
            let oldest =
                self.freed.iter().min_by_key(|(_, freed)| freed.iter().map(|freed| freed.until).min());
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.freed.remove(&oldest);
            }
        }
        let freed = self.freed.entry(record.address).or_default();
        freed.retain(|known| (&known.network, &known.container) != (&record.network, &container));
        freed.push(Freed { network: record.network, container, from, until });
    }

    /// Whether anything was ever written down.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.freed.is_empty()
    }

    /// The networks in which an address is reserved, with the sandbox for which; `None` where that could not be read.
    pub fn reserved(&self, address: IpAddr) -> impl Iterator<Item = (&str, Option<&str>)> {
        let records = self.records.get(&address).into_iter().flatten();
        records
            .filter(|record| record.file == IpamFile::Reservation)
            .map(|record| (record.network.as_str(), record.container.as_deref()))
    }

    /// The networks in which an address was given to sandboxes, by the results of the calls that are kept.
    pub fn given(&self, address: IpAddr) -> impl Iterator<Item = (&str, &str)> {
        let records = self.records.get(&address).into_iter().flatten();
        records
            .filter(|record| record.file == IpamFile::Result)
            .filter_map(|record| Some((record.network.as_str(), record.container.as_deref()?)))
    }

    /// The sandboxes of pods for which plugins made a device of this name, by the results of the calls that are kept.
    pub fn made_for(&self, ifname: &str) -> impl Iterator<Item = &CniDevice> {
        let first = CniDevice { ifname: ifname.to_owned(), ..CniDevice::default() };
        self.devices.range(first..).take_while({
            let ifname = ifname.to_owned();
            move |device| device.ifname == ifname
        })
    }

    pub fn freed(&self, address: IpAddr) -> impl Iterator<Item = &Freed> {
        self.freed.get(&address).into_iter().flatten()
    }
}

fn is_reserved(
    records: &BTreeMap<IpAddr, Vec<IpamRecord>>,
    address: IpAddr,
    network: &str,
    container: &str,
) -> bool {
    records.get(&address).into_iter().flatten().any(|record| {
        record.file == IpamFile::Reservation
            && record.network == network
            && record.container.as_deref() == Some(container)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(address: &str, container: &str) -> IpamRecord {
        IpamRecord {
            address: address.parse().unwrap(),
            network: "cbr0".into(),
            container: Some(container.into()),
            file: IpamFile::Reservation,
        }
    }

    fn files(since: Option<BootNs>, added: &[IpamRecord], removed: &[IpamRecord]) -> IpamFiles {
        let (added, removed) = (added.to_vec(), removed.to_vec());
        IpamFiles { since, added, removed, complete: true, ..IpamFiles::default() }
    }

    fn freed(ipam: &Ipam, address: &str) -> Vec<(String, BootNs, BootNs)> {
        let freed = ipam.freed(address.parse().unwrap());
        freed.map(|freed| (freed.container.clone(), freed.from, freed.until)).collect()
    }

    #[test]
    fn what_was_reserved_and_is_no_more_was_freed_between_the_two_looks() {
        let mut ipam = Ipam::default();
        let (a, b) = (record("10.0.0.1", "a"), record("10.0.0.2", "b"));
        ipam.apply(5, files(None, &[a.clone(), b.clone()], &[]));
        assert_eq!((freed(&ipam, "10.0.0.1"), ipam.is_complete), (vec![], true));
        ipam.apply(9, files(Some(7), &[], std::slice::from_ref(&a)));
        assert_eq!(freed(&ipam, "10.0.0.1"), [("a".to_owned(), 7, 9)]);
        assert_eq!(ipam.reserved(a.address).count(), 0);
        ipam.apply(12, files(Some(11), std::slice::from_ref(&a), &[]));
        assert_eq!(freed(&ipam, "10.0.0.1"), [], "it has its reservation again");
        assert_eq!(ipam.reserved(b.address).collect::<Vec<_>>(), [("cbr0", Some("b"))]);
    }

    #[test]
    fn after_a_time_in_which_nothing_could_be_read_all_is_compared() {
        let mut ipam = Ipam::default();
        let (a, b) = (record("10.0.0.1", "a"), record("10.0.0.2", "b"));
        ipam.apply(5, files(None, &[a, b.clone()], &[]));
        ipam.is_complete = false;
        assert!(!ipam.is_complete);
        ipam.apply(30, files(None, &[record("10.0.0.1", "c"), b], &[]));
        assert_eq!(freed(&ipam, "10.0.0.1"), [("a".to_owned(), 5, 30)]);
        assert_eq!((freed(&ipam, "10.0.0.2"), ipam.is_complete), (vec![], true));
    }

    #[test]
    fn a_result_is_no_reservation() {
        let mut ipam = Ipam::default();
        let given = IpamRecord { file: IpamFile::Result, ..record("fd00::5", "a") };
        ipam.apply(5, files(None, std::slice::from_ref(&given), &[]));
        assert_eq!(ipam.reserved(given.address).count(), 0);
        assert_eq!(ipam.given(given.address).collect::<Vec<_>>(), [("cbr0", "a")]);
        ipam.apply(6, files(Some(5), &[], std::slice::from_ref(&given)));
        assert_eq!((ipam.given(given.address).count(), freed(&ipam, "fd00::5")), (0, vec![]));
    }

    #[test]
    fn a_device_is_that_of_the_sandboxes_whose_results_name_it() {
        let device = |ifname: &str, container: &str| CniDevice {
            ifname: ifname.into(),
            container: container.into(),
            ..CniDevice::default()
        };
        let made_for = |ipam: &Ipam, ifname: &str| {
            ipam.made_for(ifname).map(|device| device.container.clone()).collect::<Vec<_>>()
        };
        let mut ipam = Ipam::default();
        let added =
            vec![device("cali1", "b"), device("cali1", "a"), device("cali10", "c"), device("cali", "d")];
        ipam.apply(5, IpamFiles { devices_added: added, ..files(None, &[], &[]) });
        assert_eq!(made_for(&ipam, "cali1"), ["a", "b"]);
        ipam.apply(6, IpamFiles { devices_removed: vec![device("cali1", "a")], ..files(Some(5), &[], &[]) });
        assert_eq!(made_for(&ipam, "cali1"), ["b"]);
        assert_eq!(made_for(&ipam, "eth0"), [""; 0]);
        ipam.apply(9, IpamFiles { devices_added: vec![device("cali", "d")], ..files(None, &[], &[]) });
        assert_eq!((made_for(&ipam, "cali1").len(), made_for(&ipam, "cali").len()), (0, 1), "all is new");
    }

    #[test]
    fn what_was_freed_is_kept_within_a_bound() {
        let mut ipam = Ipam::default();
        for number in 0..u32::try_from(FREED_MAX).unwrap() + 10 {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string();
            let at = BootNs::from(number) * 2;
            ipam.apply(at, files(Some(at), &[record(&address, "a")], &[]));
            ipam.apply(at + 1, files(Some(at), &[], &[record(&address, "a")]));
        }
        assert_eq!(ipam.freed.len(), FREED_MAX);
        assert_eq!((freed(&ipam, "10.0.0.9"), freed(&ipam, "10.0.0.10").len()), (vec![], 1));
    }
}
