//! Arguments of `rbd`, which come from the kernel in one record, become calls: which image is to be mapped, or which lock is
//! taken or taken away.
//!
//! They are read where they lie in the ring, and hold keys of the cluster. Nothing is copied of them but the names of the image
//! and of the lock. What cannot be understood for certain is no call: the program takes any setting of Ceph as an option, and
//! whether a word behind one that is not known here belongs to it cannot be told.

use kevtmon_ebpf::exec::RbdRecord;

use super::cni::SOURCE;
use super::decode::{DecodeError, layout};
use super::hooks::PartDecoded;
use super::task::actor;
use crate::observation::{Fact, RbdCommand, RbdExec};

/// The pool of an image that names none, unless the configuration of the cluster says otherwise, which is not read.
const DEFAULT_POOL: &str = "rbd";
/// Longest name of a pool, an image, a snapshot or a lock that is taken.
const NAME_MAX: usize = 255;
/// Where the program stands among the first words: behind the interpreter of a script and its argument.
const PROGRAM_WITHIN: usize = 3;

/// The options whose value names something, and those whose value does not matter, each as it is known: with its dashes, `_`
/// written as `-`.
const POOL: &[&str] = &["-p", "--pool"];
const NAMESPACE: &[&str] = &["--namespace"];
const IMAGE: &[&str] = &["--image"];
const SNAPSHOT: &[&str] = &["--snap"];
const SHARED: &[&str] = &["--shared", "--lock-tag"];
const DEVICE_TYPE: &[&str] = &["-t", "--device-type"];
const IGNORED: &[&str] = &[
    "-c",
    "--conf",
    "-i",
    "--id",
    "-n",
    "--name",
    "--user",
    "-m",
    "--mon-host",
    "-k",
    "--keyring",
    "-K",
    "--keyfile",
    "--key",
    "--cluster",
    "--setuser",
    "--setgroup",
    "-o",
    "--options",
    "--map-options",
    "--cookie",
    "--log-file",
    "--admin-socket",
    "--quiesce-hook",
    "--snap-id",
    "--format",
];
/// Those without a value.
const SWITCHES: &[&str] = &[
    "--read-only",
    "--exclusive",
    "--force",
    "--quiesce",
    "--show-cookie",
    "--no-progress",
    "--pretty-format",
    "-d",
    "-f",
    "--log-to-stderr",
    "--no-log-to-stderr",
    "--no-config-file",
];
/// Those with which nothing is done.
const ASKS: &[&str] = &["-h", "--help", "-v", "--version"];

/// A call of `rbd`, if it is one that concerns others.
pub(super) fn call(bytes: &[u8]) -> PartDecoded {
    let record = layout::<RbdRecord>(bytes)?;
    let Some(actor) = actor(&record.task, record.task_root) else {
        return Err(DecodeError::Value { field: "tgid", value: 0 });
    };
    let arguments = record.arguments.get(..record.len as usize).unwrap_or(&record.arguments);
    // What was cut off may change what the rest means.
    let is_whole = !arguments.is_empty() && arguments.len() as u64 == record.arguments_len;
    let fact = match if is_whole { asked(arguments) } else { Asked::Unclear } {
        Asked::Other => return Ok(None),
        Asked::Unclear => Fact::Malformed { source: SOURCE.to_owned(), count: 1 },
        Asked::Image(call) => {
            let Call { command, spec, lock, shared } = call;
            let Spec { pool, namespace, image, snapshot } = spec;
            let owned = |name: &str| name.to_owned();
            Fact::RbdExec(Box::new(RbdExec {
                actor,
                command,
                pool: pool.unwrap_or(DEFAULT_POOL).to_owned(),
                namespace: namespace.map(owned),
                image: image.to_owned(),
                snapshot: snapshot.map(owned),
                lock: lock.map(owned),
                shared,
            }))
        }
    };
    Ok(Some((record.header.boot_ns, fact)))
}

/// What `rbd` was asked for.
#[derive(Debug, PartialEq, Eq)]
enum Asked<'a> {
    /// Something else.
    Other,
    /// It may be one of the following, and is not understood.
    Unclear,
    Image(Call<'a>),
}

#[derive(Debug, PartialEq, Eq)]
struct Call<'a> {
    command: RbdCommand,
    spec: Spec<'a>,
    lock: Option<&'a str>,
    shared: bool,
}

/// `[POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT]`
#[derive(Debug, Default, PartialEq, Eq)]
struct Spec<'a> {
    pool: Option<&'a str>,
    namespace: Option<&'a str>,
    image: &'a str,
    snapshot: Option<&'a str>,
}

fn asked(arguments: &[u8]) -> Asked<'_> {
    let Some(words) = words(arguments) else { return Asked::Unclear };
    let given = match given(&words) {
        Ok(given) => given,
        Err(asked) => return asked,
    };
    let (command, rest) = match given.words[..] {
        ["map", ref rest @ ..] | ["device", "map", ref rest @ ..] => (RbdCommand::Map, rest),
        ["lock", "add", ref rest @ ..] => (RbdCommand::LockAdd, rest),
        ["lock", "remove" | "rm", ref rest @ ..] => (RbdCommand::LockRemove, rest),
        _ => return Asked::Other,
    };
    // A device of another kind is none of the kernel's `rbd`.
    if given.device_type.is_some_and(|kind| kind != "krbd") {
        return Asked::Other;
    }
    call_of(command, &given, rest).filter(Call::is_named).map_or(Asked::Unclear, Asked::Image)
}

/// What comes behind the program, as text.
fn words(arguments: &[u8]) -> Option<Vec<&str>> {
    let all = arguments.strip_suffix(b"\0").unwrap_or(arguments).split(|byte| *byte == 0);
    let all: Vec<&str> = all.map(|word| std::str::from_utf8(word).ok()).collect::<Option<_>>()?;
    let is_program = |word: &&str| word.rsplit('/').next() == Some("rbd");
    let program = all.iter().take(PROGRAM_WITHIN).position(is_program).unwrap_or(0);
    Some(all.get(program + 1..)?.to_vec())
}

/// Options that matter, and all words that are no options.
#[derive(Debug, Default)]
struct Given<'a> {
    pool: Option<&'a str>,
    namespace: Option<&'a str>,
    image: Option<&'a str>,
    snapshot: Option<&'a str>,
    device_type: Option<&'a str>,
    shared: bool,
    words: Vec<&'a str>,
}

fn given<'a>(words: &[&'a str]) -> Result<Given<'a>, Asked<'a>> {
    let mut given = Given::default();
    let mut words = words.iter().copied().peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            given.words.extend(words);
            break;
        }
        if word.len() < 2 || !word.starts_with('-') {
            given.words.push(word);
            continue;
        }
        let (name, value) = option(word);
        let has = |names: &[&str]| names.contains(&name.as_str());
        if has(ASKS) {
            return Err(Asked::Other);
        }
        if has(SWITCHES) {
            continue;
        }
        let takes_one =
            [POOL, NAMESPACE, IMAGE, SNAPSHOT, SHARED, DEVICE_TYPE, IGNORED].iter().any(|names| has(names));
        if !takes_one {
            // Any other setting: with its value behind `=`, or a switch for sure.
            if value.is_none() && words.peek().is_some_and(|next| !next.starts_with('-')) {
                return Err(Asked::Unclear);
            }
            continue;
        }
        let Some(value) = value.or_else(|| words.next()) else { return Err(Asked::Unclear) };
        if has(POOL) {
            given.pool = Some(value);
        } else if has(NAMESPACE) {
            given.namespace = Some(value);
        } else if has(IMAGE) {
            given.image = Some(value);
        } else if has(SNAPSHOT) {
            given.snapshot = Some(value);
        } else if has(DEVICE_TYPE) {
            given.device_type = Some(value);
        } else if has(SHARED) {
            given.shared = true;
        }
    }
    Ok(given)
}

/// The name of an option, and its value where that is part of the word: `--pool=kube`, `-pkube`.
fn option(word: &str) -> (String, Option<&str>) {
    if !word.starts_with("--") {
        let end = word.char_indices().nth(2).map_or(word.len(), |(end, _)| end);
        let value = &word[end..];
        return (
            word[..end].to_owned(),
            (!value.is_empty()).then(|| value.strip_prefix('=').unwrap_or(value)),
        );
    }
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    (name.replace('_', "-"), value)
}

fn call_of<'a>(command: RbdCommand, given: &Given<'a>, rest: &[&'a str]) -> Option<Call<'a>> {
    let (image, rest) = match given.image {
        Some(image) => (image, rest),
        None => rest.split_first().map(|(image, rest)| (*image, rest))?,
    };
    let (lock, locker) = match (command, rest) {
        (RbdCommand::Map, []) => (None, None),
        (RbdCommand::LockAdd, [lock]) => (Some(*lock), None),
        (RbdCommand::LockRemove, [lock, locker]) => (Some(*lock), Some(*locker)),
        _ => return None,
    };
    if locker.is_some_and(|locker| !locker.starts_with("client.")) {
        return None;
    }
    let spec = spec(image)?;
    let spec = Spec {
        pool: spec.pool.or(given.pool),
        namespace: spec.namespace.or(given.namespace),
        snapshot: spec.snapshot.or(given.snapshot),
        ..spec
    };
    Some(Call { command, spec, lock, shared: given.shared })
}

fn spec(text: &str) -> Option<Spec<'_>> {
    let (path, snapshot) = text.split_once('@').map_or((text, None), |(path, name)| (path, Some(name)));
    let parts: Vec<&str> = path.split('/').collect();
    let (pool, namespace, image) = match parts[..] {
        [image] => (None, None, image),
        [pool, image] => (Some(pool), None, image),
        [pool, namespace, image] => (Some(pool), Some(namespace), image),
        _ => return None,
    };
    Some(Spec { pool, namespace, image, snapshot })
}

impl Call<'_> {
    /// Whether all names are such that somebody can have given them.
    fn is_named(&self) -> bool {
        let is_name = |name: &str| {
            !name.is_empty()
                && name.len() <= NAME_MAX
                && !name.contains(['/', '@'])
                && !name.contains(char::is_control)
        };
        let Spec { pool, namespace, image, snapshot } = &self.spec;
        let is_lock =
            |lock: &str| !lock.is_empty() && lock.len() <= NAME_MAX && !lock.contains(char::is_control);
        is_name(image)
            && [pool, namespace, snapshot].into_iter().flatten().all(|name| is_name(name))
            && self.lock.is_none_or(is_lock)
    }
}

#[cfg(test)]
mod tests;
