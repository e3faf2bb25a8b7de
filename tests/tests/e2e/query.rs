//! The query commands: with a running daemon, on the files of a dead one, and where nothing is found.

use kevtmon_tests::advice::{incident, opened};
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Finished, attempt, hold_by_cwd, run};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Exit codes of the commands that read.
const NOTHING: i32 = 1;
const NO_ANSWER: i32 = 2;

/// A pod whose gateway is lost, and the daemon that reported it.
fn pod_with_incident() -> (Pod, PodSandbox, Daemon, Event) {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    pod.delete_gateway();
    let opened = daemon.wait_for_incident(sandbox.id());
    (pod, sandbox, daemon, opened)
}

fn kill(daemon: &mut Daemon) {
    daemon.signal(Signal::SIGKILL);
    assert_eq!(daemon.wait(), None);
}

#[track_caller]
fn expect(ran: &Finished, code: i32, words: &[&str]) {
    assert_eq!(ran.status.code(), Some(code), "{}{}", ran.stdout, ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "{word} in {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

/// Panics unless it was answered from the files of the daemon, with a remark about that.
#[track_caller]
fn expect_left(ran: &Finished, code: i32, daemon: &Daemon) {
    let (socket, state) = (daemon.socket(), daemon.state());
    let (socket, state) = (socket.to_string_lossy(), state.to_string_lossy());
    let end = "in which there is nothing after ";
    expect(ran, code, &["no daemon listens on", &socket, "reading its files in", &state, end]);
}

#[test]
fn a_dead_daemon_has_left_what_a_live_one_answers() {
    let (_pod, sandbox, mut daemon, opened) = pod_with_incident();
    let (id, uid) = (&sandbox.id()[..12], sandbox.uid());
    let narrow = ["--kind", "gateway-neighbor-lost", "--pod", uid, "--severity", "warning"];
    let narrow = [&["incidents", "--json"][..], &narrow].concat();
    let questions: [&[&str]; 5] = [
        &narrow,
        &["events", "--json", "--container", id],
        &["events", "--json", "--pod", uid, "--kind", "incident.", "--since", "1h", "--severity", "warning"],
        &["events", "--container", id, "--limit", "1"],
        &["incidents", "--json", "--all"],
    ];
    let about_it = |ran: &Finished| -> Vec<String> {
        ran.stdout.lines().filter(|line| line.contains(sandbox.id())).map(str::to_owned).collect()
    };
    let live = questions.map(|question| daemon.ask(question).succeeded("a question to a live daemon"));
    for ran in &live {
        assert_eq!(ran.stderr, "");
    }
    assert_eq!(about_it(&live[0]).len(), 1, "{}", live[0].stdout);
    for other in [["--kind", "volume-busy"], ["--pod", "nowhere/nothing"]] {
        let ran = daemon.ask(&["incidents", "--json", other[0], other[1]]);
        assert_eq!(about_it(&ran), [""; 0], "{other:?}");
    }
    let why = daemon.ask(&["why", "--json", id]).succeeded("why");
    kill(&mut daemon);

    for (question, live) in questions.into_iter().zip(&live) {
        let dead = daemon.ask(question);
        expect_left(&dead, 0, &daemon);
        let (dead, live) = (about_it(&dead), about_it(live));
        if question[0] == "events" {
            assert_eq!(dead, live, "{question:?}");
            continue;
        }
        // What is open is told otherwise: nobody watches it.
        let [dead, live] = [dead, live].map(|lines| {
            let incidents = lines.iter().map(|line| Event::parse(line).unwrap_or_else(|bad| panic!("{bad}")));
            incidents.map(|incident| incident.text("/id").to_owned()).collect::<Vec<_>>()
        });
        assert_eq!(dead, live, "{question:?}");
    }
    let emitted = daemon.find(&["events", "--container", id]);
    assert!(emitted.iter().any(|event| event.to_string() == opened.to_string()), "{opened}");
    assert!(emitted.iter().any(|event| event.kind() == "neighbor.deleted"), "{opened}");

    let dead = daemon.ask(&["why", "--json", id]);
    expect_left(&dead, 0, &daemon);
    let [before, after] =
        [why, dead].map(|ran| Event::parse(&ran.stdout).unwrap_or_else(|bad| panic!("{bad}")));
    for pointer in ["/verdict/since", "/verdict/open", "/incidents/0/id"] {
        assert!(before.has(pointer), "{pointer} in {before}");
        assert_eq!(before.get(pointer), after.get(pointer), "{pointer}");
    }
    assert!(before.text("/verdict/sentence").contains(" has lost its gateway "), "{before}");
    let sentence = after.text("/verdict/sentence");
    assert!(sentence.starts_with("last known: ") && sentence.contains(" has lost its gateway "), "{after}");
    after.expect("/incidents/0/id", opened.text("/incident/id"));
    let blind = daemon.ask(&["why", uid]);
    expect_left(&blind, 0, &daemon);
    assert!(blind.stdout.contains("no daemon answers: nothing after"), "{}", blind.stdout);
}

#[test]
fn what_a_dead_daemon_left_open_is_told_as_it_was_and_advises_nothing_but_to_start_it() {
    let volume = Mount::volume();
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().kubelet(&volume).start();
    pod.delete_gateway();
    let lost = daemon.wait_for_incident(sandbox.id()).text("/incident/id").to_owned();
    let holder = hold_by_cwd(volume.point());
    let _ = volume.umount_refused();
    let path = volume.point().to_string_lossy().into_owned();
    let busy = opened(&mut daemon, "volume-busy", |event| event.text("/mount/path") == path);
    let (replace, end) = ("ip neigh replace", format!("kill {}", holder.pid()));
    let ids = [lost, busy];
    // All that shows incidents to people, without the line breaks.
    let shown = |daemon: &Daemon| {
        let questions: [&[&str]; 4] =
            [&["why", &ids[0]], &["why", &ids[1]], &["incidents"], &["events", "--kind", "incident."]];
        questions.map(|question| {
            let text = daemon.ask(question).succeeded("a question").stdout.replace("\\\n", " ");
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        })
    };
    let all_advised = |daemon: &Daemon| {
        let [gateway, volume, both, _] = shown(daemon);
        gateway.contains(replace) && volume.contains(&end) && both.contains(replace) && both.contains(&end)
    };
    eventually!(all_advised(&daemon), "both are advised on while the daemon runs");
    let is_stored = |id: &String| {
        let stored = daemon.find_committed(&["events", "--kind", "incident."]);
        stored.iter().any(|event| event.text("/incident/id") == id)
    };
    eventually!(ids.iter().all(is_stored), "both are stored");
    kill(&mut daemon);

    for id in &ids {
        let left = incident(&daemon, id);
        assert!(left.list("/advice").is_empty() && !left.has("/closed"), "{left}");
        left.expect("/stale/reason", "no daemon answers");
        assert!(left.has("/stale/since"), "{left}");
        let story = daemon.find(&["why", id]).remove(0);
        assert!(!story.has("/advice"), "{story}");
        story.expect("/verdict/stale/reason", "no daemon answers");
    }
    let told = shown(&daemon);
    for text in &told[..3] {
        let unknown = "; it is unknown whether it is still open: no daemon answers";
        for words in
            [", and was open at ", ", the last that is known", unknown, "start kevtmon and query again"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    for text in &told {
        for words in ["ip neigh replace", "kill ", "umount --lazy", "nsenter"] {
            assert!(!text.contains(words), "{words}: {text}");
        }
    }
    let verdict = |text: &str| text.split("Verdict").nth(1).unwrap_or_default().to_owned();
    for (text, words) in told.iter().zip([" has lost its gateway ", " cannot be unmounted"]) {
        let verdict = verdict(text);
        assert!(verdict.trim_start().starts_with("last known: ") && verdict.contains(words), "{text}");
    }
}

#[test]
fn a_dead_daemon_is_not_followed_and_leaves_the_state_of_the_node_as_it_was_recorded_last() {
    let mut daemon = launch().start();
    assert!(daemon.ask(&["state"]).succeeded("state").stdout.contains("hook.neighbor"));
    let live: Value = daemon.ask(&["state", "--json"]).succeeded("state").stdout.parse().expect("JSON");
    daemon.stop();
    let ran = daemon.ask(&["state"]);
    expect_left(&ran, 0, &daemon);
    let text = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [" as it was at ", "no daemon answers", "netlink was up"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let ran = daemon.ask(&["state", "--json"]);
    expect_left(&ran, 0, &daemon);
    let left: Value = ran.stdout.parse().expect("JSON");
    assert_eq!((&left["stale"]["reason"], live.get("stale")), (&"no daemon answers".into(), None));
    for same in ["node", "boot_id", "version", "ready", "sources"] {
        assert_eq!(left[same], live[same], "{same}");
    }
    let ran = daemon.ask(&["events", "--follow"]);
    expect_left(&ran, NO_ANSWER, &daemon);
    expect(&ran, NO_ANSWER, &["--follow needs a running daemon"]);
}

#[test]
fn where_nothing_is_found_it_is_said_where_it_was_looked_and_what_is_wrong_with_a_question() {
    let mut daemon = launch().start();
    let questions: [&[&str]; 4] = [
        &["why", "203.0.113.7"],
        &["why", "/var/lib/kubelet/pods/nowhere", "--json"],
        &["events", "--pod", "nowhere/nothing"],
        &["events", "--json", "--until", "2001-01-01T00:00:00Z"],
    ];
    let (socket, state) = (daemon.socket(), daemon.state());
    for question in questions {
        let ran = daemon.ask(question);
        expect(&ran, NOTHING, &["queried the daemon at", &socket.to_string_lossy(), "reaches back to"]);
        assert_eq!(ran.stdout, "");
    }
    for (question, code, words) in [
        (&["events", "--since", "yesterday"][..], NO_ANSWER, &["--since", "yesterday"][..]),
        (&["events", "--limit", "0"], NO_ANSWER, &["--limit"]),
        (&["events", "--severity", "terrible"], NO_ANSWER, &["--severity", "critical"]),
        (&["events", "--kind", "volume-busy"], NO_ANSWER, &["incidents --kind volume-busy"]),
        (&["incidents", "--kind", "mount.busy"], NO_ANSWER, &["--kind", "volume-busy"]),
        (&["why", ""], NO_ANSWER, &["name a pod"]),
        (&["events", "--seq", "7"], 64, &["--seq"]),
    ] {
        let ran = daemon.ask(question);
        expect(&ran, code, words);
        assert_eq!(ran.stdout, "");
    }
    daemon.stop();
    for question in questions {
        let ran = daemon.ask(question);
        expect_left(&ran, NOTHING, &daemon);
        expect(&ran, NOTHING, &["searched the event store in", &state.to_string_lossy(), "reaches back to"]);
        assert_eq!(ran.stdout, "");
    }
}

#[test]
fn a_word_that_means_several_things_lists_words_that_mean_one() {
    let (first, second) = (Pod::new(), Pod::new());
    let mut daemon = launch().start();
    for pod in [&first, &second] {
        pod.delete_gateway();
        daemon.wait_for_deletion(pod.inum(), GATEWAY);
    }
    for alive in [true, false] {
        if !alive {
            daemon.stop();
        }
        let ran = daemon.ask(&["why", "eth0"]);
        expect(&ran, NO_ANSWER, &["eth0 is ambiguous"]);
        assert_eq!(ran.stdout, "");
        for pod in [&first, &second] {
            let start = format!("interface:{}/", pod.inum());
            let mut words = ran.stderr.split_whitespace();
            let handle = words.find(|word| word.starts_with(&start));
            let handle = handle.unwrap_or_else(|| panic!("{start} in {}", ran.stderr));
            let story = daemon.ask(&["why", handle]);
            expect(&story, 0, &[]);
            assert!(story.stdout.contains("by means of ip"), "{}", story.stdout);
        }
        let ran = daemon.ask(&["why", "--json", "eth0"]);
        expect(&ran, NO_ANSWER, &["eth0 is ambiguous"]);
        let listed = Event::parse(&ran.stdout).unwrap_or_else(|bad| panic!("{bad}"));
        assert!(listed.list("/candidates").len() >= 2, "{listed}");
    }
}

#[test]
fn where_there_is_neither_daemon_nor_store_both_are_named() {
    let scratch = Scratch::new();
    let place = scratch.path().to_string_lossy();
    let (socket, state) = (format!("{place}/kevtmon.sock"), format!("{place}/state"));
    let program = kevtmon_tests::daemon::program();
    for question in [&["events"][..], &["incidents"], &["why", "eth0"], &["state"]] {
        let mut words = vec![program.as_os_str()];
        let places = ["--socket", &socket, "--state-dir", &state];
        words.extend(question.iter().chain(&places).map(AsRef::<std::ffi::OsStr>::as_ref));
        let ran = attempt(&words);
        expect(&ran, NO_ANSWER, &[&socket, &state]);
        assert_eq!(ran.stdout, "");
    }
    let line = "[1.5] cni0: port 2(veth0a1b2c3d) entered disabled state";
    let ran = attempt(&[
        program.as_os_str(),
        "explain".as_ref(),
        line.as_ref(),
        "--socket".as_ref(),
        socket.as_ref(),
        "--state-dir".as_ref(),
        state.as_ref(),
    ]);
    expect(&ran, 0, &[&socket, &state]);
    assert!(ran.stdout.contains("Harmless: "), "{}", ran.stdout);
    assert!(!scratch.path().join("state").exists(), "a question makes no files");
}

/// `incidents --all` of one id: number of the episode, whether it is closed, its evidence.
fn episodes(daemon: &Daemon, id: &str) -> Vec<(u64, bool, Vec<Value>)> {
    let all = daemon.find(&["incidents", "--all"]).into_iter().filter(|incident| incident.text("/id") == id);
    all.map(|incident| {
        let episode = incident.number("/episode").unwrap_or_default();
        (episode, incident.has("/closed"), incident.list("/evidence").to_vec())
    })
    .collect()
}

fn close(daemon: &mut Daemon, pod: &Pod, id: &str, episode: u64) {
    pod.set_gateway();
    daemon.wait_for("incident.closed", |event| {
        event.kind() == "incident.closed"
            && event.text("/incident/id") == id
            && event.number("/incident/episode") == Some(episode)
    });
}

fn reopened(daemon: &mut Daemon, pod: &Pod, id: &str, episode: u64) {
    pod.delete_gateway();
    let opened = daemon.wait_for("incident.opened", |event| {
        event.kind() == "incident.opened"
            && event.text("/incident/id") == id
            && event.number("/incident/episode") == Some(episode)
    });
    assert_eq!(opened.list("/incident/evidence").len(), 1, "its own evidence: {opened}");
}

#[test]
fn an_incident_that_opens_again_keeps_its_earlier_episodes() {
    let (pod, _sandbox, mut daemon, opened) = pod_with_incident();
    let id = opened.text("/incident/id").to_owned();
    opened.expect("/incident/episode", 1);
    close(&mut daemon, &pod, &id, 1);
    reopened(&mut daemon, &pod, &id, 2);
    close(&mut daemon, &pod, &id, 2);
    daemon.stop();
    let before = episodes(&daemon, &id);
    assert_eq!(
        before.iter().map(|(episode, closed, _)| (*episode, *closed)).collect::<Vec<_>>(),
        [(1, true), (2, true)]
    );
    assert_ne!(before[0].2, before[1].2, "each has its own evidence");

    let mut again = launch().on_state_of(&daemon).start();
    reopened(&mut again, &pod, &id, 3);
    let now = episodes(&again, &id);
    assert_eq!(now[..2], before[..], "nothing is overwritten");
    assert_eq!((now[2].0, now[2].1), (3, false));
    let story = again.ask(&["why", &id]).succeeded("why").stdout;
    for words in ["episode 2", "episode 3", "resolved: ", "has lost its gateway"] {
        assert!(story.contains(words) || story.replace("\n    ", " ").contains(words), "{words} in {story}");
    }
    assert!(story.lines().all(|line| line.chars().count() <= 80), "{story}");
    again.stop();
}

#[test]
fn whatever_another_command_prints_leads_to_the_story() {
    let volume = Mount::volume();
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    pod.delete_gateway();
    volume.umount_refused();
    let gateway = daemon.wait_for("the gateway", |event| {
        event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(pod.inum())
    });
    let path = volume.point().to_string_lossy().into_owned();
    let busy = daemon.wait_for("the volume", |event| {
        event.is_incident("incident.opened", "volume-busy") && event.text("/mount/path") == path
    });
    drop(holder);
    let pid = busy.get("/holders/0/pid").expect("a holder").to_string();
    let seq = gateway.get("/incident/evidence/0").expect("evidence").to_string();
    let (lost, held) = (gateway.text("/incident/id"), busy.text("/incident/id"));
    for (word, id) in [
        (lost.to_owned(), lost),
        (lost[..8].to_owned(), lost),
        (format!("incident:{lost}"), lost),
        (sandbox.id()[..6].to_owned(), lost),
        (sandbox.uid().to_owned(), lost),
        (pod.inum().to_string(), lost),
        (pod.address().to_owned(), lost),
        (format!("seq:{seq}"), lost),
        (held.to_owned(), held),
        (path.clone(), held),
        (pid, held),
        (busy.text("/mount/device").to_owned(), held),
    ] {
        let ran = daemon.ask(&["why", "--json", &word]);
        expect(&ran, 0, &[]);
        let story = Event::parse(&ran.stdout).unwrap_or_else(|bad| panic!("{bad}"));
        let incidents = story.list("/incidents");
        assert!(incidents.iter().any(|incident| incident["id"] == id), "{word}: {story}");
    }
    // The host end of a pair that is gone, and the address of a pod that is.
    let (host_end, address) = (pod.host_end().to_owned(), pod.address().to_owned());
    drop((sandbox, pod));
    daemon.wait_for("the end of the pair", |event| {
        event.kind() == "link.deleted" && event.to_string().contains(&host_end)
    });
    expect(&daemon.ask(&["why", &host_end]), 0, &[]);
    let of_address = || daemon.ask(&["why", "--json", &address]);
    eventually!(of_address().stdout.contains(lost), "the pod that had the address is remembered");
    let story = Event::parse(&of_address().stdout).unwrap_or_else(|bad| panic!("{bad}"));
    assert!(story.list("/incidents").iter().any(|incident| incident["id"] == lost), "{story}");
}

#[test]
fn the_story_of_a_host_end_that_is_gone_is_that_of_the_pod_it_led_to() {
    let (pod, _sandbox, mut daemon, opened) = pod_with_incident();
    let host_end = pod.host_end().to_owned();
    let _ = run(&format!("ip link del {host_end}")).succeeded("ip");
    daemon.wait_for("the end of the interface", |event| {
        event.kind() == "link.deleted" && event.text("/link/ifname") == host_end
    });
    let is_gone = || !daemon.ask(&["state", "--json"]).stdout.contains(&format!("\"{host_end}\""));
    eventually!(is_gone(), "the daemon knows that it is gone");
    let story = daemon.find(&["why", &host_end]).remove(0);
    story.expect("/incidents/0/id", opened.text("/incident/id"));
    assert!(story.text("/verdict/sentence").contains(" gateway "), "{story}");
}

#[test]
fn nothing_wrong_and_nothing_known_say_what_is_not_watched() {
    let pod = Pod::new();
    let _sandbox = PodSandbox::of(&pod);
    let daemon = launch().config("[hooks]\numount = \"off\"\n").start();
    let ran = daemon.ask(&["why", pod.host_end()]);
    expect(&ran, 0, &[]);
    let text = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in
        ["Not watched on this node:", "unmounts that are refused (hook.umount: switched off)", "no runtime"]
    {
        assert!(text.contains(words), "{words} in {text}");
    }
    let ran = daemon.ask(&["why", "203.0.113.7"]);
    expect(&ran, NOTHING, &["nothing is known of 203.0.113.7", "Not watched on this node:", "hook.umount"]);
}

#[test]
fn a_default_route_that_was_deleted_or_a_host_end_that_is_down_is_told_though_no_incident_is_open() {
    let (routed, linked) = (Pod::new(), Pod::new());
    let daemon = launch().start();
    let story = |pod: &Pod| daemon.find(&["why", &format!("netns:{}", pod.inum())]).remove(0);
    daemon.wait_for_gateway(routed.inum(), GATEWAY);
    let is_told = |story: &Event| {
        let sentence = story.text("/verdict/sentence");
        sentence.starts_with("no gateway in ")
            && sentence.contains(&format!(" is in use: the default route via {GATEWAY} was deleted"))
    };
    assert!(!is_told(&story(&routed)), "{}", story(&routed));
    let _ = routed.ip("route del default").succeeded("ip");
    eventually!(is_told(&story(&routed)), "it is told");
    story(&routed).expect("/verdict/open", true);
    let _ = routed.ip(&format!("route add default via {GATEWAY}")).succeeded("ip");
    eventually!(!is_told(&story(&routed)), "it is there again");
    story(&routed).expect("/verdict/open", false);

    daemon.wait_for_gateway(linked.inum(), GATEWAY);
    let end = linked.host_end();
    let is_told = |story: &Event| {
        let sentence = story.text("/verdict/sentence");
        sentence.starts_with("nothing passes through eth0 ")
            && sentence.contains(&format!(": its host end {end} is down"))
    };
    assert!(!is_told(&story(&linked)), "{}", story(&linked));
    run(&format!("ip link set {end} down"));
    // On a busy machine one answer may come before the host's side was looked at.
    let told = wait_until("it is told", || Some(story(&linked)).filter(is_told));
    told.expect("/verdict/open", true);
    let is_down = |step: &Value| {
        step["kind"] == "link.changed" && step["message"].as_str().is_some_and(|text| text.contains(" down"))
    };
    eventually!(story(&linked).list("/steps").iter().any(is_down), "when it was set down is told");
    run(&format!("ip link set {end} up"));
    eventually!(!is_told(&story(&linked)), "it is up again");
    story(&linked).expect("/verdict/open", false);
}
