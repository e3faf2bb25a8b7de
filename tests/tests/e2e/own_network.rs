//! What a container does to its own network, as one with `CAP_NET_ADMIN` may: it hides nothing of others, however fast it
//! does it, and is summed up.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use kevtmon_tests::balance::{stop_and_account, stop_and_account_beside_changes};
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Running, comm};

/// Times that it does something and undoes it.
const TIMES: usize = 2000;

/// A pod and its process.
struct Contained {
    pod: Pod,
    sandbox: PodSandbox,
}

impl Contained {
    fn new() -> Self {
        let pod = Pod::new();
        Self { sandbox: PodSandbox::of(&pod), pod }
    }

    /// Has a process of the container give commands to `ip`, each of these in turn, many times.
    fn repeat(&self, commands: &[String]) -> Running {
        self.repeat_times(commands, TIMES)
    }

    fn repeat_times(&self, commands: &[String], times: usize) -> Running {
        let mut ip = Command::new("sh");
        ip.args(["-c", "read go && exec ip -force -batch -"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut enter = Command::new("nsenter");
        enter.arg(format!("--net={}", self.pod.netns().path().display()));
        enter.arg(ip.get_program()).args(ip.get_args()).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut process = Running::spawn(&mut enter);
        eventually!(comm(process.pid()).as_deref() == Some("sh"), "it waits");
        self.sandbox.take(process.pid());
        let text = format!("{}\n", commands.join("\n")).repeat(times);
        let mut input = process.child().stdin.take().expect("a pipe");
        input.write_all(format!("go\n{text}").as_bytes()).expect("it reads");
        process
    }

    fn of<'a>(&self, events: &'a [Event], kind: &str) -> Vec<&'a Event> {
        events.iter().filter(|event| event.kind() == kind && event.is_in(self.pod.inum())).collect()
    }
}

fn is_summary(event: &Event) -> bool {
    event.kind() == "events.throttled" && event.text("/throttled/lane") == "events"
}

fn expect_loss(daemon: &mut Daemon, victim: &Pod) {
    let ip = victim.delete_gateway();
    daemon.wait_for_deletion_by(ip.pid, victim.inum(), GATEWAY).expect_actor(ip.pid, "ip");
    victim.set_gateway();
}

/// What is told while an incident of this container is open though nothing is wrong, given its id. That ends after some
/// seconds, so that it may take more than one attempt.
fn in_quiet_period<T>(daemon: &Daemon, container: &Contained, look: impl Fn(&str) -> Option<T>) -> T {
    let set = |lladdr: &str| format!("neigh replace {GATEWAY} lladdr {lladdr} nud permanent dev eth0");
    let come_and_go = [set("02:00:00:00:00:66"), set(GATEWAY_LLADDR)];
    let open = || {
        let newest = daemon.events().into_iter().rfind(|event| {
            event.kind().starts_with("incident.")
                && event.text("/target/container/id") == container.sandbox.id()
        });
        newest.filter(|event| event.kind() != "incident.closed")
    };
    wait_until("what is told of an incident that comes and goes", || {
        let Some(incident) = open() else {
            let mut flood = container.repeat_times(&come_and_go, 30);
            eventually!(flood.ended().is_some(), "the flood ends");
            return None;
        };
        look(incident.text("/incident/id"))
    })
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn links_that_a_container_changes_without_end_are_summed_up() {
        let _exclusive = Exclusive::take();
        let (container, victim) = (Contained::new(), Pod::new());
        container.pod.netns().network(|network| network.add_bridge("br0"));
        let began = Instant::now();
        let mut daemon = launch().start();
        daemon.wait_for_gateway(victim.inum(), GATEWAY);
        daemon.wait_for_gateway(container.pod.inum(), GATEWAY);
        let mut flood = container.repeat(&["link set br0 up".into(), "link set br0 down".into()]);
        expect_loss(&mut daemon, &victim);
        eventually!(flood.ended().is_some(), "the flood ends");
        expect_loss(&mut daemon, &victim);
        let counted = || daemon.metrics().count("kevtmon_events_throttled_total", &[("lane", "events")]);
        let summed_up = || {
            let count = |event: &Event| event.number("/throttled/count").unwrap_or_default();
            daemon.events().iter().filter(|event| is_summary(event)).map(count).sum::<u64>() as f64
        };
        eventually!(
            counted() > 0.0 && (summed_up() - counted()).abs() < 0.5,
            "all that was not told is summed up: {} of {}",
            summed_up(),
            counted()
        );
        let summaries = || daemon.events().into_iter().filter(is_summary);
        assert!(summaries().any(|event| event.text("/throttled/kind") == "link.changed"));
        for event in summaries() {
            event.expect("/target/container/id", container.sandbox.id());
        }
        let events = daemon.events();
        let told = container.of(&events, "link.changed").len();
        // By the budget of a container.
        let most = 512 + 16 * (began.elapsed().as_secs() + 2);
        assert!((400..=most).contains(&(told as u64)), "{told} of at most {most} changes were told");
        stop_and_account(daemon);
    }

    #[test]
    fn an_incident_that_a_container_opens_and_closes_without_end_stays_open_until_it_is_over_for_some_time() {
        let _exclusive = Exclusive::take();
        let (container, victim) = (Contained::new(), Pod::new());
        let mut daemon = launch().start();
        daemon.wait_for_gateway(victim.inum(), GATEWAY);
        daemon.wait_for_gateway(container.pod.inum(), GATEWAY);
        let set = |lladdr: &str| format!("neigh replace {GATEWAY} lladdr {lladdr} nud permanent dev eth0");
        let mut flood = container.repeat(&[set("02:00:00:00:00:66"), set(GATEWAY_LLADDR)]);
        expect_loss(&mut daemon, &victim);
        eventually!(flood.ended().is_some(), "the flood ends");
        expect_loss(&mut daemon, &victim);
        let is_over = |events: &[Event]| {
            let count = |kind| container.of(events, kind).len();
            count("incident.opened") > 0 && count("incident.opened") == count("incident.closed")
        };
        eventually!(is_over(&daemon.events()), "the incident is closed");
        let events = daemon.events();
        let opened = container.of(&events, "incident.opened").len();
        assert!((1..100).contains(&opened), "opened {opened} times");
        let told = container.of(&events, "neighbor.changed").len();
        assert!(told < 2 * TIMES, "{told} changes");
        stop_and_account_beside_changes(daemon);
    }

    #[test]
    fn an_incident_that_is_open_while_nothing_is_wrong_is_told_as_that_and_closed_with_the_daemon() {
        let _exclusive = Exclusive::take();
        let container = Contained::new();
        let mut daemon = launch().start();
        daemon.wait_for_gateway(container.pod.inum(), GATEWAY);
        let incident = in_quiet_period(&daemon, &container, |id| {
            let of_it = |incident: &Event| incident.text("/id") == id;
            let newest = daemon.find(&["incidents", "--all"]).into_iter().rfind(of_it);
            newest.filter(|incident| incident.has("/well_since"))
        });
        let story = in_quiet_period(&daemon, &container, |id| {
            daemon.find(&["why", id]).into_iter().find(|story| story.has("/verdict/well_since"))
        });
        for (told, of) in [("/summary", &incident), ("/verdict/sentence", &story)] {
            assert!(of.text(told).contains(" cannot reach its gateway "), "{of}");
        }
        let sentence = story.text("/verdict/sentence");
        assert!(sentence.starts_with("intermittent, not active now: "), "{story}");
        assert!(incident.list("/advice").is_empty() && !story.has("/advice"), "{incident} {story}");
        story.expect("/verdict/open", false);
        let text = in_quiet_period(&daemon, &container, |id| {
            let text = daemon.ask(&["why", id]).succeeded("why").stdout;
            Some(text).filter(|text| text.contains("comes and goes"))
        });
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            text.contains("comes and goes, open since ") && text.contains("; nothing is wrong since "),
            "{text}"
        );
        assert!(text.contains("intermittent, not active now: pod "), "{text}");
        assert!(!text.contains("ruled out: "), "what was healthy then is not told of now: {text}");
        // Nobody sees whether that lasts.
        in_quiet_period(&daemon, &container, |_| Some(()));
        stop_and_account(&mut daemon);
        let last =
            daemon.events().into_iter().rfind(|event| event.text("/incident/id") == incident.text("/id"));
        let last = last.expect("it was told");
        assert_eq!(last.kind(), "incident.closed", "{last}");
        last.expect("/incident/close_reason", "resolved");
    }
}
