//! The text output, to the letter.

use jiff::tz::TimeZone;
use kevtmon_testing::sample;

use super::*;

fn plain() -> Pretty {
    Pretty { colour: false, zone: TimeZone::fixed(jiff::tz::offset(2)) }
}

#[test]
fn every_kind_of_event_reads_well() {
    let text: String = sample::all().iter().map(|event| plain().text(event)).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/event/golden.txt");
    if std::env::var_os("KEVTMON_BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), text, "KEVTMON_BLESS=1 writes it again");
}

#[test]
fn colour_adds_escapes_and_changes_nothing_else() {
    let coloured = Pretty { colour: true, ..plain() };
    for event in sample::all() {
        let text = coloured.text(&event);
        assert!(text.contains("\x1b["));
        let mut bare = String::new();
        for (index, part) in text.split("\x1b[").enumerate() {
            bare.push_str(if index == 0 { part } else { part.split_once('m').unwrap().1 });
        }
        assert_eq!(bare, plain().text(&event));
    }
}

#[test]
fn what_comes_from_outside_cannot_steer_the_terminal() {
    let evil = "a\x1b]0;owned\x07\x1b[2J\n\r\t\u{9b}31m\u{202e}\u{7f}";
    let mut event = sample::busy();
    event.message = evil.into();
    event.time = evil.into();
    let actor = event.actor.as_mut().unwrap();
    actor.comm = evil.into();
    actor.exe = Some(evil.into());
    actor.cmdline = Some(format!("{evil}2"));
    actor.unit = Some(evil.into());
    for holder in event.holders.as_mut().unwrap() {
        holder.comm = evil.into();
        holder.path = Some(evil.into());
    }
    let mount = event.mount.as_mut().unwrap();
    mount.path = evil.into();
    mount.source = Some(evil.into());
    let text = plain().text(&event);
    assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
    assert_eq!(text.lines().filter(|line| !line.starts_with(' ')).count(), 1);
    assert!(text.contains(r"a\x1b]0;owned\x07\x1b[2J\n\r\t\x9b31m\u{202e}\x7f"), "{text}");
}

#[test]
fn what_a_holder_has_stands_apart_from_the_path_however_long_its_name_is() {
    let mut event = sample::busy();
    let path = format!("{}/s", event.mount.as_ref().unwrap().path);
    let holder = MountHolder { path: Some(path), fd: None, ..event.holders.as_ref().unwrap()[0].clone() };
    let ways =
        [(Access::Cwd, "cwd   …/s"), (Access::Socket, "socket …/s"), (Access::PerfEvent, "perf event …/s")];
    for (access, shown) in ways {
        event.holders = Some(vec![MountHolder { access, ..holder.clone() }]);
        let text = plain().text(&event);
        assert!(text.contains(&format!("  {shown}")), "{text}");
    }
    event.holders = Some(vec![MountHolder { access: Access::Fd, fd: Some(12345), ..holder }]);
    assert!(plain().text(&event).contains("  fd 12345 …/s"));
}

#[test]
fn a_long_list_of_holders_is_cut_and_counted() {
    let mut event = sample::busy();
    let holder = event.holders.as_ref().unwrap()[0].clone();
    event.holders = Some(vec![holder; MAX_HOLDERS + 5]);
    let text = plain().text(&event);
    assert!(text.contains("… and 5 more"), "{text}");
    assert_eq!(text.matches("etcd (pid 4123)  fd 11").count(), MAX_HOLDERS);
}

#[test]
fn a_scan_without_holders_says_what_it_means() {
    let mut event = sample::busy();
    event.holders = None;
    event.holders_verdict = Some(Verdict::Kernel);
    let meaning = "held   no holder found in 10 s: held by the kernel, by a pending call, or by a process that uses it \
                   intermittently\n";
    assert!(plain().text(&event).contains(meaning));
}

#[test]
fn an_incident_does_not_repeat_what_stands_above_it() {
    let deleted = sample::deletion();
    let incident = crate::test_support::memory::incident("81dbe6ff903f2912", 1);
    let opened = Event {
        kind: Kind::IncidentOpened,
        message: "pod lijiaob/etcd1-0 has lost its gateway".into(),
        incident: Some(Box::new(incident)),
        ..deleted.clone()
    };
    let pretty = Pretty { colour: false, zone: TimeZone::UTC };
    let mut transcript = Transcript::new(pretty.clone());
    assert_eq!(transcript.text(&deleted), pretty.text(&deleted));
    let below = transcript.text(&opened);
    assert_eq!(below.lines().count(), 2, "{below}");
    assert!(below.contains("id     81dbe6ff903f2912"), "{below}");
    assert!(!below.contains("entry") && !below.contains("by     "), "{below}");
    // Under something else it stands for itself.
    transcript.text(&sample::busy());
    assert_eq!(transcript.text(&opened), pretty.text(&opened));
}

#[test]
fn an_update_with_the_same_advice_shows_no_more_than_the_id() {
    let advice = |command: &str| kevtmon_event::Advice {
        text: "look".into(),
        form: String::new(),
        command: command.into(),
        risk: kevtmon_event::Risk::Read,
        action: kevtmon_event::Action::None,
        process: None,
    };
    let event = |command: &str| {
        let incident = crate::test_support::memory::incident("81dbe6ff903f2912", 1);
        let incident = kevtmon_event::Incident { advice: vec![advice(command)], ..incident };
        Event { incident: Some(Box::new(incident)), actor: None, target: None, ..sample::deletion() }
    };
    let mut transcript = Transcript::new(Pretty { colour: false, zone: TimeZone::UTC });
    let mut shown = |event: &Event| {
        let text = transcript.text(event);
        transcript.text(&sample::busy());
        (text.contains("id     81db"), text.contains("do     "))
    };
    assert_eq!(shown(&event("one")), (true, true));
    assert_eq!(shown(&event("one")), (true, false));
    assert_eq!(shown(&event("another")), (true, true));
}

#[test]
fn on_a_terminal_everything_but_commands_is_broken_to_its_width() {
    let path = format!("/var/lib/kubelet/pods/{}/volumes/kubernetes.io~csi/data/mount", "5c948341".repeat(9));
    let mut busy = sample::busy();
    busy.message =
        format!("umount of {path} by kubelet (pid 7) refused: {}", "held by etcd (pid 4123) ".repeat(9));
    busy.mount.as_mut().unwrap().path.clone_from(&path);
    busy.actor.as_mut().unwrap().cmdline = Some(format!("umount {path}"));
    let coloured = Pretty { colour: true, ..plain() };
    for pretty in [plain(), coloured] {
        let text = Transcript::new(pretty.clone()).wrapped().text(&busy);
        let mut commands = 0;
        for line in text.lines().map(wrap::plain) {
            if line.trim_start().starts_with("$ ") {
                commands += 1;
                assert!(line.ends_with(&path), "a command can be pasted: {line}");
            } else {
                assert!(line.chars().count() <= 80, "{} columns: {line}\n{text}", line.chars().count());
            }
        }
        assert_eq!(commands, 1, "{text}");
        assert_eq!(
            text.matches("4123)").count(),
            Transcript::new(pretty.clone()).text(&busy).matches("4123)").count()
        );
        let short = sample::deletion();
        let short = Event { actor: None, target: None, neighbor: None, message: "short".into(), ..short };
        assert_eq!(Transcript::new(pretty.clone()).wrapped().text(&short), pretty.text(&short));
    }
}

#[test]
fn what_a_user_has_run_fills_no_terminal() {
    let mut busy = sample::busy();
    let actor = busy.actor.as_mut().unwrap();
    actor.cmdline = Some(format!("umount {} /m", "A".repeat(4000)));
    let pretty = Pretty { colour: false, zone: TimeZone::UTC };
    let wrapped = Transcript::new(pretty.clone()).wrapped().text(&busy);
    let run = wrapped.lines().find(|line| line.trim_start().starts_with("$ ")).unwrap();
    assert_eq!(run.chars().count(), 4 * wrap::WIDTH, "{run}");
    assert!(run.contains("$ umount AAA") && run.contains("A…A") && run.ends_with("A /m"), "{run}");
    assert!(Transcript::new(pretty).text(&busy).contains(&"A".repeat(4000)), "a file has it whole");
}
