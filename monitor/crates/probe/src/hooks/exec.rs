//! Executions of CNI plugins by root of the node, with what their environment asks for, and of `rbd` and the clients of container
//! runtimes, with what their arguments ask for; and how they end. Of processes that the daemon follows, their signals and end.

use kevtmon_ebpf::exec::{
    ComponentRecord, ExecOffsets, ExitRecord, KIND_CLIENT, KIND_COMPONENT, KIND_ENVIRONMENT, KIND_EXEC,
    KIND_EXIT, KIND_RBD, KIND_SIGNAL, SENT_BY_KERNEL, SENT_BY_TASK, SignalRecord, counter,
};
use kevtmon_metrics::KernelMetric;
use kevtmon_observation::{CniExit, Fact, SignalSent};
use kevtmon_types::namespace::NsInum;
use zerocopy::IntoBytes as _;

use super::{AttachMode, Count, Decode, Hook, LossCount, Mechanism, Offsets, Records, tp_btf};
use crate::btf::{Btf, BtfError};
use crate::cni::PartialCalls;
use crate::decode::{DecodeError, layout};
use crate::task::actor;
use crate::{rbd, runtime_client};

pub(super) const HOOK: Hook = Hook {
    name: "exec",
    observes: "calls of CNI plugins, of rbd and of clients of container runtimes, and the end of FUSE servers",
    without: "calls of CNI plugins and of rbd are not seen: changes of the network are not linked to calls; wanted and \
              locked RBD images are unknown, and who restarts a sandbox by hand, or ends a FUSE server",
    attach_modes: &[AttachMode {
        name: "tp_btf",
        note: None,
        lost: None,
        mechanism: Mechanism::Programs(&[
            tp_btf("sched_process_exec"),
            tp_btf("sched_process_exit"),
            tp_btf("signal_generate"),
        ]),
    }],
    offsets: Some(Offsets { global: "EXEC_OFFSETS", resolve: offsets }),
    records: Records {
        kinds: &[
            (KIND_EXEC, Decode::Part(PartialCalls::begin)),
            (KIND_ENVIRONMENT, Decode::Part(PartialCalls::part)),
            (KIND_EXIT, Decode::Fact(exit)),
            (KIND_COMPONENT, Decode::Fact(component)),
            (KIND_RBD, Decode::Part(|_, bytes| rbd::call(bytes))),
            (KIND_CLIENT, Decode::Part(|_, bytes| runtime_client::call(bytes))),
            (KIND_SIGNAL, Decode::Fact(signal)),
        ],
        counts: &[Count { counter: counter::OTHERS, metric: KernelMetric::CniIgnored, labels: &[] }],
        losses: &[
            LossCount { counter: counter::RING_FULL, reason: "exec-ring-full" },
            LossCount { counter: counter::RUNNING_FULL, reason: "exec-too-many-running" },
        ],
    },
    skipped: "exec-run-skipped",
};

fn offsets(btf: &Btf<'_>) -> Result<Vec<u8>, BtfError> {
    let offsets = ExecOffsets {
        binprm_filename: btf.need("linux_binprm.filename")?,
        task_mm: btf.need("task_struct.mm")?,
        mm_env_start: btf.need("mm_struct.env_start")?,
        mm_env_end: btf.need("mm_struct.env_end")?,
        task_group_leader: btf.need("task_struct.group_leader")?,
        task_exit_code: btf.need("task_struct.exit_code")?,
        task_signal: btf.need("task_struct.signal")?,
        signal_flags: btf.need("signal_struct.flags")?,
        // atomic_t holds one number.
        signal_live: btf.need("signal_struct.live")?,
        signal_group_exit_code: btf.need("signal_struct.group_exit_code")?,
        // Since 4.19.
        task_thread_pid: btf.need("task_struct.thread_pid")?,
        pid_level: btf.need("pid.level")?,
    };
    Ok(offsets.as_bytes().to_vec())
}

fn exit(bytes: &[u8], _host_netns: NsInum) -> Result<Fact, DecodeError> {
    let record = layout::<ExitRecord>(bytes)?;
    Ok(Fact::CniExit(CniExit { tgid: record.tgid, start_ns: record.start_ns, status: record.status }))
}

fn signal(bytes: &[u8], _host_netns: NsInum) -> Result<Fact, DecodeError> {
    let record = layout::<SignalRecord>(bytes)?;
    Ok(Fact::SignalSent(Box::new(SignalSent {
        sender: actor(&record.task, record.task_root).filter(|_| record.sent_by == SENT_BY_TASK),
        by_kernel: record.sent_by == SENT_BY_KERNEL,
        tgid: record.tgid,
        start_ns: record.start_ns,
        signal: record.signal,
    })))
}

fn component(bytes: &[u8], _host_netns: NsInum) -> Result<Fact, DecodeError> {
    Ok(Fact::ComponentExecuted { tgid: layout::<ComponentRecord>(bytes)?.tgid })
}

#[cfg(test)]
mod tests {
    use kevtmon_ebpf::Header;

    use super::*;
    use crate::decode::record;

    #[test]
    fn a_program_with_the_name_of_a_component_is_told_by_its_process() {
        let header = Header { kind: KIND_COMPONENT, detail: 0, boot_ns: 5 };
        let bytes = ComponentRecord { header, tgid: 7, reserved: 0 };
        let seen = record(bytes.as_bytes(), 1).unwrap();
        assert_eq!((seen.at, seen.fact), (5, Fact::ComponentExecuted { tgid: 7 }));
        assert!(record(&bytes.as_bytes()[..20], 1).is_err());
    }
}
