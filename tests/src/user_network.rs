//! The network of an unprivileged user: a namespace in a user namespace that he made, with a link that has neighbors.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use crate::netns::NetnsPath;
use crate::patience::wait_until;
use crate::process::Running;

/// The namespace, as long as a process of his is in it.
#[derive(Debug)]
pub struct UserNetwork {
    netns: NetnsPath,
    _process: Running,
}

impl UserNetwork {
    /// Has this user make one.
    #[must_use]
    pub fn of(uid: u32) -> Self {
        let mut command = as_user(uid);
        command.args(["unshare", "-Urn", "sleep", "1000000"]);
        let process = Running::spawn(&mut command);
        let netns = NetnsPath::of_process(process.pid());
        let here = NetnsPath::of_process(std::process::id()).inum();
        wait_until("it has a namespace of its own", || (netns.inum() != here).then_some(()));
        netns.network(|network| {
            network.add_bridge("eth0")?;
            network.add_address("eth0", Ipv4Addr::new(10, 76, 0, 1), 8)?;
            network.set_up("eth0", true)
        });
        Self { netns, _process: process }
    }

    /// The namespace.
    #[must_use]
    pub fn netns(&self) -> &NetnsPath {
        &self.netns
    }

    /// Inode number of the namespace.
    #[must_use]
    pub fn inum(&self) -> u64 {
        self.netns.inum()
    }
}

/// A command of a user without any rights.
#[must_use]
pub fn as_user(uid: u32) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups");
    command.stdin(Stdio::null());
    command
}
