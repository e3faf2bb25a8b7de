//! Where the kernel keeps what the programs read: resolved from the running kernel's type information
//! by the daemon, and written into the programs before they are loaded.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A member that this kernel does not have.
pub const MISSING: u32 = u32::MAX;

/// Byte offsets, each from the start of the structure named first.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "each field is named STRUCT_MEMBER after the kernel")]
pub struct Offsets {
    pub neighbour_dev: u32,
    pub neighbour_tbl: u32,
    pub neighbour_nud_state: u32,
    pub neighbour_dead: u32,
    pub neighbour_ha: u32,
    pub neighbour_primary_key: u32,
    pub neigh_table_family: u32,
    pub net_device_ifindex: u32,
    pub net_device_flags: u32,
    pub net_device_name: u32,
    pub net_device_nd_net: u32,
    pub net_device_addr_len: u32,
    pub net_device_dev_addr: u32,
    pub net_device_unreg_list: u32,
    pub net_device_ip_ptr: u32,
    pub in_device_ifa_list: u32,
    pub net_ns_inum: u32,
    pub task_flags: u32,
    pub task_group_leader: u32,
    pub task_real_parent: u32,
    pub task_tgid: u32,
    pub task_start_boottime: u32,
    pub task_self_exec_id: u32,
    pub task_comm: u32,
    pub task_mm: u32,
    pub task_nsproxy: u32,
    pub task_cgroups: u32,
    pub mm_arg_start: u32,
    pub mm_arg_end: u32,
    pub mm_exe_file: u32,
    pub file_dentry: u32,
    pub dentry_parent: u32,
    pub dentry_name: u32,
    pub nsproxy_net_ns: u32,
    pub nsproxy_mnt_ns: u32,
    pub mnt_namespace_inum: u32,
    /// `css_set.subsys[]` of the v1 controller that names containers.
    pub css_set_subsys: u32,
    pub css_set_dfl_cgrp: u32,
    pub css_cgroup: u32,
    pub cgroup_kn: u32,
    pub kernfs_parent: u32,
    pub kernfs_name: u32,
    /// Not an offset: the bit `NEIGH_UPDATE_F_ADMIN`, 7 since 5.16, 31 before.
    pub admin_flag: u32,
    /// Zero; keeps the size even.
    pub reserved: u32,
}

impl Offsets {
    /// What the programs hold until the daemon fills it in.
    pub const ZERO: Self = zerocopy::transmute!([0u32; 44]);
}

const _: () = assert!(size_of::<Offsets>() == 44 * 4);
