//! Identity of kernel namespaces.

/// Inode number of a namespace, as `/proc/PID/ns/*` shows it (`ns_common.inum`). The kernel reuses it.
pub type NsInum = u32;
