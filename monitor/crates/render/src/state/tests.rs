//! The state as text: 80 columns whatever names it has, and nothing left out while there is room.

use jiff::tz::TimeZone;
use kevtmon_observation::SourceKind;

use super::*;

fn shown(state: &NodeState) -> String {
    let clock = Clock { now: "2026-01-02T03:05:00Z".parse().unwrap(), zone: TimeZone::UTC };
    text(state, None, &Pretty { colour: false, zone: TimeZone::UTC }, &clock)
}

/// The lines of one of its tables.
fn table<'t>(text: &'t str, title: &str) -> Vec<&'t str> {
    let (_, table) = text.split_once(&format!("{title} (")).unwrap();
    table.split("\n\n").next().unwrap().lines().skip(1).collect()
}

#[test]
fn long_names_are_shortened_and_rows_have_two_lines_before_they_are_wider_than_a_terminal() {
    let mut state = crate::test_support::node_state::state();
    state.node = "node".repeat(40);
    let reason = format!("{} cannot be read: {}", "/var/lib/runtime".repeat(10), "word ".repeat(40));
    state.sources = vec![
        SourceStatus::down(SourceKind::Runtime, "docker:/run/user/1000/podman/podman.sock", reason.trim()),
        SourceStatus::up(SourceKind::Hook, "hook.neighbor"),
    ];
    let pod = &mut state.pods[0];
    pod.pod.name = Some(format!("{}-7d4b9c6f5d-x7k2p", "deployment".repeat(9)));
    pod.pod.ip = (1..=6).map(|host| format!("2001:db8:85a3:8d3::734{host}").parse().unwrap()).collect();
    pod.host_links = vec!["cali9118ebbb10b".into()];
    pod.netns = Some(4_026_532_253);
    let text = shown(&state);
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}\n{text}", line.chars().count());
    }
    let sources = table(&text, "Sources");
    assert_eq!(sources[0].split_whitespace().collect::<Vec<_>>(), ["SOURCE", "STATE", "WAY"]);
    assert_eq!(sources[1].trim(), "REASON");
    assert!(sources[2].contains("docker:/run/user/1000/podman/podman.sock  down"), "{text}");
    assert_eq!(text.matches("word").count(), 40, "a reason is wrapped, not cut: {text}");
    assert!(
        sources.last().unwrap().contains("hook.neighbor"),
        "what has no reason has no second line: {text}"
    );
    let pods = table(&text, "Pods");
    assert!(pods[2].contains("a/deployment") && pods[2].ends_with("-7d4b9c6f5d-x7k2p"), "{text}");
    let addresses = "2001:db8:85a3:8d3::7341 +5";
    assert!(pods[3].contains(addresses) && pods[3].contains("cali9118ebbb10b"), "{text}");
}

#[test]
fn pods_on_whose_way_something_is_broken_are_listed_where_there_are_any() {
    let mut state = crate::test_support::node_state::state();
    assert!(!shown(&state).contains("Broken"));
    let hop = |ifname: &str, broken: &[&str]| Hop {
        netns: 71,
        ifname: ifname.into(),
        broken: broken.iter().map(|what| (*what).to_owned()).collect(),
        ..Hop::default()
    };
    state.pods[0].path =
        vec![hop("eth0", &["up, but without carrier"]), hop("cali91", &["down"]), hop("eno1", &[])];
    let text = shown(&state);
    assert_eq!(
        table(&text, "Broken")[1].trim(),
        "a/web  eth0 up, but without carrier; cali91 down",
        "{text}"
    );
}

#[test]
fn where_a_runtime_does_not_answer_the_pods_say_so_and_by_what_they_are_known() {
    let mut state = crate::test_support::node_state::state();
    state.sources = vec![SourceStatus::up(SourceKind::Runtime, "docker")];
    let text = shown(&state);
    assert!(!text.contains("there may be others") && !text.contains("KNOWN BY"), "{text}");
    state.sources.push(SourceStatus::down(SourceKind::Runtime, "cri", "gone"));
    state.pods[1].known_by = KnownBy::Directory;
    let text = shown(&state);
    let pods = table(&text, "Pods");
    assert!(pods[0].ends_with("KNOWN BY") && pods[1].ends_with("runtime"), "{text}");
    assert!(pods[2].ends_with("directory"), "{text}");
    assert_eq!(pods[3].trim(), "there may be others, since not every container runtime answers", "{text}");
    state.sources.clear();
    assert!(shown(&state).contains("since no container runtime is watched"));
    state.ready = false;
    assert!(shown(&state).contains("since not every source has reported yet"));
}

#[test]
fn a_row_that_fits_has_one_line() {
    let mut state = crate::test_support::node_state::state();
    state.sources = vec![SourceStatus::up(SourceKind::Runtime, "docker")];
    let text = shown(&state);
    assert_eq!(table(&text, "Pods").len(), 3, "{text}");
}
