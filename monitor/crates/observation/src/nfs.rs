//! Servers of NFS, as the client of the kernel knows them.

use kevtmon_types::is_zero::is_zero;
use kevtmon_types::names::names;
use serde::{Deserialize, Serialize};

use super::NsInum;

names! {
    /// What the kernel's log says of a server.
    NfsSays {
        /// A call waits for it, and goes on to.
        Waiting = "waiting",
        /// A call of a soft mount has failed.
        TimedOut = "timed-out",
        /// A call that waited was answered.
        Answers = "answers",
    }
}

/// A line of the kernel's log about a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsServerLine {
    /// As in the sources of mounts.
    pub server: String,
    pub says: NfsSays,
    /// Whether it is about its lock manager (`lockd`), which is a service of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lockd: bool,
}

/// The mounts of a server in the host's mount namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsMounts {
    pub server: String,
    pub mntns: NsInum,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<NfsMount>,
    /// How many are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsMount {
    pub source: String,
    pub path: String,
    /// Replies that its transports have received since they were made.
    pub replies: u64,
}

/// The server of a source: what is before the colon, of an IPv6 address what is in brackets (`nfs_parse_devname`,
/// fs/nfs/super.c).
pub fn nfs_server(source: &str) -> Option<&str> {
    let (server, _) = match source.strip_prefix('[') {
        Some(rest) => rest.split_once("]:")?,
        None => source.split_once(':')?,
    };
    Some(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_of_a_source_is_named_as_the_kernel_names_it() {
        for (source, server) in [
            ("nas1:/export/a:b", Some("nas1")),
            ("10.0.0.9:/", Some("10.0.0.9")),
            ("[fd00::9]:/export", Some("fd00::9")),
            ("[fd00::9]/export", None),
            ("/dev/sda1", None),
        ] {
            assert_eq!(nfs_server(source), server, "{source}");
        }
    }
}
