//! What the arguments of a program say that it unmounts.
//!
//! They are anybody's to choose and to write over, so they are never certain. Where they may mean another file system than the
//! one that is named, they say nothing.

/// Short options without a value, of `umount`, its helpers and `fusermount`.
const FLAGS: &str = "cdfilnqruvz";
const VALUED: &str = "oOt";
const LONG_FLAGS: [&str; 11] = [
    "detach-loop", "fake", "force", "internal-only", "lazy", "no-canonicalize", "no-mtab", "quiet",
    "read-only", "unmount", "verbose",
];
const LONG_VALUED: [&str; 2] = ["test-opts", "types"];

/// Whether a program of that name unmounts. The same ones mount: those of NFS by another name, that of FUSE with other
/// arguments.
pub(super) fn is_unmounting(comm: &str, arguments: &str) -> bool {
    let mut arguments = arguments.split('\0').skip(1);
    match comm {
        "umount" => true,
        "fusermount" | "fusermount3" => arguments.any(|argument| {
            // What follows an `o` is its value.
            let mut short = argument.strip_prefix('-').unwrap_or_default().chars().take_while(|c| *c != 'o');
            argument == "--unmount" || !argument.starts_with("--") && short.any(|c| c == 'u')
        }),
        _ => comm.starts_with("umount."),
    }
}

/// What is to be unmounted: paths or devices. Nothing where that may be more than is named (`-a`, `-A`, `-R`), or is named in
/// another mount namespace (`-N`), and with an option that is not known.
pub(super) fn operands(arguments: &str) -> Vec<&str> {
    operands_of(arguments).unwrap_or_default()
}

fn operands_of(arguments: &str) -> Option<Vec<&str>> {
    let arguments = arguments.strip_suffix('\0').unwrap_or(arguments);
    let mut arguments = arguments.split('\0').skip(1);
    let mut operands = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            operands.extend(arguments);
            break;
        }
        let has_value_next = match (argument.strip_prefix("--"), argument.strip_prefix('-')) {
            (Some(long), _) => is_long_with_value_next(long)?,
            (None, Some(short)) if !short.is_empty() => is_short_with_value_next(short)?,
            _ => {
                operands.push(argument);
                false
            }
        };
        if has_value_next {
            arguments.next()?;
        }
    }
    Some(operands)
}

/// Whether the argument after it is its value; `None` for an option that is not known or means more.
fn is_long_with_value_next(option: &str) -> Option<bool> {
    match option.split_once('=') {
        Some((name, _)) => LONG_VALUED.contains(&name).then_some(false),
        None if LONG_FLAGS.contains(&option) => Some(false),
        None => LONG_VALUED.contains(&option).then_some(true),
    }
}

/// The same of letters, of which the first that takes a value takes those after it.
fn is_short_with_value_next(letters: &str) -> Option<bool> {
    let flags = letters.trim_start_matches(|letter| FLAGS.contains(letter));
    match flags.chars().next() {
        None => Some(false),
        Some(letter) => VALUED.contains(letter).then_some(flags.len() == letter.len_utf8()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mounts_is_not_taken_to_unmount() {
        for (comm, arguments, expected) in [
            ("umount", "umount\0/v\0", true),
            ("umount.nfs4", "umount.nfs4\0/v\0", true),
            ("mount.nfs", "mount.nfs\0server:/x\0/v\0", false),
            ("fusermount3", "fusermount3\0-u\0-z\0/v\0", true),
            ("fusermount", "fusermount\0-uz\0/v\0", true),
            ("fusermount", "fusermount\0-o\0rw\0--\0/mnt/u\0", false),
            ("fusermount", "fusermount\0-ouser=a\0/v\0", false),
            ("busybox", "busybox\0mount\0", false),
        ] {
            assert_eq!(is_unmounting(comm, arguments), expected, "{arguments:?}");
        }
    }

    #[test]
    fn values_of_options_are_not_unmounted() {
        for arguments in [
            "umount\0/v\0",
            "umount\0-f\0/v\0",
            "umount\0-lt\0nfs,/w\0/v\0",
            "umount\0-tnfs\0-O\0/w\0/v\0",
            "umount\0--types\0/w\0--test-opts=/w\0--lazy\0/v\0",
            "umount\0--\0/v\0",
            "umount.nfs\0/v\0-f\0-t\0fuse./w\0",
            "fusermount3\0-uz\0-o\0/w\0/v\0",
        ] {
            assert_eq!(operands(arguments), ["/v"], "{arguments:?}");
        }
        assert_eq!(operands("umount\0/v\0\0w\0--\0-a\0-\0"), ["/v", "", "w", "-a", "-"]);
    }

    #[test]
    fn what_may_unmount_more_than_is_named_or_somewhere_else_names_nothing() {
        for option in
            ["-a", "-A", "-R", "-lR", "-N\x00123", "--all", "--recursive", "--rec", "--lazy=x", "-x", "-fä"]
        {
            assert_eq!(operands(&format!("umount\0{option}\0/v\0")), [""; 0], "{option:?}");
        }
        for arguments in ["", "umount\0", "umount: waits for /v", "umount\0/v\0-t\0"] {
            assert_eq!(operands(arguments), [""; 0], "{arguments:?}");
        }
    }
}
