//! The network of a pod: `eth0` with a /32 address and a static neighbor entry for the gateway 169.254.1.1.

use crate::netns::{Netns, Place};
use crate::process::{Ran, run};
use crate::reaper::Will;
use crate::unique;

/// The gateway that every pod of this shape shares.
pub const GATEWAY: &str = "169.254.1.1";
/// The link-layer address of the gateway.
pub const GATEWAY_LLADDR: &str = "ee:ee:ee:ee:ee:ee";

/// A veth pair: one end on the host, `eth0` in a namespace, set up as a pod's network.
#[derive(Debug)]
pub struct Pod {
    place: Place,
    host_end: String,
    address: String,
    _will: Will,
    /// Dropped last: the pair goes before its namespace.
    netns: Option<Netns>,
}

impl Pod {
    /// A pod network in a namespace of its own.
    #[must_use]
    pub fn new() -> Self {
        let netns = Netns::new();
        let mut pod = Self::at(netns.place().clone());
        pod.netns = Some(netns);
        pod
    }

    /// A pod network in a namespace that somebody else keeps.
    #[must_use]
    pub fn at(place: Place) -> Self {
        let host_end = unique::name("kvh");
        let address = unique::address(60);
        let will = Will::new(&format!("ip link del {host_end} 2>/dev/null\n"));
        run(&format!(
            "ip link add {host_end} address {GATEWAY_LLADDR} type veth peer name eth0 netns {}",
            place.handle()
        ));
        run(&format!("ip link set {host_end} up"));
        place.ip_batch(&format!(
            "address add {address}/32 dev eth0\n\
             link set eth0 up\n\
             route add {GATEWAY} dev eth0 scope link\n\
             route add default via {GATEWAY} dev eth0\n"
        ));
        let pod = Self { place, host_end, address, _will: will, netns: None };
        pod.set_gateway();
        pod
    }

    /// Makes the gateway's entry permanent, again if need be.
    pub fn set_gateway(&self) {
        self.ip(&format!("neigh replace {GATEWAY} lladdr {GATEWAY_LLADDR} dev eth0 nud permanent"));
    }

    /// Deletes the gateway's entry, by a process that ends at once.
    pub fn delete_gateway(&self) -> Ran {
        self.ip(&format!("neigh del {GATEWAY} dev eth0"))
    }

    /// Runs `ip` in the namespace.
    pub fn ip(&self, arguments: &str) -> Ran {
        self.place.run(&format!("ip {arguments}"))
    }

    /// The way into its namespace.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Inode number of its namespace.
    #[must_use]
    pub fn inum(&self) -> u64 {
        self.place.inum()
    }

    /// Name of the host's end.
    #[must_use]
    pub fn host_end(&self) -> &str {
        &self.host_end
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Name of its namespace, when it has one of its own.
    #[must_use]
    pub fn netns_name(&self) -> &str {
        self.netns.as_ref().map_or("", Netns::name)
    }

    /// Deletes the namespace first, the way a runtime does; the kernel takes the pair with it.
    pub fn delete_netns(&mut self) {
        self.netns.take().expect("a namespace of its own").delete();
    }
}

impl Default for Pod {
    fn default() -> Self {
        Self::new()
    }
}
