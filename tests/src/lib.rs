//! The harness of the end-to-end tests: a real kernel, real namespaces, mounts, containers, and the real daemon.
//!
//! A scenario sets up what it needs by guards, starts the daemon, lets a short-lived process do the harm, and
//! waits for what the daemon prints. Every guard cleans up when dropped; what a killed test process leaves
//! behind is cleaned up by the [`reaper`]. Names are unique, so scenarios run side by side. The harness
//! uses the daemon's command line, its JSON and its metrics, and none of its internals.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a set-up that fails must fail its test, with a backtrace"
)]

pub mod patience;
pub mod reaper;

pub mod actor;
pub mod balance;
pub mod bpf;
pub mod certificate;
pub mod cgroup;
pub mod component;
pub mod process;
pub mod random;
pub mod unique;

pub mod busy_volumes;
pub mod disk;
pub mod file_systems;
pub mod fuse;
pub mod glusterfs;
pub mod journald;
pub mod kernel;
pub mod loop_device;
pub mod mount;
pub mod netns;
pub mod network;
pub mod nfs;
pub mod pod;
pub mod pod_sandbox;
pub mod requests;
pub mod seccomp;
pub mod storm;
pub mod stranger;
pub mod tree;
pub mod user_network;

pub mod by_name;
pub mod call_listener;
pub mod cluster;
pub mod cni_call;
pub mod container;
pub mod containerd;
pub mod cri;
pub mod dockerd;
pub mod fake_dockerd;
pub mod image;
pub mod kubelet;
pub mod listener;
pub mod own_node;
pub mod podman;
pub mod rbd_call;
pub mod runc;

pub mod advice;
pub mod daemon;
pub mod daemon_set;
pub mod debian;
pub mod delivered;
pub mod event;
pub mod helm;
pub mod http;
pub mod prometheus;
pub mod scrape;
pub mod stream;
pub mod terminal;

pub mod limits;
pub mod usage;

pub mod lock;
