//! The model of the node: its state and the owners of its objects. No I/O, no clock.

pub mod cgroup;
pub mod charge;
pub mod cni;
pub mod components;
pub mod container_path;
pub mod containers;
pub mod gateways;
pub mod incarnations;
pub mod kubelet;
pub mod link_acts;
pub mod mounts;
pub mod namespaces;
pub mod own_mounts;
pub mod owner;
pub mod pod_remains;
pub mod pods;
pub mod rbd;
pub mod rbd_locks;
pub mod routing;
pub mod tasks;
pub mod veth_names;
pub mod view;
pub mod volume;
