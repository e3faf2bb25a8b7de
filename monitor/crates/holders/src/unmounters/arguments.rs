//! What the arguments of a program say that it unmounts.
//!
//! They are anybody's to choose and to write over, so they are never certain. Where they may mean another file system than the
//! one that is named, they say nothing.

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

/// What is to be unmounted, paths or devices, and values of options. Nothing where that may be more than is named (`-a`, `-A`,
/// `-R`), or is named in another mount namespace (`-N`).
pub(super) fn operands(arguments: &str) -> Vec<&str> {
    let arguments = arguments.strip_suffix('\0').unwrap_or(arguments);
    let (options, operands): (Vec<&str>, Vec<&str>) =
        arguments.split('\0').skip(1).partition(|argument| argument.starts_with('-'));
    if options.into_iter().any(is_wide) { Vec::new() } else { operands }
}

fn is_wide(option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(long) => ["a", "na", "rec"].iter().any(|wide| long.starts_with(wide)),
        None => option.contains(['a', 'A', 'N', 'R']),
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
    fn options_are_not_unmounted() {
        for arguments in [
            "umount\0/v\0",
            "umount\0-f\0/v\0",
            "umount\0-lf\0--read-only\0--no-mtab\0/v\0",
            "umount\0--\0/v\0",
            "umount.nfs\0/v\0-f\0",
            "fusermount3\0--unmount\0--quiet\0--lazy\0--\0/v\0",
        ] {
            assert_eq!(operands(arguments), ["/v"], "{arguments:?}");
        }
        assert_eq!(operands("umount\0-t\0nfs\0/v\0\0"), ["nfs", "/v", ""]);
    }

    #[test]
    fn what_may_unmount_more_than_is_named_or_somewhere_else_names_nothing() {
        for option in ["-a", "-A", "-R", "-lR", "-N\x00123", "--all", "--namespace=1", "--rec"] {
            assert_eq!(operands(&format!("umount\0{option}\0/v\0")), [""; 0], "{option:?}");
        }
        for arguments in ["", "umount\0", "umount: waits for /v"] {
            assert_eq!(operands(arguments), [""; 0], "{arguments:?}");
        }
    }
}
