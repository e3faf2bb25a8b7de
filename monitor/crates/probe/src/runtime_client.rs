//! Calls of the clients of container runtimes, as of `docker restart`: their arguments, which come from the kernel in one record.
//!
//! They are read where they lie in the ring, and may hold secrets. Nothing is copied of them but names of containers.

use kevtmon_ebpf::exec::CommandRecord;
use kevtmon_observation::{ContainerStart, Fact};

use super::decode::{DecodeError, layout};
use super::hooks::PartDecoded;
use super::rbd::arguments;
use super::task::actor;

/// What a client is called for: a part of its command that only groups others, and the commands that start a container.
const GROUPS: [&[u8]; 5] = [b"container", b"task", b"tasks", b"t", b"c"];
const STARTS: [&[u8]; 2] = [b"restart", b"start"];
/// Shorter prefixes of an id are too many others, too.
const NAME_MIN: usize = 4;

/// A call that starts or restarts containers.
pub(super) fn call(bytes: &[u8]) -> PartDecoded {
    let record = layout::<CommandRecord>(bytes)?;
    let Some(actor) = actor(&record.task, record.task_root) else {
        return Err(DecodeError::Value { field: "tgid", value: 0 });
    };
    let containers = started(arguments(record));
    if containers.is_empty() {
        return Ok(None);
    }
    Ok(Some((record.header.boot_ns, Fact::ContainerStart(Box::new(ContainerStart { actor, containers })))))
}

/// The names, ids or prefixes of ids that a command line starts; none where it does something else.
fn started(arguments: &[u8]) -> Vec<String> {
    // What follows the last NUL was cut off.
    let whole = arguments.iter().rposition(|byte| *byte == 0).map_or(&[][..], |end| &arguments[..end]);
    let mut words = whole.split(|byte| *byte == 0).skip(1);
    let mut may_be_value = false;
    loop {
        match words.next() {
            None => return Vec::new(),
            Some(word) if STARTS.contains(&word) => break,
            Some(word) if word.starts_with(b"-") => may_be_value = !word.contains(&b'='),
            Some(word) if GROUPS.contains(&word) => may_be_value = false,
            Some(_) if may_be_value => may_be_value = false,
            Some(_) => return Vec::new(),
        }
    }
    let is_name = |word: &&[u8]| word.len() >= NAME_MIN && !word.starts_with(b"-");
    let names = words.filter(is_name).filter_map(|word| str::from_utf8(word).ok());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containers_that_a_command_line_starts() {
        let shown = |line: &str| {
            let arguments: Vec<u8> = line.bytes().map(|byte| if byte == b' ' { 0 } else { byte }).collect();
            started(&arguments).join(" ")
        };
        for (line, containers) in [
            ("docker restart 291716a39be9 ", "291716a39be9"),
            (
                "/usr/bin/docker -H unix:///run/docker.sock -D restart -t 10 291716a39be9 k8s_POD_a ",
                "291716a39be9 k8s_POD_a",
            ),
            ("docker --host=tcp://h container start etcd ", "etcd"),
            ("ctr -n k8s.io task start 291716a39be9 ", "291716a39be9"),
            ("crictl start 291716a39be9 ", "291716a39be9"),
            ("docker restart 291716a39be9 etcd-cut-o", "291716a39be9"),
            ("docker exec etcd service restart etcd ", ""),
            ("docker run restart etcd ", ""),
            ("docker stop 291716a39be9 ", ""),
            ("docker restart ", ""),
            ("docker ", ""),
            ("", ""),
        ] {
            assert_eq!(shown(line), containers, "{line}");
        }
    }
}
