//! Lines as programs write them, with invented names; and a node on which something is wrong.

use kevtmon_core::diagnose;
use kevtmon_event::{Incident, NfsServer, Rbd};
use kevtmon_testing::sample;

use super::*;
use crate::test_support::memory::{self, Memory, numbered};
use crate::test_support::stories::incident_event;

const ID: &str = "94feeebc95fb1894feeebc95fb1894feeebc95fb1894feeebc95fb1894feeebc";
const LAYER: &str = "353abb03acd5a934943ff11ba8f2bacb9c0a342ac86353abb03acd5a934943ff";
const UID: &str = "5c948341-c030-4996-b888-f032577d97b0";
const VOLUME: &str =
    "/var/lib/kubelet/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~glusterfs/cam-pv-50g";

/// Blocks of two lines: a form and what a line speaks of, and the line; `<id>` and the like stand for the constants above.
const LINES: &str = include_str!("lines.txt");

/// Lines, each with its form and what it speaks of.
fn lines() -> impl Iterator<Item = (String, &'static str, String)> {
    let blocks = LINES.split("\n\n").filter(|block| !block.starts_with('#'));
    blocks.map(|block| {
        let (head, line) = block.trim_end().split_once('\n').unwrap();
        let (form, about) = head.split_once(' ').unwrap_or((head, ""));
        (in_full(line), form, in_full(about))
    })
}

fn in_full(text: &str) -> String {
    text.replace("<volume>", VOLUME).replace("<uid>", UID).replace("<id>", ID).replace("<layer>", LAYER)
}

/// The one line of a page.
#[track_caller]
fn only(text: &str) -> Line {
    let mut page = read(text);
    assert_eq!((page.lines.len(), page.unknown), (1, 0), "{text}: {:?}", page.lines);
    page.lines.remove(0)
}

fn subjects(line: &Line) -> String {
    let named = line.subjects.iter().map(|subject| format!("{}={}", subject.kind(), subject.name()));
    named.collect::<Vec<_>>().join(" ")
}

#[test]
fn each_line_is_recognised_with_what_it_speaks_of() {
    for (text, form, about) in lines() {
        let line = only(&text);
        assert_eq!((line.form.name, subjects(&line)), (form, about), "{text}");
    }
}

#[test]
fn every_form_has_a_line_and_names_kinds_that_there_are() {
    let names: BTreeSet<&str> = forms::FORMS.iter().map(|form| form.name).collect();
    assert_eq!(names.len(), forms::FORMS.len(), "each has a name of its own");
    let tried: BTreeSet<&str> = lines().map(|(_, form, _)| form).collect();
    assert_eq!(names, tried);
    let places = ["pod", "uid", "container", "path", "interface", "address", "netns", "image", "task"];
    for Form { name, kinds, meaning, otherwise, commands, .. } in forms::FORMS {
        assert!(kinds.iter().all(|kind| diagnose::kind(kind).is_some()), "{name}: {kinds:?}");
        let (Otherwise::Harmless(text) | Otherwise::Possible(text)) = otherwise;
        assert!(meaning.ends_with('.') && text.ends_with('.'), "{name}");
        for command in *commands {
            let place = command.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
            assert!(place.is_none_or(|(place, _)| places.contains(&place)), "{name}: {command}");
        }
    }
}

#[test]
fn what_no_form_has_is_counted_and_the_same_is_shown_once() {
    let line = in_full("Output: umount: <volume>: target is busy.");
    let other = line.replace("cam-pv-50g", "other");
    let page = read(&format!("\n{line}\nall is well\n\n{other}\r\n  {line}\nRELEASE IT\n"));
    let numbers: Vec<(usize, usize)> = page.lines.iter().map(|line| (line.number, line.count)).collect();
    assert_eq!((numbers, page.unknown, page.omitted), (vec![(2, 2), (5, 1)], 2, 0));
    let of_number = |number| format!("{}\n", line.replace("50g", &format!("{number}g")));
    let many: String = (0..100).map(of_number).collect();
    let page = read(&many);
    assert_eq!((page.lines.len(), page.omitted), (EXPLAINED, 100 - EXPLAINED));
    let of_port = |number| format!("cni0: port 1(veth0a1b{number:04}) entered disabled state\n");
    let noise: String = (0..100).map(of_port).collect();
    let page = read(&format!("{noise}{line}"));
    assert_eq!((page.lines.len(), page.omitted), (HARMLESS + 1, 100 - HARMLESS));
    for nothing in ["", " \n\t\n"] {
        let page = read(nothing);
        assert_eq!((page.lines.len(), page.unknown), (0, 0));
    }
}

#[test]
fn a_line_is_quoted_from_a_word_before_what_is_known_of_it() {
    let quoted = |text: &str| only(text).text;
    assert_eq!(quoted("umount: /mnt: target is busy.\n"), "umount: /mnt: target is busy.");
    let long = format!("{} umount: /mnt: target is busy", "a é".repeat(50));
    let text = quoted(&long);
    assert!(text.starts_with("…éa éa") && text.ends_with(" umount: /mnt: target is busy"), "{text}");
}

#[test]
fn a_hostile_line_is_quoted_in_part_and_searched_in_part() {
    let line = in_full("UnmountVolume.TearDown failed for volume \"\u{1b}[2J\u{202e}\" pod \"<uid>\"\0");
    let found = only(&line);
    assert_eq!(subjects(&found), format!("uid={UID}"));
    let long = format!("{line}{}", "x".repeat(1 << 20));
    assert_eq!(only(&long).text.chars().count(), QUOTED + 1);
    assert_eq!(read(&format!("{}{line}", "x".repeat(1 << 20))).unknown, 1);
    for noise in ["=/", "pod ", "\\\"", "{\"log\":\"", "/pods/", "é", "0f", "(\"/", "pod/a_b("] {
        let page = read(&format!("umount: target is busy {}", noise.repeat(LINE)));
        assert_eq!(page.lines.len(), 1, "{noise}");
    }
}

#[test]
fn what_only_looks_like_a_name_is_none() {
    for (text, about) in [
        // The first group of a UUID, a layer, an image, and part of a path of the API.
        (r#"error killing pod: failed to "KillPodSandbox" for "<uid>""#, "uid=<uid>"),
        (
            "remove /var/lib/docker/overlay2/<layer>/merged: device or resource busy",
            "path=/var/lib/docker/overlay2/<layer>/merged",
        ),
        ("pull sha256:<layer>: connection is unauthorized", ""),
        ("GET /v1.24/info: device or resource busy", ""),
        // Neither a pod nor an address.
        ("3 pods 3/3 and/or 12:00:01.5 calico-node: connection is unauthorized", ""),
        ("dial tcp 127.0.0.1:8080: Probe failed", ""),
    ] {
        assert_eq!(subjects(&only(&in_full(text))), in_full(about), "{text}");
    }
}

/// An incident as its event tells it.
fn candidate(seq: u64, kind: &str, of: Event) -> (Event, IncidentView) {
    let incident = Incident { kind: kind.into(), ..memory::incident(kind, seq) };
    let event = incident_event(seq, Kind::IncidentOpened, incident.clone(), of);
    let target = event.target.clone().map(Shared::into_inner);
    let view = IncidentView::new(incident, None, target, event.boot_id.clone(), seq);
    (event, view)
}

fn busy(seq: u64, path: &str) -> Event {
    // The pod of the sample is that of another volume.
    let mut event = Event { target: None, ..numbered(seq, sample::busy()) };
    let mount = event.mount.as_mut().unwrap();
    (mount.path, mount.volume) = (path.into(), volume::of_path(path));
    event
}

fn memory_of(incidents: &[(Event, IncidentView)]) -> Memory {
    let events = Memory::of(incidents.iter().map(|(event, _)| event.clone()));
    incidents.iter().fold(events, |memory, (_, view)| memory.with_view(view.clone()))
}

/// Id of the incident that explains a line.
fn explains(memory: &Memory, text: &str) -> Option<String> {
    explained(memory, text).incident.map(|view| view.incident.id)
}

fn explained(memory: &Memory, text: &str) -> Explanation {
    let text = in_full(text);
    let page = read(&text);
    let known = Known::read(memory, memory.incidents(&page.incidents()).unwrap()).unwrap();
    known.explain(&only(&text))
}

fn nas1() -> NfsServer {
    NfsServer { name: "nas1".into(), waits: true, mounts: Vec::new(), mounts_omitted: 0 }
}

#[test]
fn an_incident_is_found_by_what_it_happened_to() {
    let none = || numbered(1, Event { target: None, actor: None, ..sample::cni() });
    let mut cni = none();
    cni.cni.as_mut().unwrap().container_id = Some(ID.into());
    let rbd = Rbd { pool: "kube".into(), image: "index-api-image".into(), ..Rbd::default() };
    let rbd = Event { rbd: Some(Box::new(rbd)), cni: None, ..none() };
    let memory = memory_of(&[
        candidate(1, "volume-busy", busy(1, VOLUME)),
        candidate(2, "cni-teardown-failing", cni),
        candidate(3, "rbd-locked-elsewhere", rbd),
        candidate(4, "gateway-neighbor-lost", sample::deletion()),
        candidate(5, "neighbor-table-full", Event { cni: None, ..none() }),
        candidate(6, "nfs-server-unresponsive", Event { nfs_server: Some(Box::new(nas1())), ..none() }),
        candidate(7, "netns-never-ends", Event { cni: None, ..none() }),
    ]);
    for (text, expected) in [
        ("umount: <volume>: target is busy", Some("volume-busy")),
        (r#"UnmountVolume.TearDown failed for volume "x" pod "<uid>""#, Some("volume-busy")),
        ("umount: /mnt: target is busy", None),
        ("failed to destroy network for sandbox 94feeebc95fb", Some("cni-teardown-failing")),
        ("failed to destroy network for sandbox 94feeebc95fc", None),
        ("rbd image kube/index-api-image is still being used", Some("rbd-locked-elsewhere")),
        ("rbd: image index-api-image is locked by other nodes", Some("rbd-locked-elsewhere")),
        ("rbd image other/index-api-image is still being used", None),
        (r#""Probe failed" pod="lijiaob/etcd1-0""#, Some("gateway-neighbor-lost")),
        ("dial tcp 10.42.0.7:80: Probe failed", Some("gateway-neighbor-lost")),
        (r#""Probe failed" pod="lijiaob/etcd1-1""#, None),
        // It has the address of the one that lost its gateway.
        (r#"dial tcp 10.42.0.7:80: "Probe failed" pod="team-a/mine-0""#, None),
        (r#""Probe failed" pod="lijiaob/etcd1-0" podUID="<uid>""#, None),
        ("neighbour: arp_cache: neighbor table overflow!", Some("neighbor-table-full")),
        ("nfs: server nas1 not responding, still trying", Some("nfs-server-unresponsive")),
        ("nfs: server nas2 not responding, still trying", None),
        ("unregister_netdevice: waiting for lo to become free. Usage count = 1", Some("netns-never-ends")),
    ] {
        assert_eq!(explains(&memory, text).as_deref(), expected, "{text}");
    }
}

#[test]
fn neither_a_holder_nor_another_volume_of_the_pod_explains_a_line() {
    let memory = memory_of(&[candidate(1, "volume-busy", busy(1, VOLUME))]);
    // The sample names this pod as a holder of the volume.
    assert_eq!(explains(&memory, r#"UnmountVolume.TearDown failed for "x" pod="lijiaob/etcd1-0""#), None);
    let other = VOLUME.replace("cam-pv-50g", "other");
    assert_eq!(
        explains(&memory, &format!("UnmountVolume.TearDown failed: umount: {other}: target is busy")),
        None
    );
}

#[test]
fn an_open_incident_counts_before_a_closed_one_and_the_more_direct_kind_first() {
    let mut closed = candidate(9, "volume-busy", busy(9, VOLUME));
    closed.1.incident.closed = Some(memory::time(9));
    let stuck = candidate(2, "pod-stuck-terminating", busy(2, VOLUME));
    let line = "umount: UnmountVolume.TearDown failed: <volume>: target is busy";
    let explained = |incidents: &[(Event, IncidentView)]| explained(&memory_of(incidents), line);
    let open = explained(&[closed.clone(), stuck.clone()]);
    assert_eq!(open.incident.unwrap().incident.id, "pod-stuck-terminating");
    assert_eq!((open.possible, open.commands), (None, vec!["kevtmon why pod-stuck-terminating".to_owned()]));
    let both = explained(&[stuck, candidate(1, "volume-busy", busy(1, VOLUME))]);
    assert_eq!(both.incident.unwrap().incident.id, "volume-busy");
    let over = explained(&[closed]);
    assert_eq!(over.incident.unwrap().incident.id, "volume-busy");
    assert!(over.possible.is_some());
    let expected = ["kevtmon why volume-busy".to_owned(), format!("kevtmon holders {VOLUME}")];
    assert_eq!(over.commands, expected);
}

#[test]
fn where_no_incident_is_known_a_line_is_harmless_or_has_a_next_step() {
    let nothing = Memory::default();
    let harmless = explained(&nothing, "shim disconnected id=<id>");
    assert!(harmless.harmless.is_some() && harmless.possible.is_none() && harmless.commands.is_empty());
    let possible = explained(&nothing, "umount: /mnt/a: target is busy");
    assert_eq!(possible.about, [About { kind: "path", name: "/mnt/a".into() }]);
    assert_eq!(possible.commands, ["kevtmon why /mnt/a", "kevtmon holders /mnt/a"]);
    assert!(possible.possible.is_some() && possible.reported_as.contains(&"volume-busy"));
    let evil = explained(&nothing, "umount: \"/mnt/$(reboot) '\u{1b}[2J\": target is busy");
    assert_eq!(evil.commands[1], r"kevtmon holders $'/mnt/$(reboot) \'\x1b[2J'");
    let unnamed = explained(&nothing, "device-mapper: thin: Deletion of thin device 65 failed.");
    assert!(unnamed.about.is_empty() && !unnamed.commands.is_empty());
}

#[test]
fn an_incident_whose_event_is_gone_is_found_by_its_target() {
    let (_, view) = candidate(4, "gateway-neighbor-lost", sample::deletion());
    let memory = Memory::default().with_view(view);
    assert_eq!(
        explains(&memory, r#""Probe failed" pod="lijiaob/etcd1-0""#).as_deref(),
        Some("gateway-neighbor-lost")
    );
}
