//! What the objects of events have in common: each reports the parties of the event and describes itself as text,
//! so that indexes, filters, queries and text output handle all objects alike.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Container, Pod};

/// An object that events are about: one per family of kinds.
pub trait Object {
    /// Reports the parties of the event; none by default.
    fn visit(&self, _visitor: &mut dyn Visitor) {}

    /// Describes it as text; nothing by default, where the message of the event is enough.
    fn describe(&self, _details: &mut dyn Details) {}
}

/// Takes the description of an object, line by line.
pub trait Details {
    /// A line behind a label of at most six characters; an empty label continues the line above. Control characters
    /// need not be escaped.
    fn line(&mut self, label: &str, text: &str);

    /// A time of the schema, in the reader's format.
    fn clock(&self, time: &str) -> String;
}

/// The role of a party in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It is what the event is about: the entry, the link, the mount.
    Object,
    /// It happened to it.
    Target,
    Actor,
    /// It holds the mount.
    Holder,
    /// It serves the file system.
    Server,
    /// It is the other end.
    Peer,
}

/// Takes the parties of an event; some more than once.
pub trait Visitor {
    fn process(&mut self, role: Role, pid: u32, comm: &str);
    fn container(&mut self, role: Role, container: &Container);
    fn pod(&mut self, role: Role, pod: &Pod);
    /// A pod of which only the uid is known.
    fn pod_uid(&mut self, _role: Role, _uid: &str) {}
    /// A network interface; its name is not always known.
    fn interface(&mut self, role: Role, netns: u32, ifindex: u32, ifname: Option<&str>);
    /// A network interface of which only the name is known.
    fn interface_name(&mut self, _role: Role, _ifname: &str) {}
    /// Address of a neighbor entry or gateway.
    fn neighbor_address(&mut self, role: Role, address: IpAddr);
    fn path(&mut self, _role: Role, _path: &str) {}
    /// A pod volume, by name.
    fn volume(&mut self, role: Role, name: &str);
    /// The device of a file system, `major:minor`.
    fn device(&mut self, role: Role, device: &str);
    /// A network namespace of which only the name is known.
    fn namespace(&mut self, role: Role, name: &str);
    fn incident(&mut self, _role: Role, _id: &str) {}

    /// The container and pod that something belongs to.
    fn owner(&mut self, role: Role, container: Option<&Container>, pod: Option<&Pod>) {
        if let Some(container) = container {
            self.container(role, container);
        }
        if let Some(pod) = pod {
            self.pod(role, pod);
        }
    }
}
