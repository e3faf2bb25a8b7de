//! What the harness changes in a network namespace, by requests to rtnetlink. A culprit is a process of its own instead
//! (`Pod::ip`), since the daemon is to name it.
//!
//! A socket keeps its namespace alive, and with it the other ends of its links. So each use of another namespace is a
//! closure on a thread that ends with it.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use nix::sched::{CloneFlags, setns};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteScope};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tokio::runtime::{Builder, Runtime};

pub use rtnetlink::packet_route::neighbour::NeighbourState;

/// A link-layer address.
pub type Lladdr = [u8; 6];

/// Does something in the network namespace at `path`, on a thread that ends with it: what is started there stays in it.
///
/// # Errors
/// When it cannot be entered.
pub fn enter<T: Send>(path: &Path, act: impl FnOnce() -> T + Send) -> Result<T, NetworkError> {
    let file = open(path)?;
    let run = || match setns(file, CloneFlags::CLONE_NEWNET) {
        Ok(()) => Ok(act()),
        Err(errno) => Err(NetworkError::Enter { path: path.to_owned(), source: errno.into() }),
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

/// Queries or changes something in the namespace of this process; panics unless that succeeds.
pub fn on_host<T>(act: impl FnOnce(&Network) -> Result<T, NetworkError>) -> T {
    Network::here().and_then(|network| act(&network)).unwrap_or_else(|error| panic!("{error:?}"))
}

/// Reads `ee:ee:ee:ee:ee:ee`.
#[must_use]
pub fn lladdr(text: &str) -> Option<Lladdr> {
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<Vec<_>>>()?;
    bytes.try_into().ok()
}

/// Addresses of a storm that are on their way at a time: the answers fit the socket's buffer.
const PIPELINE: usize = 64;

/// Why the network is not as it was to be.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The namespace is gone, or is not for this user.
    #[error("cannot enter the network namespace {}", .path.display())]
    Enter {
        /// Where it is.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No socket.
    #[error("cannot open a netlink socket")]
    Open(#[source] io::Error),
    /// The kernel refused.
    #[error("rtnetlink refused: {request}")]
    Refused {
        /// The request, in the words of `ip`.
        request: String,
        /// Its answer.
        #[source]
        source: rtnetlink::Error,
    },
    /// There is no such thing.
    #[error("there is no {0}")]
    Missing(String),
}

/// A neighbor entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbor {
    /// Its address.
    pub address: IpAddr,
    /// Whether it stays until it is deleted.
    pub permanent: bool,
    /// Its link-layer address, if it is known.
    pub lladdr: Option<Vec<u8>>,
}

/// Requests in one network namespace.
#[derive(Debug)]
pub struct Network {
    runtime: Runtime,
    handle: Handle,
}

impl Network {
    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// When there is no socket.
    pub fn here() -> Result<Self, NetworkError> {
        let runtime =
            Builder::new_current_thread().enable_io().enable_time().build().map_err(NetworkError::Open)?;
        let entered = runtime.enter();
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetworkError::Open)?;
        drop(entered);
        // It is polled while a request waits for its answer.
        runtime.spawn(connection);
        Ok(Self { runtime, handle })
    }

    /// Uses the namespace at `path`.
    ///
    /// # Errors
    /// When it cannot be entered, or `act` fails.
    pub fn within<T: Send>(
        path: &Path,
        act: impl FnOnce(&Self) -> Result<T, NetworkError> + Send,
    ) -> Result<T, NetworkError> {
        enter(path, || Self::here().and_then(|network| act(&network)))?
    }

    fn run<T>(
        &self,
        request: impl FnOnce() -> String,
        answer: impl Future<Output = Result<T, rtnetlink::Error>>,
    ) -> Result<T, NetworkError> {
        let answer = self.runtime.block_on(answer);
        answer.map_err(|source| NetworkError::Refused { request: request(), source })
    }

    /// The index of a link.
    ///
    /// # Errors
    /// When there is no such link.
    pub fn index(&self, link: &str) -> Result<u32, NetworkError> {
        let mut links = self.handle.link().get().match_name(link).execute();
        let found = self.run(|| format!("link show {link}"), links.try_next())?;
        found.map(|link| link.header.index).ok_or_else(|| NetworkError::Missing(format!("link {link}")))
    }

    /// Adds a pair of veth devices: one here, with this link-layer address if one is given, the other in the namespace
    /// at `peer_netns`.
    ///
    /// # Errors
    /// When a name is taken, or the namespace is gone.
    pub fn add_veth(
        &self,
        name: &str,
        lladdr: Option<Lladdr>,
        peer: &str,
        peer_netns: &Path,
    ) -> Result<(), NetworkError> {
        let netns = open(peer_netns)?;
        let other = LinkUnspec::new_with_name(peer).setns_by_fd(netns.as_raw_fd()).build();
        let mut link = LinkVeth::new(name, peer).set_info_data(InfoData::Veth(InfoVeth::Peer(other)));
        if let Some(lladdr) = lladdr {
            link = link.address(lladdr.to_vec());
        }
        let request = || format!("link add {name} type veth peer name {peer}");
        self.run(request, self.handle.link().add(link.build()).execute())
    }

    /// Adds a bridge that is up.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn add_bridge(&self, name: &str) -> Result<(), NetworkError> {
        let link = LinkBridge::new(name).build();
        self.run(|| format!("link add {name} type bridge"), self.handle.link().add(link).execute())
    }

    fn set_link(&self, request: impl FnOnce() -> String, link: LinkMessage) -> Result<(), NetworkError> {
        self.run(request, self.handle.link().set(link).execute())
    }

    /// Sets a link up or down.
    ///
    /// # Errors
    /// When it is gone.
    pub fn set_up(&self, link: &str, up: bool) -> Result<(), NetworkError> {
        let message = LinkUnspec::new_with_index(self.index(link)?);
        let message = if up { message.up() } else { message.down() };
        let request = || format!("link set {link} {}", if up { "up" } else { "down" });
        self.set_link(request, message.build())
    }

    /// Gives a link another link-layer address.
    ///
    /// # Errors
    /// When the link is gone.
    pub fn set_lladdr(&self, link: &str, lladdr: Lladdr) -> Result<(), NetworkError> {
        let message = LinkUnspec::new_with_index(self.index(link)?).address(lladdr.to_vec()).build();
        self.set_link(|| format!("link set {link} address"), message)
    }

    /// Moves a link to the namespace at `netns`.
    ///
    /// # Errors
    /// When the link or the namespace is gone, or the name is taken there.
    pub fn move_link(&self, link: &str, netns: &Path) -> Result<(), NetworkError> {
        let file = open(netns)?;
        let message = LinkUnspec::new_with_index(self.index(link)?).setns_by_fd(file.as_raw_fd()).build();
        self.set_link(|| format!("link set {link} netns {}", netns.display()), message)
    }

    /// Deletes a link, and a veth device's peer with it.
    ///
    /// # Errors
    /// When it is gone.
    pub fn delete_link(&self, link: &str) -> Result<(), NetworkError> {
        let index = self.index(link)?;
        self.run(|| format!("link del {link}"), self.handle.link().del(index).execute())
    }

    /// Gives a link an address.
    ///
    /// # Errors
    /// When the link is gone, or has the address.
    pub fn add_address(&self, link: &str, address: Ipv4Addr, prefix: u8) -> Result<(), NetworkError> {
        let index = self.index(link)?;
        let request = || format!("address add {address}/{prefix} dev {link}");
        self.run(request, self.handle.address().add(index, address.into(), prefix).execute())
    }

    /// Adds the route to an address on the link itself, and the default route through it.
    ///
    /// # Errors
    /// When the link is down or gone, or has such a route.
    pub fn add_gateway(&self, link: &str, gateway: Ipv4Addr) -> Result<(), NetworkError> {
        let index = self.index(link)?;
        let direct = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(gateway, 32);
        let direct = direct.output_interface(index).scope(RouteScope::Link).build();
        let request = || format!("route add {gateway} dev {link} scope link");
        self.run(request, self.handle.route().add(direct).execute())?;
        let default = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).output_interface(index).build();
        let request = || format!("route add default via {gateway} dev {link}");
        self.run(request, self.handle.route().add(default).execute())
    }

    /// The gateway of the default route.
    ///
    /// # Errors
    /// When there is none.
    pub fn default_gateway(&self) -> Result<Ipv4Addr, NetworkError> {
        let all = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let routes = self.handle.route().get(all).execute().try_collect::<Vec<_>>();
        let routes = self.run(|| "route show".to_owned(), routes)?;
        let defaults = routes.iter().filter(|route| route.header.destination_prefix_length == 0);
        let gateways = defaults.flat_map(|route| &route.attributes).filter_map(|attribute| match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(gateway)) => Some(*gateway),
            _ => None,
        });
        gateways.into_iter().next().ok_or_else(|| NetworkError::Missing("default gateway".to_owned()))
    }

    /// The neighbor entries of a link.
    ///
    /// # Errors
    /// When the link is gone.
    pub fn neighbors(&self, link: &str) -> Result<Vec<Neighbor>, NetworkError> {
        let index = self.index(link)?;
        let dump = self.handle.neighbours().get().execute().try_collect::<Vec<_>>();
        let entries = self.run(|| "neigh show".to_owned(), dump)?;
        Ok(entries.iter().filter(|entry| entry.header.ifindex == index).filter_map(neighbor).collect())
    }

    /// Adds a neighbor entry, or replaces the one of this address.
    ///
    /// # Errors
    /// When the link is gone.
    pub fn set_neighbor(
        &self,
        link: &str,
        address: IpAddr,
        lladdr: Lladdr,
        state: NeighbourState,
    ) -> Result<(), NetworkError> {
        let index = self.index(link)?;
        let request = || format!("neigh replace {address} dev {link} nud {state:?}");
        self.run(request, set_neighbor(&self.handle, index, address, lladdr, state))
    }

    /// Has the kernel look for a neighbor, as if a packet were sent to it.
    ///
    /// # Errors
    /// When the link is gone.
    pub fn probe_neighbor(&self, link: &str, address: IpAddr) -> Result<(), NetworkError> {
        let index = self.index(link)?;
        let request = self.handle.neighbours().add(index, address).replace();
        let request = request.state(NeighbourState::None).flags(NeighbourFlags::Use);
        self.run(|| format!("neigh replace {address} dev {link} use"), request.execute())
    }

    /// Deletes a neighbor entry.
    ///
    /// # Errors
    /// When the link or the entry is gone.
    pub fn delete_neighbor(&self, link: &str, address: IpAddr) -> Result<(), NetworkError> {
        let index = self.index(link)?;
        self.run(|| format!("neigh del {address} dev {link}"), delete_neighbor(&self.handle, index, address))
    }

    /// Adds a permanent entry for each address and deletes it, in this order, without waiting for each answer.
    ///
    /// # Errors
    /// When the link is gone.
    pub fn churn_neighbors(
        &self,
        link: &str,
        addresses: impl IntoIterator<Item = Ipv4Addr>,
    ) -> Result<(), NetworkError> {
        let index = self.index(link)?;
        let request = |address| async move {
            let set = set_neighbor(&self.handle, index, address, STORM_LLADDR, NeighbourState::Permanent);
            // Requests are sent in the order in which they are polled first.
            futures_util::try_join!(set, delete_neighbor(&self.handle, index, address)).map(drop)
        };
        self.pipeline(|| format!("neigh replace and del on {link}"), request, addresses)
    }

    /// Adds a permanent entry for each address, without waiting for each answer.
    ///
    /// # Errors
    /// When the link is gone.
    pub fn set_neighbors(
        &self,
        link: &str,
        addresses: impl IntoIterator<Item = Ipv4Addr>,
    ) -> Result<(), NetworkError> {
        let index = self.index(link)?;
        let request =
            |address| set_neighbor(&self.handle, index, address, STORM_LLADDR, NeighbourState::Permanent);
        self.pipeline(|| format!("neigh replace on {link}"), request, addresses)
    }

    /// Deletes the entry of each address, without waiting for each answer.
    ///
    /// # Errors
    /// When the link or an entry is gone.
    pub fn delete_neighbors(
        &self,
        link: &str,
        addresses: impl IntoIterator<Item = Ipv4Addr>,
    ) -> Result<(), NetworkError> {
        let index = self.index(link)?;
        let request = |address| delete_neighbor(&self.handle, index, address);
        self.pipeline(|| format!("neigh del on {link}"), request, addresses)
    }

    fn pipeline<F: Future<Output = Result<(), rtnetlink::Error>>>(
        &self,
        name: impl Fn() -> String,
        request: impl Fn(IpAddr) -> F,
        addresses: impl IntoIterator<Item = Ipv4Addr>,
    ) -> Result<(), NetworkError> {
        let mut addresses = addresses.into_iter().peekable();
        while addresses.peek().is_some() {
            let requests = addresses.by_ref().take(PIPELINE).map(|address| request(address.into()));
            self.run(&name, try_join_all(requests))?;
        }
        Ok(())
    }
}

/// The link-layer address of all entries of a storm.
const STORM_LLADDR: Lladdr = [0x02, 0, 0, 0, 0, 0x0f];

fn open(netns: &Path) -> Result<File, NetworkError> {
    File::open(netns).map_err(|source| NetworkError::Enter { path: netns.to_owned(), source })
}

fn set_neighbor(
    handle: &Handle,
    index: u32,
    address: IpAddr,
    lladdr: Lladdr,
    state: NeighbourState,
) -> impl Future<Output = Result<(), rtnetlink::Error>> {
    handle.neighbours().add(index, address).link_layer_address(&lladdr).state(state).replace().execute()
}

fn delete_neighbor(
    handle: &Handle,
    index: u32,
    address: IpAddr,
) -> impl Future<Output = Result<(), rtnetlink::Error>> {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = index;
    let (family, destination) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
    };
    message.header.family = family;
    message.attributes.push(NeighbourAttribute::Destination(destination));
    handle.neighbours().del(message).execute()
}

fn neighbor(message: &NeighbourMessage) -> Option<Neighbor> {
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some((*address).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some((*address).into()),
        _ => None,
    })?;
    let lladdr = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(lladdr) => Some(lladdr.clone()),
        _ => None,
    });
    Some(Neighbor { address, permanent: message.header.state == NeighbourState::Permanent, lladdr })
}
