//! Sysctls of the network: who writes one.

use kevtmon_ebpf::sysctl::{KIND_SYSCTL, SysctlOffsets, SysctlRecord};
use kevtmon_observation::{Fact, SysctlWrite};
use kevtmon_types::namespace::NsInum;
use zerocopy::IntoBytes as _;

use super::{Attach, AttachMode, Decode, Hook, Mechanism, Offsets, Program, Records};
use crate::btf::{Btf, BtfError};
use crate::decode::{DecodeError, cookie_half, layout, short, text};
use crate::task::actor;

pub(super) const HOOK: Hook = Hook {
    name: "sysctl",
    observes: "writes to sysctls of the network",
    without: "who switches forwarding or proxy_arp off is not known",
    attach_modes: &[AttachMode {
        name: "cgroup",
        note: Some("makes each access to a file below `/proc/sys` a third of a microsecond longer"),
        lost: None,
        mechanism: Mechanism::Programs(&[Program { name: "sysctl_access", attach: Attach::Sysctl }]),
    }],
    offsets: Some(Offsets { global: "SYSCTL_OFFSETS", resolve: offsets }),
    records: Records {
        kinds: &[(KIND_SYSCTL, Decode::Fact(decode))],
        counts: &[],
        // Counted with those of the hook `link`.
        losses: &[],
    },
    skipped: "link-run-skipped",
};

fn offsets(btf: &Btf<'_>) -> Result<Vec<u8>, BtfError> {
    let offsets = SysctlOffsets {
        net_user_ns: btf.need("net.user_ns")?,
        // Since 5.12.
        net_cookie: btf.any_of(&["net.net_cookie"]),
    };
    Ok(offsets.as_bytes().to_vec())
}

fn decode(bytes: &[u8], _host_netns: NsInum) -> Result<Fact, DecodeError> {
    let record: &SysctlRecord = layout(bytes)?;
    let value = |bytes: &[u8]| text(bytes).trim_end().to_owned();
    Ok(Fact::SysctlWrite(Box::new(SysctlWrite {
        netns: record.task.netns,
        name: text(&record.name),
        old: value(&record.old),
        new: value(&record.new),
        missing: record.missing,
        netns_cookie: cookie_half(&record.header),
        actor: actor(&record.task, record.task_root).ok_or_else(|| short(bytes))?,
    })))
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;
    use crate::record;

    #[test]
    fn a_write_has_its_name_and_both_values() {
        let mut record_sent = SysctlRecord::new_zeroed();
        (record_sent.header.kind, record_sent.header.detail) = (KIND_SYSCTL, 5);
        (record_sent.task.tgid, record_sent.task.netns) = (7, 3);
        record_sent.name[..19].copy_from_slice(b"net/ipv4/ip_forward");
        record_sent.old[..2].copy_from_slice(b"1\n");
        record_sent.new[..1].copy_from_slice(b"0");
        let fact = record(record_sent.as_bytes(), 1).map(|seen| seen.fact);
        let Ok(Fact::SysctlWrite(write)) = fact else { panic!("it is one: {fact:?}") };
        assert_eq!((write.name.as_str(), &*write.old, &*write.new), ("net/ipv4/ip_forward", "1", "0"));
        assert_eq!((write.netns, write.netns_cookie, write.actor.key.tgid), (3, Some(5), 7));
        let nobody = SysctlRecord { task: kevtmon_ebpf::task::TaskId::new_zeroed(), ..record_sent };
        assert!(record(nobody.as_bytes(), 1).is_err(), "nobody is named");
    }
}
