//! Identity of kernel namespaces.

/// Inode number of a namespace, as `/proc/PID/ns/*` shows it (`ns_common.inum`). The kernel reuses it.
pub type NsInum = u32;

/// Whether a network namespace with this cookie (`SO_NETNS_COOKIE`) may be that with this lower half of one: a number is that of
/// another one as soon as the namespace has ended.
pub fn may_have_cookie(half: Option<u32>, cookie: Option<u64>) -> bool {
    half.zip(cookie).is_none_or(|(half, cookie)| cookie & u64::from(u32::MAX) == u64::from(half))
}
