//! Arguments of `rbd`, which come from the kernel in one record, become calls: which image is to be mapped, unmapped or looked at,
//! or which lock is taken or taken away. Those of a `rbd-nbd` that runs tell which image it has mapped.
//!
//! They are read where they lie in the ring, and hold keys of the cluster. Nothing is copied of them but the names of the image
//! and of the lock. What cannot be understood for certain is no call: the program takes any setting of Ceph as an option, and
//! whether a word behind one that is not known here belongs to it cannot be told.

use kevtmon_observation::{ImageName, RbdCommand, RbdNumber};

/// Longest name of a pool, an image, a snapshot or a lock that is taken.
const NAME_MAX: usize = 255;
/// Where the program stands among the first words: behind the interpreter of a script and its argument.
const PROGRAM_WITHIN: usize = 3;
const RBD: &str = "rbd";
const RBD_NBD: &str = "rbd-nbd";

/// The options whose value names something, and those whose value does not matter, each as it is known: with its dashes, `_`
/// written as `-`.
const POOL: &[&str] = &["-p", "--pool"];
const NAMESPACE: &[&str] = &["--namespace"];
const IMAGE: &[&str] = &["--image"];
const SNAPSHOT: &[&str] = &["--snap"];
const SHARED: &[&str] = &["--shared", "--lock-tag"];
const DEVICE_TYPE: &[&str] = &["-t", "--device-type"];
const DEVICE: &[&str] = &["--device"];
const COOKIE: &[&str] = &["--cookie"];
const SNAPSHOT_ID: &[&str] = &["--snap-id"];
const IGNORED: &[&str] = &[
    "-c", "--conf", "-i", "--id", "-n", "--name", "--user", "-m", "--mon-host", "-k", "--keyring", "-K",
    "--keyfile", "--key", "--cluster", "--setuser", "--setgroup", "-o", "--options", "--map-options",
    "--log-file", "--admin-socket", "--quiesce-hook", "--format", "--nbds-max", "--max-part", "--timeout",
    "--io-timeout", "--reattach-timeout", "--encryption-format", "--encryption-passphrase-file",
];
const SWITCHES: &[&str] = &[
    "--read-only", "--exclusive", "--force", "--quiesce", "--show-cookie", "--no-progress", "--notrim",
    "--try-netlink", "--pretty-format", "-d", "-f", "--log-to-stderr", "--no-log-to-stderr",
    "--no-config-file",
];
/// Those with which nothing is done.
const ASKS: &[&str] = &["-h", "--help", "-v", "--version"];

#[derive(Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    Other,
    /// It may be one of the following, and is not understood.
    Unclear,
    Image(Call<'a>),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Call<'a> {
    pub command: RbdCommand,
    pub spec: Spec<'a>,
    /// Its number, where that is named instead of an image.
    pub device: Option<RbdNumber>,
    pub nbd: bool,
    pub lock: Option<&'a str>,
    pub shared: bool,
}

/// `[POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT]`
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Spec<'a> {
    pub pool: Option<&'a str>,
    pub namespace: Option<&'a str>,
    pub image: &'a str,
    pub snapshot: Option<&'a str>,
}

/// What `rbd` with these arguments was asked for.
pub fn asked(arguments: &[u8]) -> Asked<'_> {
    let Some(words) = words(arguments, RBD) else { return Asked::Unclear };
    let given = match given(&words) {
        Ok(given) => given,
        Err(asked) => return asked,
    };
    let (words, is_nbd) = match given.words[..] {
        // Before Ceph 13.
        ["nbd", ref words @ ..] => (words, true),
        ref words => (words, given.device_type == Some("nbd")),
    };
    let (command, rest) = match words {
        ["map", rest @ ..] | ["device", "map", rest @ ..] => (RbdCommand::Map, rest),
        ["unmap", rest @ ..] | ["device", "unmap", rest @ ..] => (RbdCommand::Unmap, rest),
        ["lock", "add", rest @ ..] => (RbdCommand::LockAdd, rest),
        ["lock", "remove" | "rm", rest @ ..] => (RbdCommand::LockRemove, rest),
        ["status", rest @ ..] => (RbdCommand::Status, rest),
        _ => return Asked::Other,
    };
    if given.device_type.is_some_and(|kind| !["krbd", "nbd"].contains(&kind)) {
        return Asked::Other;
    }
    call_of(command, &given, rest, is_nbd).filter(Call::is_named).map_or(Asked::Unclear, Asked::Image)
}

/// Which image a `rbd-nbd` with these arguments has mapped, and which snapshot of it; `None` where they do not tell for certain.
/// `device`: the one that it has; `backend`: the cookie that the kernel has of that, if any.
pub fn mapped_by_nbd(
    arguments: &[u8],
    device: RbdNumber,
    backend: Option<&str>,
) -> Option<(ImageName, Option<String>)> {
    let words = words(arguments, RBD_NBD)?;
    let given = given(&words).ok()?;
    let [verb @ ("map" | "attach"), ref rest @ ..] = given.words[..] else { return None };
    let call = call_of(RbdCommand::Map, &given, rest, true).filter(Call::is_named)?;
    let is_it = |path: &str| *path == format!("/dev/{device}");
    // `map` makes a cookie of its own where it is given none.
    let is_same = given.cookie == backend || verb == "map" && given.cookie.is_none();
    if !given.device.is_none_or(is_it) || backend.is_some() && !is_same {
        return None;
    }
    let Spec { pool, namespace, image, snapshot } = call.spec;
    // The default depends on the configuration of the cluster.
    let (pool, image) = (pool?.to_owned(), image.to_owned());
    Some((ImageName { pool, namespace: namespace.map(str::to_owned), image }, snapshot.map(str::to_owned)))
}

/// The device that a `rbd-nbd` with these arguments was started for, in place of one that has ended.
pub fn attached_by_nbd(arguments: &[u8]) -> Option<RbdNumber> {
    let words = words(arguments, RBD_NBD)?;
    let given = given(&words).ok()?;
    given.words.first().filter(|word| **word == "attach")?;
    given.device?.strip_prefix("/dev/nbd")?.parse().ok().map(RbdNumber::Nbd)
}

/// What comes behind the program, as text.
fn words<'a>(arguments: &'a [u8], program: &str) -> Option<Vec<&'a str>> {
    let all = arguments.strip_suffix(b"\0").unwrap_or(arguments).split(|byte| *byte == 0);
    let all: Vec<&str> = all.map(|word| std::str::from_utf8(word).ok()).collect::<Option<_>>()?;
    let is_program = |word: &&str| word.rsplit('/').next() == Some(program);
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
    device: Option<&'a str>,
    cookie: Option<&'a str>,
    has_snapshot_id: bool,
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
        let known =
            [POOL, NAMESPACE, IMAGE, SNAPSHOT, SNAPSHOT_ID, SHARED, DEVICE_TYPE, DEVICE, COOKIE, IGNORED];
        let takes_one = known.iter().any(|names| has(names));
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
        } else if has(DEVICE) {
            given.device = Some(value);
        } else if has(COOKIE) {
            given.cookie = Some(value);
        } else if has(SNAPSHOT_ID) {
            given.has_snapshot_id = true;
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

fn call_of<'a>(command: RbdCommand, given: &Given<'a>, rest: &[&'a str], nbd: bool) -> Option<Call<'a>> {
    let (image, rest) = match given.image {
        Some(image) => (image, rest),
        None => rest.split_first().map(|(image, rest)| (*image, rest))?,
    };
    // Which one that is, only the cluster knows.
    if given.has_snapshot_id {
        return None;
    }
    let (lock, locker) = match (command, rest) {
        (RbdCommand::Map | RbdCommand::Unmap | RbdCommand::Status, []) => (None, None),
        (RbdCommand::LockAdd, [lock]) => (Some(*lock), None),
        (RbdCommand::LockRemove, [lock, locker]) => (Some(*lock), Some(*locker)),
        _ => return None,
    };
    if locker.is_some_and(|locker| !locker.starts_with("client.")) {
        return None;
    }
    let number = |prefix: &str| image.strip_prefix(prefix).and_then(|number| number.parse::<u32>().ok());
    let device = match nbd {
        false => number("/dev/rbd").map(RbdNumber::Kernel),
        true => number("/dev/nbd").map(RbdNumber::Nbd),
    };
    if command == RbdCommand::Unmap && device.is_some() {
        return Some(Call { command, spec: Spec::default(), device, nbd, lock, shared: false });
    }
    // As udev names the devices.
    let of_device = image.strip_prefix("/dev/rbd/").filter(|_| command == RbdCommand::Unmap);
    let spec = spec(of_device.unwrap_or(image))?;
    let spec = Spec {
        pool: spec.pool.or(given.pool),
        namespace: spec.namespace.or(given.namespace),
        snapshot: spec.snapshot.or(given.snapshot),
        ..spec
    };
    Some(Call { command, spec, device: None, nbd, lock, shared: given.shared })
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
        (is_name(image) || self.device.is_some())
            && [pool, namespace, snapshot].into_iter().flatten().all(|name| is_name(name))
            && self.lock.is_none_or(is_lock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Vec<u8> {
        line.split(' ').flat_map(|word| format!("{word}\0").into_bytes()).collect()
    }

    #[test]
    fn the_arguments_of_rbd_nbd_tell_its_image_or_nothing() {
        let shown = |line: &str| {
            let (ImageName { pool, namespace, image }, snapshot) =
                mapped_by_nbd(&arguments(line), RbdNumber::Nbd(3), None)?;
            let namespace = namespace.map_or_else(String::new, |name| format!("{name}/"));
            Some(format!(
                "{pool}/{namespace}{image}{}",
                snapshot.map_or_else(String::new, |name| format!("@{name}"))
            ))
        };
        for (line, expected) in [
            ("rbd-nbd map kube/index", "kube/index"),
            (
                "/usr/bin/rbd-nbd --id admin --keyfile /k map kube/team-a/index@nightly --try-netlink",
                "kube/team-a/index@nightly",
            ),
            (
                "rbd-nbd map --device /dev/nbd3 --io_timeout 0 --reattach-timeout=300 -p kube index",
                "kube/index",
            ),
            ("rbd-nbd attach --device=/dev/nbd3 kube/index --cookie c", "kube/index"),
            (
                "rbd-nbd --pool kube --nbds_max 16 --max_part 8 --exclusive --read-only map --image index",
                "kube/index",
            ),
        ] {
            assert_eq!(shown(line).as_deref(), Some(expected), "{line}");
        }
        for line in [
            "rbd-nbd map index",
            "rbd-nbd map --device /dev/nbd4 kube/index",
            "rbd-nbd map --snap-id 7 kube/index",
            "rbd-nbd map --unheard-of kube/index",
            "rbd-nbd map kube/index other",
            "rbd-nbd unmap kube/index",
            "rbd-nbd list-mapped",
            "rbd-nbd",
            "something",
        ] {
            assert_eq!(shown(line), None, "{line}");
        }
        assert_eq!(mapped_by_nbd(b"rbd-nbd\0map\0kube/\xff\0", RbdNumber::Nbd(3), None), None);
        assert_eq!(mapped_by_nbd(b"", RbdNumber::Nbd(3), None), None);
    }

    #[test]
    fn arguments_with_another_cookie_than_the_kernel_has_tell_nothing() {
        let tells = |line: &str, backend: Option<&str>| {
            mapped_by_nbd(&arguments(line), RbdNumber::Nbd(3), backend).is_some()
        };
        let line = "rbd-nbd map kube/index --cookie vol-1";
        assert!(tells(line, None) && tells(line, Some("vol-1")));
        assert!(!tells(line, Some("vol-2")));
        assert!(tells("rbd-nbd map kube/index", Some("made-by-rbd-nbd")));
        assert!(!tells("rbd-nbd attach kube/index --device /dev/nbd3", Some("vol-1")));
    }

    #[test]
    fn what_is_attached_names_its_device() {
        let device = |line: &str| attached_by_nbd(&arguments(line));
        for line in [
            "rbd-nbd attach kube/index --device /dev/nbd3 --cookie=vol-1",
            "/usr/bin/rbd-nbd --device=/dev/nbd3 attach kube/index",
        ] {
            assert_eq!(device(line), Some(RbdNumber::Nbd(3)), "{line}");
        }
        for line in [
            "rbd-nbd map kube/index --device /dev/nbd3",
            "rbd-nbd attach kube/index",
            "rbd-nbd attach kube/index --device /dev/rbd3",
            "rbd-nbd",
        ] {
            assert_eq!(device(line), None, "{line}");
        }
    }
}
