//! Why nothing passes though no incident tells it: the other end of an interface, on the host, is down, or the route to the
//! gateway was deleted. The neighbor entries are as they were.

use kevtmon_core::state::{NetnsStatus, NodeState};
use kevtmon_event::wording::place_phrase;
use kevtmon_event::{Event, Kind, Link, Severity, Shared};
use kevtmon_observation::SourceKind;
use kevtmon_types::escape::name;

use super::key::keys;
use super::record::Record;
use super::subject::Subject;

/// A sentence for each namespace of the subject that has an interface up and lost its last gateway with the default route.
pub fn without_route(state: &NodeState, subject: &Subject, records: &[Record]) -> Vec<String> {
    let is_deaf = state.sources.iter().any(|source| source.kind == SourceKind::Netlink && !source.up);
    let is_without =
        |known: &&NetnsStatus| !known.stale && known.netns != state.host_netns && known.gateways.is_empty();
    let sentence = |namespace: &NetnsStatus| {
        let is_up = |link: &&Link| link.up == Some(true) && link.ifname != "lo";
        namespace.links.iter().filter(is_up).find(|link| is_about(subject, namespace, link))?;
        let routes = records.iter().map(|record| &record.event).filter(|event| {
            event.boot_id == state.boot_id
                && event.route.as_ref().is_some_and(|route| route.netns == namespace.netns)
        });
        let last = routes.max_by_key(|event| event.seq).filter(|event| event.kind == Kind::RouteDeleted)?;
        let route = last.route.as_deref().filter(|route| route.destination == "default")?;
        let via = route.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
        let place = place_phrase(&namespace.owner, namespace.netns);
        Some(format!("no gateway{place} is in use: the default route{via} was deleted"))
    };
    state.namespaces.iter().filter(|_| !is_deaf).filter(is_without).filter_map(sentence).collect()
}

/// A sentence for each interface of the subject, or of the namespace that the subject is or leads to; none where an end may
/// have been set up again since it was read.
pub fn told(state: &NodeState, subject: &Subject) -> Vec<String> {
    let is_deaf = state.sources.iter().any(|source| source.kind == SourceKind::Netlink && !source.up);
    let known = || state.namespaces.iter().filter(|namespace| !namespace.stale && !is_deaf);
    let Some(host) = known().find(|namespace| namespace.netns == state.host_netns) else {
        return Vec::new();
    };
    let others = known().filter(|namespace| namespace.netns != host.netns);
    let pairs = others.flat_map(|namespace| namespace.links.iter().map(move |link| (namespace, link)));
    let sentence = |(namespace, link): (&NetnsStatus, &Link)| {
        let end = down_end(host, link)?;
        is_about(subject, namespace, link).then(|| {
            let place = place_phrase(&namespace.owner, namespace.netns);
            let (inside, outside) = (name(&link.ifname), name(&end.ifname));
            format!("nothing passes through {inside}{place}: its host end {outside} is down")
        })
    };
    pairs.filter_map(sentence).collect()
}

/// The other end of an interface that is in use, if that is on the host and was set down.
fn down_end<'s>(host: &'s NetnsStatus, link: &Link) -> Option<&'s Link> {
    if link.up != Some(true) || link.kind.as_deref() != Some("veth") {
        return None;
    }
    let peer = link.peer.as_ref().filter(|peer| peer.netns == Some(host.netns))?;
    let leads_back = |end: &&Link| {
        end.ifindex == peer.ifindex
            && end
                .peer
                .as_ref()
                .is_some_and(|back| (back.netns, back.ifindex) == (Some(link.netns), link.ifindex))
    };
    host.links.iter().find(leads_back).filter(|end| end.up == Some(false))
}

fn is_about(subject: &Subject, namespace: &NetnsStatus, link: &Link) -> bool {
    let event = Event {
        target: Some(Shared::new(namespace.owner.clone())),
        link: Some(Box::new(link.clone())),
        ..Event::new(Kind::LinkChanged, Severity::Info, String::new())
    };
    keys(&event).iter().any(|(key, _)| subject.lookups.iter().any(|lookup| lookup.matches(key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::subject::candidates;
    use crate::test_support::node_state::state;

    fn told_of(state: &NodeState, word: &str) -> Vec<String> {
        let [subject] = &candidates(word, Some(state), &[])[..] else { panic!("{word}") };
        told(state, subject)
    }

    #[test]
    fn a_host_end_that_is_down_is_told_of_its_pod_only() {
        let mut state = state();
        assert!(told_of(&state, "a/web").is_empty(), "both ends are up");
        let host = state.namespaces.iter_mut().find(|namespace| namespace.netns == state.host_netns).unwrap();
        host.links.iter_mut().find(|link| link.ifname == "cali-a").unwrap().up = Some(false);
        let expected = ["nothing passes through eth0 of pod a/web: its host end cali-a is down"];
        for word in ["a/web", "cali-a"] {
            assert_eq!(told_of(&state, word), expected, "{word}");
        }
        assert!(told_of(&state, "b/web").is_empty(), "another pod's");
        for index in 0..state.namespaces.len() {
            let mut stale = state.clone();
            stale.namespaces[index].stale = true;
            let is_of_it = state.namespaces[index]
                .owner
                .pod
                .as_ref()
                .is_none_or(|pod| pod.namespace.as_deref() == Some("a"));
            assert_eq!(told_of(&stale, "a/web").is_empty(), is_of_it, "{index} may have changed");
        }
        // Nobody uses it.
        let inside = state.namespaces.iter_mut().flat_map(|namespace| &mut namespace.links);
        inside.filter(|link| link.ifname == "eth0").for_each(|link| link.up = Some(false));
        assert!(told_of(&state, "a/web").is_empty());
    }
}
