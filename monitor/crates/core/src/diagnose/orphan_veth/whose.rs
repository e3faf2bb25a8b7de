//! Whose a veth device is, and whether a container is certainly another pod's.
//!
//! A network namespace belongs to one sandbox for as long as it is there. So what was behind a device first, in the namespace
//! that it leads to, is what it was made for; and so is what libcni has written down of the plugin's `ADD`. A name tells a pod only
//! where the node knows one that it is the name of: plugins may have rules for further devices that are not known.

use std::collections::BTreeSet;

use kevtmon_observation::{CniDevice, ContainerFacts, LinkFacts, NsInum};

use super::Former;
use crate::node::containers::is_live;
use crate::node::veth_names;
use crate::node::view::NodeView;

/// What tells whose a device is.
#[derive(Debug)]
pub(super) struct Whose<'a> {
    /// The uid of the pod that was seen behind it.
    seen: Option<&'a str>,
    /// The digits in its name, if those are of a pod that the node knows.
    digits: Option<&'a str>,
    /// The sandboxes for which plugins say to have made one of its name.
    made_for: Vec<&'a CniDevice>,
}

/// The digits that are in the names of the devices of all pods that the node knows, also of those that are gone.
pub(super) fn known_digits(node: &NodeView<'_>) -> BTreeSet<String> {
    let of_containers = node.containers.all().filter_map(|facts| facts.pod.as_ref());
    let of_containers =
        of_containers.filter(|pod| pod.is_confirmed()).map(|pod| (pod.namespace.as_str(), pod.name.as_str()));
    let kept = node.pods.all().map(|(_, namespace, name)| (namespace, name));
    let names: BTreeSet<(&str, &str)> = of_containers.chain(kept).collect();
    names.into_iter().map(|(namespace, name)| veth_names::digits_of(namespace, name)).collect()
}

impl<'a> Whose<'a> {
    /// `known`: see [`known_digits`].
    pub(super) fn of(
        node: &NodeView<'a>,
        known: &BTreeSet<String>,
        link: &'a LinkFacts,
        former: Option<&'a Former>,
    ) -> Self {
        let by_name = veth_names::is_by_pod(&link.ifname).then(|| veth_names::pod_digits(&link.ifname));
        let digits = by_name.flatten().filter(|digits| known.contains(*digits));
        let seen = former.map(|former| former.uid.as_str());
        Self { seen, digits, made_for: node.ipam.made_for(&link.ifname).collect() }
    }

    /// Whether it is the device of a pod that is known.
    fn is_known(&self) -> bool {
        self.seen.is_some() || self.digits.is_some() || self.is_in_results()
    }

    /// Whether a plugin says to have made it for a pod.
    pub(super) fn is_in_results(&self) -> bool {
        !self.made_for.is_empty()
    }

    fn is_of(&self, facts: &ContainerFacts) -> bool {
        let Some(pod) = &facts.pod else {
            return self.made_for.iter().any(|device| device.container == facts.id);
        };
        let name = (pod.namespace.as_str(), pod.name.as_str());
        self.seen == Some(pod.uid.as_str())
            || self.digits.is_some_and(|digits| veth_names::digits_of(name.0, name.1) == digits)
            || self.made_for.iter().any(|device| {
                let sandbox = Some(&device.container);
                name == (device.namespace.as_str(), device.pod.as_str())
                    || sandbox == Some(&facts.id)
                    || sandbox == pod.sandbox_id.as_ref()
            })
    }

    /// Whether a container is of another pod, for certain. One of no pod may be the device's where only the name tells whose it
    /// is; and what a label claims is no proof.
    pub(super) fn is_anothers(&self, facts: &ContainerFacts) -> bool {
        let is_sure = match &facts.pod {
            Some(pod) => self.is_known() && pod.is_confirmed(),
            None => self.seen.is_some() || self.is_in_results(),
        };
        is_sure && !self.is_of(facts)
    }

    /// Whether a sandbox for which it was made lives, or none of the runtimes has told of it yet.
    pub(super) fn is_made_for_living(&self, node: &NodeView<'_>) -> bool {
        self.made_for.iter().any(|device| match node.containers.get(&device.container) {
            Some(facts) => is_live(facts.state) && node.containers.is_present(&facts.id),
            None => node.cni.get(&device.container).is_some_and(|known| known.is_added && !known.is_deleted),
        })
    }

    /// Whether the pod lives with a network that the device does not lead to, and another one lives where it leads.
    pub(super) fn is_elsewhere(&self, node: &NodeView<'_>, netns: NsInum) -> bool {
        let living = || node.containers.present().filter(|facts| is_live(facts.state));
        let is_own = |facts: &&ContainerFacts| self.is_of(facts);
        let is_away = |facts: &ContainerFacts| facts.netns.is_some_and(|own| own != netns);
        let called = node.cni.sandboxes().filter(|(id, _)| node.is_sandbox_alive(id));
        // A call may have made the network of one that no runtime has told yet.
        let mut untold = called.filter(|(id, known)| {
            let digits = known.pod.as_ref().map(|pod| veth_names::digits_of(&pod.namespace, &pod.name));
            node.containers.get(id).is_none() && digits.as_deref() == self.digits
        });
        node.containers.living_in(netns).any(|facts| self.is_anothers(facts))
            && living().filter(is_own).all(is_away)
            && untold.next().is_none()
    }

    /// Whether the pod lives, as far as the runtimes tell: the one that was seen, or one of the name.
    pub(super) fn lives(&self, node: &NodeView<'_>) -> bool {
        let is_it = |facts: &ContainerFacts| match (self.seen, &facts.pod) {
            (Some(uid), pod) => pod.as_ref().is_some_and(|pod| pod.uid == uid),
            (None, _) => self.is_of(facts),
        };
        node.containers.present().any(|facts| is_live(facts.state) && is_it(facts))
    }
}
