//! What the kernel programs of a process cost: the memory of their maps, the ring among them, and the time of their runs where
//! the kernel counts it (`sysctl kernel.bpf_stats_enabled`).
//!
//! In: the descriptors of that process, as /proc shows them, and the kernel's list of programs, which has their names.

use std::collections::BTreeMap;
use std::fs;

use aya::programs::loaded_programs;

use super::hooks::HOOKS;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of all maps together.
    pub map_bytes: u64,
    /// Each program that has run, by name.
    pub programs: Vec<ProgramCost>,
}

/// A program's runs since it was loaded, or since the kernel has counted them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramCost {
    pub name: String,
    pub runs: u64,
    /// All of its runs together, nanoseconds.
    pub run_ns: u64,
}

/// The cost of what a process has open; `None` where its descriptors cannot be read.
pub fn of_process(pid: u32) -> Option<Cost> {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?;
    let shown = entries.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let (map_bytes, runs) = sum(shown);
    let programs = if runs.is_empty() { Vec::new() } else { named(&runs) };
    Some(Cost { map_bytes, programs })
}

/// `BPF_MAP_TYPE_RINGBUF` of include/uapi/linux/bpf.h.
const RING: u64 = 27;

/// Runs and their time, by the id of the program.
type Runs = BTreeMap<u32, (u64, u64)>;

/// Several descriptors may stand for the same map or program.
fn sum(shown: impl Iterator<Item = String>) -> (u64, Runs) {
    let (mut maps, mut runs) = (BTreeMap::new(), Runs::new());
    for text in shown {
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            value.trim().parse::<u64>().ok()
        };
        let id = |name| field(name).and_then(|id| u32::try_from(id).ok());
        if let (Some(id), Some(bytes)) = (id("map_id"), field("memlock")) {
            // Before 6.4 the memory of a ring is left out; its size are its entries.
            let ring = field("max_entries").filter(|_| field("map_type") == Some(RING)).unwrap_or_default();
            maps.insert(id, bytes.max(ring));
        }
        if let (Some(id), Some(count @ 1..), Some(time)) =
            (id("prog_id"), field("run_cnt"), field("run_time_ns"))
        {
            runs.insert(id, (count, time));
        }
    }
    (maps.values().sum(), runs)
}

fn named(runs: &Runs) -> Vec<ProgramCost> {
    let mut programs: Vec<ProgramCost> = loaded_programs()
        .flatten()
        .filter_map(|program| {
            let (runs, run_ns) = *runs.get(&program.id())?;
            Some(ProgramCost { name: whole(program.name_as_str()?), runs, run_ns })
        })
        .collect();
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    programs
}

/// The kernel keeps the first 15 bytes of a name.
fn whole(name: &str) -> String {
    let of_hooks = || HOOKS.iter().flat_map(|hook| hook.programs());
    let known = of_hooks().find(|program| program.name.get(..15).unwrap_or(program.name) == name);
    known.map_or(name, |program| program.name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_with_two_descriptors_counts_once_and_a_program_that_never_ran_not_at_all() {
        let map = |id, bytes| {
            format!("pos:\t0\nmap_type:\t1\nmax_entries:\t9000\nmemlock:\t{bytes}\nmap_id:\t{id}\n")
        };
        let ring = |bytes| format!("map_type:\t27\nmax_entries:\t5000\nmemlock:\t{bytes}\nmap_id:\t9\n");
        let program = |id, runs| {
            format!(
                "prog_type:\t26\nmemlock:\t4096\nprog_id:\t{id}\nrun_time_ns:\t{}\nrun_cnt:\t{runs}\n",
                runs * 30
            )
        };
        let file = "pos:\t0\nflags:\t02\nmnt_id:\t29\n".to_owned();
        let shown =
            [map(7, 4096), map(7, 4096), map(8, 100), program(1, 2), program(1, 2), program(2, 0), file];
        assert_eq!(sum(shown.into_iter()), (4196, Runs::from([(1, (2, 60))])));
        assert_eq!([0, 6000].map(|bytes| sum([ring(bytes)].into_iter()).0), [5000, 6000]);
    }

    #[test]
    fn a_name_that_the_kernel_cut_is_that_of_the_program() {
        assert_eq!(whole("neigh_cleanup_a"), "neigh_cleanup_and_release");
        assert_eq!(whole("neigh_update"), "neigh_update");
        assert_eq!(whole("another"), "another");
    }
}
