//! Words that an operator gives, on a node with two pods of one name and a busy mount.

use kevtmon_core::state::ContainerStatus;
use kevtmon_event::Event;
use kevtmon_event::{Join, Shared, Target};
use kevtmon_testing::sample;

use super::*;
use crate::query::key::keys;
use crate::test_support::node_state::{HOST, alone, link, namespace, state};

fn record(event: &Event) -> Record {
    Record::read(serde_json::to_string(event).unwrap()).unwrap()
}

/// Handles of what a word means, by model and events.
fn meant(word: &str) -> Vec<String> {
    let probes = probes(word);
    let records: Vec<Record> = sample::all()
        .iter()
        .map(record)
        .filter(|record| {
            keys(&record.event).iter().any(|(key, _)| probes.iter().any(|probe| probe.matches(key)))
        })
        .collect();
    candidates(word, Some(&state()), &records).into_iter().map(|subject| subject.handle).collect()
}

const VOLUME: &str = "/var/lib/kubelet/pods/3f0f/volumes/kubernetes.io~glusterfs/data";

#[test]
fn everything_that_an_operator_has_at_hand_is_understood() {
    for (word, handle) in [
        ("a/web", "pod:a/web"),
        ("pod:a/web", "pod:a/web"),
        ("uid:uid-b", "pod:b/web"),
        ("etcd1-0", "pod:lijiaob/etcd1-0"),
        ("3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f", "pod:lijiaob/etcd1-0"),
        ("10.0.0.2", "pod:b/web"),
        ("10.42.0.7", "pod:lijiaob/etcd1-0"),
        ("169.254.1.1", "ip:169.254.1.1"),
        ("593d8a", "container:593d8a89ee37"),
        ("etcd", "container:593d8a89ee37"),
        ("container:5", "container:593d8a89ee37"),
        ("28997", "pid:28997"),
        ("977", "pid:977"),
        ("cali-a", "interface:4026531833/8"),
        ("interface:71/2", "interface:71/2"),
        (VOLUME, &format!("path:{VOLUME}")),
        (&format!("{VOLUME}/"), &format!("path:{VOLUME}")),
        (&format!("{VOLUME}/member/wal/0.wal"), &format!("path:{VOLUME}")),
        ("/var/lib/kubelet/pods/3f0f", "path:/var/lib/kubelet/pods/3f0f"),
        ("data", "volume:data"),
        ("0:48", "device:0:48"),
        ("71", "netns:71"),
        ("4026532253", "netns:4026532253"),
    ] {
        assert_eq!(meant(word), [handle], "{word}");
    }
}

#[test]
fn the_node_of_an_image_s_device_means_that_device() {
    let image = kevtmon_observation::RbdImage {
        device: "252:0".into(),
        pool: "kube".into(),
        image: "index".into(),
        ..Default::default()
    };
    let event = Event { rbd: Some(Box::new((&image).into())), ..sample::deletion() };
    let found = candidates("/dev/rbd0", Some(&state()), &[record(&event)]);
    let shown: Vec<(String, String)> = found.into_iter().map(|one| (one.handle, one.label)).collect();
    assert_eq!(shown, [("path:/dev/rbd0".to_owned(), "device /dev/rbd0".to_owned())]);
}

#[test]
fn what_can_mean_several_things_gives_them_all() {
    assert_eq!(meant("web"), ["pod:a/web", "pod:b/web"]);
    let eth0 = meant("eth0");
    assert!(eth0.contains(&"interface:71/2".to_owned()) && eth0.contains(&"interface:72/2".to_owned()));
    let labels: Vec<String> = candidates("eth0", Some(&state()), &[]).into_iter().map(|s| s.label).collect();
    assert_eq!(labels, ["interface eth0 of pod a/web", "interface eth0 of pod b/web"]);
}

#[test]
fn a_name_means_the_container_that_has_it_or_had_it_last() {
    let with_id = |digit: &str| {
        let mut event = sample::deletion();
        let target = event.target.as_mut().unwrap();
        (target.pod, target.container.as_mut().unwrap().id) = (None, digit.repeat(64));
        event
    };
    let [oldest, older, newest] = ["a", "b", "c"].map(with_id);
    let records = [record(&oldest), record(&older), record(&newest)];
    let labels = |state: Option<&NodeState>, records: &[Record]| -> Vec<String> {
        candidates("etcd", state, records).into_iter().map(|subject| subject.label).collect()
    };
    let before = "container etcd (cccccccccccc; before it bbbbbbbbbbbb, aaaaaaaaaaaa)";
    assert_eq!(labels(None, &records), [before]);
    assert_eq!(
        labels(Some(&state()), &records[..2]),
        ["container etcd (bbbbbbbbbbbb; before it aaaaaaaaaaaa)"]
    );
    // Another event of one that is gone may be newer than any of the one that exists.
    let mut state = state();
    let exists = newest.target.unwrap().into_inner().container.unwrap();
    state.containers = vec![placed(exists.clone(), "10.201.0.2")];
    assert_eq!(labels(Some(&state), &records[..2]), [before]);
    assert_eq!(labels(Some(&state), &[]), ["container etcd (cccccccccccc)"]);
    let other = Container { id: "d".repeat(64), ..exists };
    state.containers.push(placed(other, "10.201.0.3"));
    assert_eq!(labels(Some(&state), &records).len(), 2, "two runtimes have one each");
    let by_address = candidates("10.201.0.2", Some(&state), &[]);
    assert_eq!(by_address.len(), 1);
    assert_eq!(by_address[0].handle, "container:cccccccccccc");
}

fn placed(container: Container, ip: &str) -> ContainerStatus {
    ContainerStatus { ip: vec![ip.parse().unwrap()], ..alone(container) }
}

#[test]
fn every_handle_means_what_it_was_made_for() {
    for word in [
        "web", "eth0", "etcd1-0", "10.0.0.1", "593d", "28997", "cali-b", VOLUME, "169.254.1.1", "data",
        "0:48", "71",
    ] {
        for handle in meant(word) {
            assert_eq!(meant(&handle), [handle.as_str()], "{word}");
        }
    }
}

#[test]
fn what_nobody_has_heard_of_means_nothing() {
    for word in
        ["c/web", "nobody", "10.9.9.9", "::1", "/mnt", "ffffff", "1", "", ":", "pod:", "interface:1/1"]
    {
        assert_eq!(meant(word), Vec::<String>::new(), "{word}");
    }
}

#[test]
fn without_a_model_the_events_tell() {
    let records = vec![record(&sample::deletion())];
    let subjects = candidates("10.42.0.7", None, &records);
    assert_eq!(subjects[0].handle, "pod:lijiaob/etcd1-0");
    assert!(
        subjects[0].lookups.contains(&Lookup::exact(Family::Uid, "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f"))
    );
}

#[test]
fn a_pod_is_also_found_by_its_interfaces_and_by_its_entry_on_the_host() {
    let subjects = candidates("a/web", Some(&state()), &[]);
    for lookup in [
        Lookup::exact(Family::Interface, "71/2"),
        Lookup::exact(Family::Interface, format!("{HOST}/8")),
        Lookup::exact(Family::Neighbor, "10.0.0.1"),
    ] {
        assert!(subjects[0].lookups.contains(&lookup), "{lookup:?}");
    }
}

#[test]
fn an_address_without_a_pod_is_also_found_by_the_interfaces_of_its_namespace() {
    let mut state = state();
    let mut blue = namespace(73, None, vec![link(73, 2, "eth0", (HOST, 10))]);
    blue.addresses = vec!["10.77.0.5/32".into()];
    state.namespaces.push(blue);
    state.namespaces[2].addresses = vec!["192.0.2.2/24".into()];
    let lookups = |word: &str| candidates(word, Some(&state), &[]).remove(0).lookups;
    for lookup in [
        Lookup::exact(Family::Neighbor, "10.77.0.5"),
        Lookup::exact(Family::Interface, "73/2"),
        Lookup::exact(Family::Interface, format!("{HOST}/10")),
    ] {
        assert!(lookups("10.77.0.5").contains(&lookup), "{lookup:?}");
    }
    assert_eq!(lookups("192.0.2.2").len(), 2, "not all that happens to the host");
}

#[test]
fn a_network_namespace_is_found_by_name_path_and_inode_number_also_when_it_is_gone() {
    let mut state = state();
    let mut blue = namespace(73, None, vec![link(73, 2, "eth0", (HOST, 10))]);
    blue.name = Some("blue".into());
    state.namespaces.push(blue);
    for word in ["blue", "/run/netns/blue", "/var/run/netns/blue/", "netns-name:blue"] {
        let subjects = candidates(word, Some(&state), &[]);
        assert_eq!(subjects.len(), 1, "{word}: {subjects:?}");
        assert_eq!(subjects[0].handle, "netns-name:blue", "{word}");
        for lookup in [
            Lookup::exact(Family::NetnsName, "blue"),
            Lookup::exact(Family::Netns, "73"),
            Lookup::exact(Family::Interface, format!("{HOST}/10")),
            Lookup::exact(Family::Path, "/run/netns/blue"),
        ] {
            assert!(subjects[0].lookups.contains(&lookup), "{word}: {lookup:?}");
        }
    }
    for word in ["73", "net:[73]", "netns:73"] {
        let subjects = candidates(word, Some(&state), &[]);
        assert_eq!(subjects[0].handle, "netns:73", "{word}");
    }
    let mut event = sample::deletion();
    event.target =
        Some(Shared::new(Target { netns_name: Some("red".into()), ..Target::unknown(Join::Missed) }));
    for word in ["red", "/run/netns/red"] {
        let subjects = candidates(word, Some(&state), &[record(&event)]);
        assert_eq!(subjects[0].handle, "netns-name:red", "{word}");
    }
}
