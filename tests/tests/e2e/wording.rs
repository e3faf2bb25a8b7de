//! What operators read: who was refused, names that try to be more than names, what repeats itself, what is not judged
//! yet.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::balance::{Balance, stop_and_account, stop_and_account_by_store, wait_for_balance};
use kevtmon_tests::daemon::{Daemon, launch, program};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::fake_dockerd::FakeDockerd;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::mount::{Mount, Scratch, settle};
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Finished, Running, finish, hold_by_cwd, run};
use serde_json::Value;

/// A shell under another name, which no culprit is looked for behind.
fn program_called(scratch: &Scratch, name: &str) -> PathBuf {
    let program = scratch.path().join(name);
    // By another process: one that a parallel test forks would inherit a descriptor to write it with.
    let _ = finish(Command::new("cp").arg("/bin/bash").arg(&program), "cp".as_ref()).succeeded("cp");
    program
}

/// Has a program run these commands as its own processes.
fn script(program: &Path, script: &str, argument: &Path) -> Finished {
    let mut command = Command::new(program);
    command.args(["-c", &format!("{script}; true")]).arg(argument);
    finish(&mut command, program.as_os_str()).succeeded(script)
}

fn why(daemon: &Daemon, word: &str) -> String {
    daemon.ask(&["why", word]).succeeded("why").stdout
}

/// Text without the line breaks of a terminal.
fn unbroken(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_refusal_names_who_was_refused_and_different_callers_are_different_lines() {
    let scratch = Scratch::new();
    let kubelet = program_called(&scratch, "kubelet");
    let mount = Mount::new();
    let mut daemon = launch().start();
    let holder = hold_by_cwd(mount.point());
    settle(mount.point().parent().expect("a directory above"));
    let callers = [(); 2].map(|()| script(&kubelet, "umount \"$0\"; umount \"$0\"", mount.point()).pid);
    let path = mount.point().to_string_lossy().into_owned();
    for caller in callers {
        for attempt in [1, 2] {
            let busy = daemon.wait_for_holders("a refused unmount", |event| {
                event.kind() == "mount.busy"
                    && event.text("/mount/path") == path
                    && event.number("/actor/ancestors/0/pid") == Some(caller.into())
                    && event.number("/mount/attempts") == Some(attempt)
            });
            let expected = format!("umount of \"{path}\" by kubelet (pid {caller}), run by e2e-",);
            assert!(busy.text("/message").starts_with(&expected), "{expected}: {busy}");
            let holder = format!(
                ", by means of umount, refused: held by sleep (pid {}) as its current directory",
                holder.pid()
            );
            assert!(busy.sentence().ends_with(&holder), "{holder}: {busy}");
        }
    }
    let story = daemon.find(&["why", &path]).remove(0);
    let told: Vec<&str> = story.list("/steps").iter().filter_map(|step| step["message"].as_str()).collect();
    for caller in callers {
        let lines = told.iter().filter(|line| line.contains(&format!("by kubelet (pid {caller})"))).count();
        assert_eq!(lines, 1, "{told:#?}");
    }
    stop_and_account(daemon);
}

#[test]
fn a_process_cannot_write_a_part_of_the_sentence_by_its_name() {
    let scratch = Scratch::new();
    let pod = Pod::new();
    let mut daemon = launch().start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let evil = program_called(&scratch, "kubelet (pid 1)");
    let delete = format!("ip -n \"$0\" neigh del {GATEWAY} dev eth0");
    let ran = script(&evil, &delete, pod.netns_name().as_ref());
    let deleted = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    let by = format!("deleted by \"kubelet (pid 1)\" (pid {}), run by ", ran.pid);
    assert!(deleted.text("/message").contains(&by), "{by}: {deleted}");
    deleted.expect("/actor/ancestors/0/comm", "kubelet (pid 1)");
    let story = unbroken(&why(&daemon, &pod.inum().to_string()));
    assert!(story.contains(&by), "{by}: {story}");
    let events = daemon.ask(&["events", "--severity", "warning"]).succeeded("events").stdout;
    assert!(events.contains(&format!("← \"kubelet (pid 1)\"({})", ran.pid)), "{events}");
    stop_and_account(daemon);
}

/// The answer of the socket to a request, as it came.
fn raw_answer(daemon: &Daemon, target: &str) -> String {
    let mut socket = UnixStream::connect(daemon.socket()).expect("the daemon listens");
    write!(socket, "GET {target} HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("it answers");
    String::from_utf8(answer).expect("UTF-8")
}

#[test]
fn no_character_that_hides_or_reorders_text_leaves_the_daemon() {
    const ODD: &str = "a\u{202e}b\u{7f}\u{9b}c";
    let scratch = Scratch::new();
    let pod = Pod::new();
    let file = scratch.path().join("stdout");
    let daemon = launch().stdout(File::create(&file).expect("a file")).spawn();
    let printed = || std::fs::read_to_string(&file).expect("UTF-8");
    eventually!(printed().contains("daemon.ready"), "the daemon is ready");
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let program = program_called(&scratch, ODD);
    script(&program, &format!("ip -n \"$0\" neigh del {GATEWAY} dev eth0"), pod.netns_name().as_ref());
    let inum = pod.inum().to_string();
    let is_own = |line: &str| line.contains("neighbor.deleted") && line.contains(&inum);
    eventually!(printed().lines().any(is_own), "the event is written");
    let answers = [
        printed(),
        daemon.ask(&["events", "--severity", "warning", "--json"]).stdout,
        daemon.ask(&["why", &inum, "--json"]).stdout,
        raw_answer(&daemon, "/v1/events?severity=warning"),
        raw_answer(&daemon, &format!("/v1/why?subject={inum}")),
    ];
    for answer in answers {
        assert!(!answer.contains(['\u{202e}', '\u{7f}', '\u{9b}']), "{answer:?}");
        assert!(answer.contains(r"a\u202eb\u007f\u009bc"), "{answer}");
    }
    let line = printed().lines().find(|line| line.contains(r"a\u202eb")).map(Event::parse);
    line.expect("a line").expect("JSON").expect("/actor/ancestors/0/comm", ODD);
    for text in [daemon.ask(&["events", "--severity", "warning"]).stdout, why(&daemon, &inum)] {
        assert!(!text.chars().any(|c| c != '\n' && c.is_control() || c == '\u{202e}'), "{text:?}");
        assert!(unbroken(&text).contains(r#""a\u{202e}b\x7f\x9bc" (pid "#), "{text}");
    }
    stop_and_account_by_store(daemon);
}

#[test]
fn a_network_namespace_has_a_story_by_its_name_path_and_number_and_keeps_it() {
    let mut pod = Pod::new();
    let mut daemon = launch().start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let ip = pod.delete_gateway();
    daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
    let (name, inum) = (pod.netns_name().to_owned(), pod.inum());
    let by = format!("{GATEWAY} on eth0 in namespace {name} deleted by ");
    let expect_story = |words: &[String]| {
        for word in words {
            let story = unbroken(&why(&daemon, word));
            assert!(story.contains(&by), "{word}: {story}");
        }
    };
    let names = [name.clone(), format!("/run/netns/{name}"), format!("/var/run/netns/{name}")];
    expect_story(&names);
    expect_story(&[inum.to_string(), format!("net:[{inum}]")]);
    pod.delete_netns();
    let is_gone = || !daemon.ask(&["state", "--json"]).stdout.contains(&name);
    eventually!(is_gone(), "the namespace has left the model");
    expect_story(&names);
    stop_and_account(daemon);
}

#[test]
fn a_loss_that_is_not_judged_yet_is_told_with_the_reason_and_what_is_over_is_told_as_over() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    // A story that is over.
    pod.delete_gateway();
    let of_pod = |event: &Event| event.text("/target/container/id") == sandbox.id();
    daemon.wait_for("an incident", |event| event.kind() == "incident.opened" && of_pod(event));
    pod.set_gateway();
    let closed = daemon.wait_for("its end", |event| event.kind() == "incident.closed" && of_pod(event));
    let ruled_out = closed.list("/incident/ruled_out");
    assert!(ruled_out.iter().any(|text| text == "eth0 is up"), "{closed}");
    let quiet = unbroken(&why(&daemon, sandbox.uid()));
    assert!(quiet.contains("ruled out then: eth0 is up") && !quiet.contains("not judged"), "{quiet}");

    run(&format!("ip link del {}", pod.host_end()));
    let gone = daemon.wait_for("the entry's end", |event| {
        event.is_deletion(pod.inum(), GATEWAY) && event.text("/neighbor/cause") == "link-deleted"
    });
    for word in [sandbox.uid(), &sandbox.id()[..12], pod.netns_name()] {
        let story = daemon.find(&["why", word]).remove(0);
        let sentence = story.text("/verdict/sentence");
        assert!(
            sentence.contains(&format!("misses the static ARP entry of its gateway {GATEWAY}")),
            "{story}"
        );
        assert!(sentence.contains("; not judged yet: its interface or address went with it"), "{story}");
        story.expect("/verdict/since", gone.text("/time"));
        assert!(story.has("/verdict/judged") && story.has("/suspected/0/due"), "{story}");
        let text = unbroken(&why(&daemon, word));
        assert!(text.contains("not judged yet") && text.contains("· judged at "), "{text}");
    }
    // Pods of other tests have the same gateway.
    let story = daemon.find(&["why", GATEWAY]).remove(0);
    let inum = Value::from(pod.inum());
    let of_pod = |suspected: &&Value| suspected.pointer("/neighbor/netns") == Some(&inum);
    let suspected = story.list("/suspected").iter().find(of_pod);
    assert!(suspected.is_some_and(|it| it.get("due").is_some()), "{story}");
    stop_and_account(daemon);
}

/// How many entries the lines of this kind stand for, and how many lines there are.
fn counted(text: &str, kind: &str, about: &str) -> (usize, usize) {
    let of_it = |line: &&str| !line.starts_with(' ') && line.contains(kind) && line.contains(about);
    let lines: Vec<&str> = text.lines().filter(of_it).collect();
    let stands_for = |line: &&str| {
        let more = line.split_once("… ").and_then(|(_, rest)| rest.split_once(" more like it"));
        more.map_or(1, |(count, _)| count.parse().expect("a number"))
    };
    (lines.iter().map(stands_for).sum(), lines.len())
}

/// Lets this many static entries come, and then go.
fn come_and_go(pod: &Pod, entries: usize) {
    for (verb, rest) in [("add", " lladdr ee:ee:ee:ee:ee:01 nud permanent"), ("del", "")] {
        let line = |at: usize| {
            format!(
                "neigh {verb} 10.{}.{}.{} dev eth0{rest}\n",
                9 + at / 62_500,
                at / 250 % 250,
                1 + at % 250
            )
        };
        let lines: String = (0..entries).map(line).collect();
        let _ = pod.netns().ip_batch(&lines).succeeded(verb);
    }
}

#[test]
fn a_batch_is_few_lines_with_a_count_on_a_terminal_and_for_who_follows_and_every_event_in_json() {
    const ENTRIES: usize = 600;
    let pod = Pod::new();
    let scratch = Scratch::new();
    let [file, followed] = ["stdout", "followed"].map(|name| scratch.path().join(name));
    let daemon = launch().output("pretty").stdout(File::create(&file).expect("a file")).spawn();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    come_and_go(&pod, 1);
    let mut follow = Command::new(program());
    follow.args(["events", "--follow", "--since", "1h", "--kind", "neighbor.deleted", "--socket"]);
    follow.arg(daemon.socket()).stdin(Stdio::null()).stdout(File::create(&followed).expect("a file"));
    let _follower = Running::spawn(&mut follow);
    let about = format!(" in namespace {} ", pod.netns_name());
    let printed =
        |file: &Path| counted(&std::fs::read_to_string(file).expect("UTF-8"), "neighbor.deleted", &about);
    eventually!(printed(&followed).0 == 1, "what was before is printed");
    come_and_go(&pod, ENTRIES);
    for file in [&file, &followed] {
        // The last of it is not kept back.
        eventually!(printed(file).0 == ENTRIES + 1, "all are accounted for");
        assert!(printed(file).1 < ENTRIES / 10, "{:?}", printed(file));
    }
    let since = ["--kind", "neighbor.deleted", "--since", "1h"];
    let past = daemon.ask(&[&["events"][..], &since].concat()).succeeded("events").stdout;
    let (events, lines) = counted(&past, "neighbor.deleted", &about);
    assert!(events == ENTRIES + 1 && lines < ENTRIES / 10, "{events} in {lines} lines");
    let in_json = daemon.find(&[&["events"][..], &since].concat());
    assert_eq!(in_json.iter().filter(|event| event.is_in(pod.inum())).count(), ENTRIES + 1);
    stop_and_account_by_store(daemon);
}

/// How many lines of a story stand for removed containers, and for how many.
fn removals(story: &Event) -> (usize, u64) {
    let is_removal = |step: &&Value| step["kind"] == "container.removed";
    let steps: Vec<_> = story.list("/steps").iter().filter(is_removal).collect();
    let count = |step: &&Value| 1 + step["repeated"]["count"].as_u64().unwrap_or_default();
    (steps.len(), steps.iter().map(count).sum())
}

#[test]
fn containers_of_a_pod_that_are_removed_one_after_the_other_are_one_line_of_its_story() {
    const NUMBER: u64 = 37;
    let (pod, docker) = (Pod::new(), FakeDockerd::start());
    let first = PodSandbox::of(&pod);
    let mut daemon = launch().joining(docker.runtime()).start();
    eventually!(docker.is_followed(), "the events are read");
    let containers: Vec<PodSandbox> = (0..NUMBER).map(|_| first.another(&pod)).collect();
    let mut wait_for = |kind: &str, container: &PodSandbox| {
        daemon.wait_for(kind, |event| {
            event.kind() == kind
                && event.text("/target/container/id") == container.id()
                && event.text("/target/pod/name") == "etcd1-0"
        });
    };
    for container in &containers {
        docker.start_container_of_pod(container, "lijiaob", "etcd1-0");
        wait_for("container.started", container);
    }
    for container in &containers {
        docker.end_container(container.id());
        wait_for("container.exited", container);
    }
    for container in &containers {
        docker.remove_container(container.id());
        wait_for("container.removed", container);
    }
    let story = daemon.find(&["why", "lijiaob/etcd1-0"]).remove(0);
    assert_eq!(removals(&story), (1, NUMBER), "{story}");
    let text = why(&daemon, "lijiaob/etcd1-0");
    let lines = text.lines().filter(|line| line.ends_with("  container.removed")).count();
    assert_eq!(lines, 1, "{text}");
    assert!(text.contains(&format!("… {} more like it until ", NUMBER - 1)), "{text}");
    stop_and_account(daemon);
}

#[test]
fn a_terminal_does_not_repeat_below_an_event_what_stands_above_and_no_story_is_wider_than_it() {
    let (pod, volume) = (Pod::new(), Mount::volume());
    let sandbox = PodSandbox::of(&pod);
    let scratch = Scratch::new();
    let file = scratch.path().join("stdout");
    let stdout = File::create(&file).expect("a file");
    let daemon = launch().kubelet(&volume).output("pretty").stdout(stdout).spawn();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let holder = hold_by_cwd(volume.point());
    let ip = pod.delete_gateway();
    volume.umount_refused();
    let path = volume.point().to_string_lossy().into_owned();
    // Each block: a line with the time, and what stands indented below it.
    let blocks = || {
        let mut blocks: Vec<Vec<String>> = Vec::new();
        for line in std::fs::read_to_string(&file).expect("UTF-8").lines() {
            match blocks.last_mut() {
                Some(block) if line.starts_with(' ') => block.push(line.trim().to_owned()),
                _ => blocks.push(vec![line.to_owned()]),
            }
        }
        blocks
    };
    let own = |kind: &str, text: &str| {
        blocks().iter().position(|block| block[0].contains(kind) && block[0].contains(text))
    };
    // ROOT/pods/UID/volumes/PLUGIN/NAME
    let volume_pod = path.rsplit('/').nth(3).expect("the uid of its pod");
    let stories = [
        ("neighbor.deleted", sandbox.uid(), ip.pid.to_string()),
        ("mount.busy", volume_pod, holder.pid().to_string()),
    ];
    for (kind, subject, culprit) in &stories {
        eventually!(own(kind, subject).is_some(), "{kind} is printed");
        eventually!(own("incident.opened", subject).is_some(), "its incident is printed");
        let all = blocks();
        let (event, incident) =
            (own(kind, subject).expect("above"), own("incident.opened", subject).expect("above"));
        assert!(event < incident);
        let (event, incident) = (&all[event], &all[incident]);
        assert!(event.iter().any(|line| line.contains(culprit.as_str())), "{culprit} in {event:#?}");
        let repeated: Vec<&String> = incident.iter().filter(|line| event.contains(line)).collect();
        assert!(repeated.is_empty() && incident.len() > 1, "{repeated:#?} of {event:#?} in {incident:#?}");
    }

    for word in [sandbox.uid(), &*path] {
        let story = why(&daemon, word);
        // A command is there to be pasted: its arguments stay whole.
        let is_wide = |line: &&str| line.chars().count() > 80 && line.trim() != path;
        let wide: Vec<&str> = story.lines().filter(is_wide).collect();
        assert!(wide.is_empty(), "{wide:#?}");
        assert!(story.lines().any(|line| line.starts_with("    ")), "it is folded: {story}");
        for part in ["Cause to effect", "What happened", "Verdict", "Next"] {
            assert!(story.lines().any(|line| line == part), "{part} in {story}");
        }
    }
    drop(holder);
    stop_and_account_by_store(daemon);
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn sixty_thousand_deletions_of_one_batch_are_one_line_with_a_count() {
        const ENTRIES: usize = 60_000;
        // The daemons of other tests would have to tell them, too.
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        let daemon = launch().start();
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
        come_and_go(&pod, ENTRIES);
        let labels = [("state", "permanent"), ("origin", "admin")];
        let deleted = || daemon.metrics().count("kevtmon_kernel_neighbor_deletions_total", &labels);
        eventually!(deleted() >= ENTRIES as f64, "all are counted");
        wait_for_balance(&daemon, Balance::of_deletions);
        let ask = || daemon.ask(&["events", "--kind", "neighbor.deleted", "--since", "1h"]).stdout;
        let about = format!(" in namespace {} ", pod.netns_name());
        let told = || daemon.metrics().count("kevtmon_events_total", &[("kind", "neighbor.deleted")]);
        // The first one as ever, and then the rest.
        let (events, lines) = counted(&ask(), "neighbor.deleted", &about);
        assert!(events > 1000 && events as f64 <= told(), "{events} of {}", told());
        assert_eq!(lines, 2, "{}", ask());
        stop_and_account(daemon);
    }
}
