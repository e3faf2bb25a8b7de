//! Environments of CNI plugins, which come from the kernel in parts, become calls.
//!
//! Parts are read where they lie in the ring. Nothing is copied of a variable whose name is not wanted; of a wanted one, what
//! a part cuts off is kept until the next one, and overwritten when it was read.

use std::collections::BTreeMap;

use kevtmon_ebpf::exec::{EnvironmentRecord, ExecRecord, PART_CAPACITY, PARTS_MAX};
use kevtmon_observation::{BootNs, CniCommand, CniExec, CniPod, Fact, Loss, TaskRef};

use super::decode::{DecodeError, layout, lossy, text};
use super::task::actor;

/// As a source of malformed calls.
pub(super) const SOURCE: &str = "hook.exec";
/// Why a call is lost whose environment is too long, or was not read, before it tells what was asked.
pub(super) const CUT: &str = "exec-environment-cut";
/// Why a call is lost whose environment is still to come when those of too many others are.
pub(super) const TOO_MANY: &str = "exec-too-many-environments";
/// Calls whose environment has not come to its end; then the oldest one is lost.
const PARTIAL_MAX: usize = 64;
/// The parts of an environment come at once. Of what takes longer one was lost, and is counted by the kernel.
const PARTS_NS: BootNs = 1_000_000_000;
/// Longest variable that is read, with its name.
const VARIABLE_MAX: usize = 4096 + 16;
/// Characters of a name of a pod, and of a namespace (RFC 1123).
const NAME_MAX: usize = 253;
/// What is read of the environment.
const WANTED: [&str; 5] = ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"];

/// Calls that are being read.
#[derive(Debug, Default)]
pub struct PartialCalls {
    calls: BTreeMap<(u32, BootNs), PartialCall>,
}

#[derive(Debug)]
struct PartialCall {
    at: BootNs,
    actor: TaskRef,
    plugin: String,
    environment_len: u64,
    read: u64,
    unreadable: bool,
    environment: Environment,
}

impl PartialCalls {
    /// A program that was executed; its environment follows. Returns the loss of another one, for which there is no room.
    pub(super) fn begin(&mut self, bytes: &[u8]) -> Result<Option<(BootNs, Fact)>, DecodeError> {
        let record = layout::<ExecRecord>(bytes)?;
        let Some(actor) = actor(&record.task, record.task_root) else {
            return Err(DecodeError::Value { field: "tgid", value: 0 });
        };
        let at = record.header.boot_ns;
        if self.calls.len() >= PARTIAL_MAX {
            self.calls.retain(|_, call| call.at.saturating_add(PARTS_NS) > at);
        }
        let mut lost = None;
        if self.calls.len() >= PARTIAL_MAX {
            let oldest = self.calls.iter().min_by_key(|(_, call)| call.at).map(|(key, _)| *key);
            lost = oldest.and_then(|key| self.calls.remove(&key)).map(|call| (call.at, loss(TOO_MANY)));
        }
        let call = PartialCall {
            at,
            actor,
            plugin: text(&record.filename),
            environment_len: record.environment_len,
            read: 0,
            unreadable: false,
            environment: Environment::default(),
        };
        self.calls.insert((record.task.tgid, record.task.start_ns), call);
        Ok(lost)
    }

    /// A part of an environment; the last one completes the call, if it is one.
    pub(super) fn part(&mut self, bytes: &[u8]) -> Result<Option<(BootNs, Fact)>, DecodeError> {
        let record = layout::<EnvironmentRecord>(bytes)?;
        let key = (record.tgid, record.start_ns);
        let Some(call) = self.calls.get_mut(&key) else { return Ok(None) };
        if u64::from(record.offset) != call.read {
            // One was lost between them, and is counted by the kernel.
            self.calls.remove(&key);
            return Ok(None);
        }
        let len = (record.len as usize).min(PART_CAPACITY);
        call.environment.read(&record.bytes[..len]);
        let expected = call.environment_len.saturating_sub(call.read).min(PART_CAPACITY as u64);
        if len as u64 != expected {
            // The next part begins anywhere in a variable.
            call.unreadable = true;
            call.environment.skip();
        }
        call.read += PART_CAPACITY as u64;
        if record.is_last == 0 {
            return Ok(None);
        }
        Ok(self.calls.remove(&key).and_then(PartialCall::complete))
    }
}

impl PartialCall {
    fn complete(mut self) -> Option<(BootNs, Fact)> {
        let truncated = self.unreadable || self.environment_len > (PARTS_MAX * PART_CAPACITY) as u64;
        // What is cut off is no value.
        if !truncated {
            self.environment.end();
        }
        match call(&self.environment) {
            Some(Call::Plugin) => None,
            Some(Call::Container { command, container_id, pod }) => {
                let value = |name| self.environment.get(name).filter(|value| !value.is_empty());
                let exec = CniExec {
                    actor: self.actor,
                    plugin: self.plugin,
                    command,
                    container_id,
                    netns: value("CNI_NETNS").map(str::to_owned),
                    ifname: value("CNI_IFNAME").map(str::to_owned),
                    pod,
                    truncated,
                };
                Some((self.at, Fact::CniExec(Box::new(exec))))
            }
            None if truncated && !self.environment.has_call() => Some((self.at, loss(CUT))),
            None => Some((self.at, Fact::Malformed { source: SOURCE.to_owned(), count: 1 })),
        }
    }
}

fn loss(reason: &str) -> Fact {
    Fact::Lost(Loss { source: "bpf".to_owned(), reason: reason.to_owned(), count: Some(1) })
}

/// What a plugin was asked.
enum Call {
    Plugin,
    Container { command: CniCommand, container_id: Option<String>, pod: Option<CniPod> },
}

/// The call in an environment; `None` if it is malformed.
fn call(environment: &Environment) -> Option<Call> {
    let command = environment.get("CNI_COMMAND")?;
    if matches!(command, "VERSION" | "STATUS") {
        return Some(Call::Plugin);
    }
    let command: CniCommand = command.parse().ok()?;
    let container_id = environment.get("CNI_CONTAINERID").filter(|id| !id.is_empty());
    if command != CniCommand::Gc && container_id.is_none() || !container_id.is_none_or(is_id) {
        return None;
    }
    let pod = match environment.get("CNI_ARGS").filter(|args| !args.is_empty()) {
        Some(args) => pod(args, container_id)?,
        None => None,
    };
    Some(Call::Container { command, container_id: container_id.map(str::to_owned), pod })
}

/// The pod that `CNI_ARGS` names, if they name one; `None` if they are malformed.
fn pod(args: &str, container_id: Option<&str>) -> Option<Option<CniPod>> {
    let mut pairs = BTreeMap::new();
    for pair in args.split(';').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=')?;
        pairs.insert(key, value);
    }
    let value = |key| pairs.get(key).copied().filter(|value| !value.is_empty());
    let (Some(namespace), Some(name)) = (value("K8S_POD_NAMESPACE"), value("K8S_POD_NAME")) else {
        return Some(None);
    };
    let uid = value("K8S_POD_UID");
    let sandbox = value("K8S_POD_INFRA_CONTAINER_ID");
    let is_whole = is_name(namespace) && is_name(name) && uid.is_none_or(is_name);
    if !is_whole || sandbox.is_some() && sandbox != container_id {
        return None;
    }
    Some(Some(CniPod { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.map(str::to_owned) }))
}

fn is_id(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_name(name: &str) -> bool {
    let is_part = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'-' | b'.');
    !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(is_part)
}

/// The wanted variables of an environment.
#[derive(Debug, Default)]
struct Environment {
    values: BTreeMap<&'static str, String>,
    /// What is read at this moment.
    state: State,
    /// The beginning of a variable, as long as it may be a wanted one.
    open: Vec<u8>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// A name, or the value of a wanted one.
    #[default]
    Keeping,
    /// What is not wanted, to its end.
    Skipping,
}

impl Environment {
    /// Whether it tells what is asked, rightly or not.
    fn has_call(&self) -> bool {
        ["CNI_COMMAND", "CNI_CONTAINERID"].iter().all(|name| self.values.contains_key(name))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    fn read(&mut self, part: &[u8]) {
        let mut strings = part.split(|byte| *byte == 0).peekable();
        while let Some(string) = strings.next() {
            self.add(string);
            // What no NUL ends goes on in the next part.
            if strings.peek().is_some() {
                self.end();
            }
        }
    }

    /// Goes on with a variable. Nothing is copied of one that cannot be a wanted one.
    fn add(&mut self, next: &[u8]) {
        if self.state == State::Skipping || next.is_empty() {
            return;
        }
        if !self.is_wanted(next) || self.open.len() + next.len() > VARIABLE_MAX {
            return self.skip();
        }
        // At once, since what is left where a buffer grew out of is not overwritten.
        self.open.reserve(VARIABLE_MAX - self.open.len());
        self.open.extend_from_slice(next);
    }

    /// Nothing of what is read up to the next end of a variable counts.
    fn skip(&mut self) {
        wipe(&mut self.open);
        self.state = State::Skipping;
    }

    /// Whether what was read of a variable and what follows can be the beginning of a wanted one.
    fn is_wanted(&self, next: &[u8]) -> bool {
        WANTED.iter().any(|name| {
            let read = self.open.iter().chain(next);
            read.zip(name.as_bytes().iter().chain(b"=")).all(|(read, wanted)| read == wanted)
        })
    }

    /// The variable that is being read has ended.
    fn end(&mut self) {
        let wanted = WANTED.iter().find_map(|name| {
            let value = self.open.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some((*name, value))
        });
        // As getenv(3): the first one counts.
        if let Some((name, value)) = wanted.filter(|(name, _)| !self.values.contains_key(name)) {
            self.values.insert(name, lossy(value));
        }
        wipe(&mut self.open);
        self.state = State::Keeping;
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        wipe(&mut self.open);
        for value in self.values.values_mut() {
            let mut bytes = std::mem::take(value).into_bytes();
            wipe(&mut bytes);
        }
    }
}

/// Overwrites what may hold secrets, also where nobody reads it again.
fn wipe(bytes: &mut Vec<u8>) {
    bytes.fill(0);
    std::hint::black_box(bytes.as_slice());
    bytes.clear();
}

#[cfg(test)]
mod tests;
