//! Summary of an incident.

use kevtmon_event::Event;
use kevtmon_event::wording::{actor_phrase, cause_phrase};
use kevtmon_observation::NeighborKey;
use kevtmon_types::escape::name;

use super::fault::{is_set, lladdr_after};
use super::{Fault, FaultReason};

/// What explains it follows.
pub(super) const AND: &str = ", and ";

/// What happened to the entry according to an event: `was deleted by calico (pid 28997)`.
pub(super) fn what_happened(event: &Event) -> String {
    let Some(neighbor) = &event.neighbor else { return String::new() };
    let set = lladdr_after(neighbor).filter(|_| is_set(neighbor));
    let mut text = match (set, &neighbor.new_lladdr, &neighbor.new_state) {
        (Some(lladdr), _, _) => format!("was set to {lladdr}"),
        (None, Some(lladdr), _) => format!("was replaced with {lladdr}"),
        (None, None, Some(state)) => format!("was downgraded to {state}"),
        (None, None, None) => "was deleted".to_owned(),
    };
    if let Some(actor) = &event.actor {
        text.push_str(&format!(" by {}", actor_phrase(actor)));
    }
    text.push_str(&cause_phrase(neighbor, event.actor.is_some()));
    text
}

pub(super) fn summary(fault: &Fault, key: NeighborKey) -> String {
    let Fault { owner, ifname, what_happened, .. } = fault;
    let kind = if fault.learned { "" } else { "static " };
    let (label, address, ifname) = (&owner.label, key.address, name(ifname));
    let protocol = if address.is_ipv4() { "ARP" } else { "neighbor" };
    match fault.reason {
        FaultReason::Missing => {
            format!(
                "{label} has lost its gateway {address}: its {kind}{protocol} entry on {ifname} {what_happened}"
            )
        }
        FaultReason::WrongLladdr => {
            format!(
                "{label} cannot reach its gateway {address}: its {kind}{protocol} entry on {ifname} {what_happened}"
            )
        }
        FaultReason::Failed => {
            let why = fault.explanation.as_ref().map(|known| format!("{AND}{}", known.text));
            format!(
                "{label} cannot reach its gateway {address}: nothing answers its {protocol} requests on {ifname}{}",
                why.unwrap_or_default()
            )
        }
    }
}
