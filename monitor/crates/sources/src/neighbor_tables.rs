//! How full the kernel's tables of neighbor entries are, which all network namespaces of the node share.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kevtmon_observation::{Fact, NeighborTable};
use tokio::time::sleep_until;

use crate::beat::at_look;
use crate::procfs::Proc;
use crate::{Sender, spawn_until_closed, tell};

const INTERVAL: Duration = Duration::from_secs(10);

/// Follows them until the receiver of observations is gone. Only the initial network namespace shows them
/// (`neigh_table_init`, net/core/neighbour.c); in another one nothing is reported.
pub fn follow(proc: &Proc, tx: Sender) {
    let root = proc.root().to_owned();
    spawn_until_closed(tx.clone(), async move {
        let mut before = Vec::new();
        loop {
            let read: Vec<Read> = [false, true].into_iter().filter_map(|ipv6| read(&root, ipv6)).collect();
            let tables = tables(&before, &read);
            let was_near = before.iter().any(|(table, _)| is_near(table));
            if was_near || tables.iter().any(|table| is_near(table) || table.refused > 0) {
                tell(&tx, Fact::NeighborTables(tables)).await;
            }
            before = read;
            sleep_until(at_look(INTERVAL)).await;
        }
    });
}

/// A table, and how many entries of it were refused since the node booted.
type Read = (NeighborTable, u64);

fn is_near(table: &NeighborTable) -> bool {
    table.entries >= table.gc_thresh2.min(table.gc_thresh3)
}

/// The tables with what they refused since they were read before.
fn tables(before: &[Read], now: &[Read]) -> Vec<NeighborTable> {
    let refused = |(table, total): &Read| {
        let before = before.iter().find(|(before, _)| before.ipv6 == table.ipv6);
        before.map_or(0, |(_, before)| total.saturating_sub(*before))
    };
    now.iter().map(|read| NeighborTable { refused: refused(read), ..read.0 }).collect()
}

fn read(root: &Path, ipv6: bool) -> Option<Read> {
    let (stat, directory) = match ipv6 {
        false => ("self/net/stat/arp_cache", "sys/net/ipv4/neigh/default"),
        true => ("self/net/stat/ndisc_cache", "sys/net/ipv6/neigh/default"),
    };
    let (entries, total) = parse(&text(root.join(stat))?)?;
    let limit = |name: &str| text(root.join(directory).join(name))?.trim().parse().ok();
    let (gc_thresh2, gc_thresh3) = (limit("gc_thresh2")?, limit("gc_thresh3")?);
    Some((NeighborTable { ipv6, entries, gc_thresh2, gc_thresh3, refused: 0 }, total))
}

fn text(path: PathBuf) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The entries, and those refused: a line with names, then one for each processor, in hexadecimal. The kernel has one number of
/// entries, and counts the rest by processor.
fn parse(stat: &str) -> Option<(u64, u64)> {
    let mut lines = stat.lines();
    let names: Vec<&str> = lines.next()?.split_ascii_whitespace().collect();
    let column = |name: &str| names.iter().position(|one| *one == name);
    let (entries, refused) = (column("entries")?, column("table_fulls")?);
    let mut sums = (None, 0_u64);
    for line in lines {
        let number = |index| u64::from_str_radix(line.split_ascii_whitespace().nth(index)?, 16).ok();
        sums = (Some(number(entries)?), sums.1.saturating_add(number(refused)?));
    }
    Some((sums.0?, sums.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As 6.18 shows it, on two processors.
    const STAT: &str = "\
entries  allocs   destroys hash_grows lookups  hits     res_failed rcv_probes_mcast rcv_probes_ucast periodic_gc_runs forced_gc_runs unresolved_discards table_fulls
00000402 0079d7f3 0083faf3 00000000   01d7d016 00e19502 00000332   00000000         00000000         00000000         00000000       00000000            0000000a
00000402 00831fea 0078fce8 0000000d   020ae495 00eb1dcf 0000031e   00000000         00000000         0000111d         00000000       00000000            00000007
";

    fn table(entries: u64, refused: u64) -> NeighborTable {
        NeighborTable { ipv6: false, entries, gc_thresh2: 512, gc_thresh3: 1024, refused }
    }

    #[test]
    fn what_processors_count_is_summed_up_and_entries_are_not() {
        assert_eq!(parse(STAT), Some((0x402, 0x11)));
        for text in [
            "", "entries\n", "entries table_fulls\n", "entries table_fulls\nx 1\n",
            "entries table_fulls\n1\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_table_is_read_with_its_limits() {
        let proc = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = proc.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("self/net/stat/arp_cache", STAT);
        assert_eq!(read(proc.path(), false), None);
        put("sys/net/ipv4/neigh/default/gc_thresh2", "512\n");
        put("sys/net/ipv4/neigh/default/gc_thresh3", "1024\n");
        assert_eq!(read(proc.path(), false), Some((table(0x402, 0), 0x11)));
        assert_eq!(read(proc.path(), true), None);
    }

    #[test]
    fn what_was_refused_before_is_not_told_again() {
        let (read, six) = ((table(7, 0), 17), (NeighborTable { ipv6: true, ..table(7, 0) }, 3));
        assert_eq!(tables(&[], &[read]), [table(7, 0)]);
        assert_eq!(tables(&[six, (table(9, 0), 15)], &[read]), [table(7, 2)]);
        assert_eq!(tables(&[(table(9, 0), 18)], &[read]), [table(7, 0)]);
    }
}
