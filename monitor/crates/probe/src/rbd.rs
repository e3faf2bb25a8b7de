//! Calls of `rbd`: its arguments, which come from the kernel in one record.
//!
//! They are read where they lie in the ring, and hold keys of the cluster. Nothing is copied of them but names.

use kevtmon_ebpf::exec::CommandRecord;
use kevtmon_observation::{Fact, RbdExec};
use kevtmon_sources::rbd::command_line::{Asked, Call, Spec, asked};

use super::cni::SOURCE;
use super::decode::{DecodeError, layout};
use super::hooks::PartDecoded;
use super::task::actor;

/// The pool of an image that names none, unless the configuration of the cluster says otherwise, which is not read.
const DEFAULT_POOL: &str = "rbd";

/// A call of `rbd`, if it is one that concerns others.
pub(super) fn call(bytes: &[u8]) -> PartDecoded {
    let record = layout::<CommandRecord>(bytes)?;
    let Some(actor) = actor(&record.task, record.task_root) else {
        return Err(DecodeError::Value { field: "tgid", value: 0 });
    };
    let arguments = arguments(record);
    // What was cut off may change what the rest means.
    let is_whole = !arguments.is_empty() && arguments.len() as u64 == record.arguments_len;
    let fact = match if is_whole { asked(arguments) } else { Asked::Unclear } {
        Asked::Other => return Ok(None),
        Asked::Unclear => Fact::Malformed { source: SOURCE.to_owned(), count: 1 },
        Asked::Image(call) => {
            let Call { command, spec, device, nbd, lock, shared } = call;
            let Spec { pool, namespace, image, snapshot } = spec;
            let owned = |name: &str| name.to_owned();
            Fact::RbdExec(Box::new(RbdExec {
                actor,
                command,
                pool: device.map_or_else(|| pool.unwrap_or(DEFAULT_POOL), |_| "").to_owned(),
                namespace: namespace.map(owned),
                image: image.to_owned(),
                snapshot: snapshot.map(owned),
                device,
                nbd,
                lock: lock.map(owned),
                shared,
            }))
        }
    };
    Ok(Some((record.header.boot_ns, fact)))
}

/// As far as they were captured.
pub(super) fn arguments(record: &CommandRecord) -> &[u8] {
    record.arguments.get(..record.len as usize).unwrap_or(&record.arguments)
}

#[cfg(test)]
mod tests;
