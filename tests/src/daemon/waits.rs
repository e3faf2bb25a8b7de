//! What a test waits for: that the model has something, that an event comes, that all before it was printed.

use std::path::Path;

use nix::mount::{MsFlags, mount, umount};

use super::Daemon;
use crate::event::Event;
use crate::eventually;
use crate::http;
use crate::mount::Mount;
use crate::patience::wait_until;
use crate::pod::Pod;
use crate::process::hold_by_cwd;
use crate::unique;

impl Daemon {
    /// Waits for a look at the mounts of all namespaces that begins from now on: mounts of the host change until then.
    ///
    /// # Panics
    /// If nothing can be mounted.
    pub fn wait_for_mount_inventory(&self) {
        let point = self.directory().join("look");
        std::fs::create_dir_all(&point).expect("a directory can be made");
        let looks = || {
            let none: Option<&str> = None;
            mount(none, &point, Some("tmpfs"), MsFlags::empty(), none).expect("a tmpfs can be mounted");
            umount(&point).expect("nobody uses it");
            self.metrics().count("kevtmon_mount_inventories_total", &[])
        };
        let before = looks();
        // One may have begun already.
        eventually!(looks() >= before + 2.0, "all namespaces are looked at");
    }

    /// Waits until the model has this gateway in a namespace.
    pub fn wait_for_gateway(&self, netns: u64, address: &str) {
        let is_there = || {
            let own = self.model_of(netns)?;
            own["gateways"].as_array()?.iter().any(|gateway| gateway == address).then_some(())
        };
        wait_until(&format!("{address} is a gateway in {netns}"), is_there);
    }

    /// Waits until a source is up.
    pub fn wait_for_source(&self, source: &str) {
        let is_up = || (self.metrics().sum("kevtmon_source_up", &[("source", source)])? > 0.0).then_some(());
        wait_until(&format!("{source} is up"), is_up);
    }

    /// Waits until the model has a namespace.
    pub fn wait_for_netns(&self, netns: u64) {
        wait_until(&format!("{netns} is known"), || self.model_of(netns));
    }

    /// Waits until the model has a kubelet or runtime with this process id.
    pub fn wait_for_component(&self, pid: u32) {
        wait_until(&format!("component {pid} is known"), || self.knows_component(pid).then_some(()));
    }

    /// Waits until the model has the server of the FUSE file system at a path.
    pub fn wait_for_fuse_server(&self, path: &Path) {
        let is_known = || {
            let model = self.model()?;
            let is_it = |mount: &serde_json::Value| {
                let is_at = |at: &serde_json::Value| at.as_str().is_some_and(|at| Path::new(at) == path);
                mount["paths"].as_array()?.iter().any(is_at).then(|| mount["servers"].is_array())
            };
            model["fuse_mounts"].as_array()?.iter().any(|mount| is_it(mount) == Some(true)).then_some(())
        };
        wait_until(&format!("the server of {} is known", path.display()), is_known);
    }

    /// Whether the model has a kubelet or runtime with this process id.
    #[must_use]
    pub fn knows_component(&self, pid: u32) -> bool {
        let model = self.model().unwrap_or_default();
        let components = model["components"].as_array();
        components
            .is_some_and(|all| all.iter().any(|component| component["pid"].as_u64() == Some(pid.into())))
    }

    /// What `kevtmon state --json` shows, without a process for each look: every daemon would see it start.
    fn model(&self) -> Option<serde_json::Value> {
        let answer = http::try_get_local(&self.socket(), "/v1/state").ok()?;
        serde_json::from_str(&answer.body).ok()
    }

    /// The model of a namespace.
    #[must_use]
    pub fn model_of(&self, netns: u64) -> Option<serde_json::Value> {
        let model = self.model()?;
        let mut namespaces = model["namespaces"].as_array()?.iter();
        namespaces.find(|namespace| namespace["netns"].as_u64() == Some(netns)).cloned()
    }

    /// Waits until an incident of a container opens.
    pub fn wait_for_incident(&mut self, container: &str) -> Event {
        self.wait_for(&format!("incident.opened of {container}"), |event| {
            event.kind() == "incident.opened" && event.text("/target/container/id") == container
        })
    }

    /// Waits for the event of a refused unmount, with the last word on who holds the mount: where nothing was found in
    /// time, that of the event which completes it.
    pub fn wait_for_holders(&mut self, what: &str, fits: impl Fn(&Event) -> bool) -> Event {
        let first = self.wait_for(what, fits);
        if first.has_holders_told() {
            return first;
        }
        let seq = first.number("/seq");
        self.wait_for(&format!("the holders in {what}, found later"), |event| {
            event.has("/completes") && event.number("/completes") == seq && event.has_holders_told()
        })
    }

    /// Waits for the deletion of an entry.
    pub fn wait_for_deletion(&mut self, netns: u64, address: &str) -> Event {
        let what = format!("neighbor.deleted of {address} in {netns}");
        self.wait_for(&what, |event| event.is_deletion(netns, address))
    }

    /// As [`Daemon::wait_for_deletion`], of a deletion by this process: for namespaces younger than the daemon, whose
    /// inode number may have been another's.
    pub fn wait_for_deletion_by(&mut self, pid: u32, netns: u64, address: &str) -> Event {
        let what = format!("neighbor.deleted of {address} in {netns} by {pid}");
        self.wait_for(&what, |event| {
            event.is_deletion(netns, address) && event.number("/actor/pid") == Some(pid.into())
        })
    }

    /// All events printed before a deletion that happens now in the same namespace: what is not
    /// among them was not emitted for anything that happened before this call.
    pub fn fence(&mut self, pod: &Pod) -> Vec<Event> {
        let address = unique::address(250);
        pod.netns().churn([address.parse().expect("an address")]);
        self.wait_for_deletion(pod.inum(), &address);
        self.until(|event| event.is_deletion(pod.inum(), &address))
    }

    /// As [`Daemon::fence`], for mounts: everything printed before an unmount that is refused now.
    pub fn mount_fence(&mut self) -> Vec<Event> {
        let mount = Mount::new();
        let holder = hold_by_cwd(mount.point());
        mount.umount_refused();
        let path = mount.point().to_string_lossy().into_owned();
        let fits = |event: &Event| event.kind() == "mount.busy" && event.text("/mount/path") == path;
        self.wait_for("the refused unmount of the fence", fits);
        drop(holder);
        self.until(fits)
    }

    fn until(&self, fits: impl Fn(&Event) -> bool) -> Vec<Event> {
        self.events().into_iter().take_while(|event| !fits(event)).collect()
    }
}
