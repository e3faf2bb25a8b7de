//! Who is blamed for what a tool did: the program that has started it, and no process that is its parent only because
//! the kernel, or somebody else, made it so.

use std::path::{Path, PathBuf};
use std::process::Command;

use kevtmon_tests::actor::{self, Actor};
use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::daemon::{Daemon, WITHOUT_BUDGETS, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::network::NeighbourState;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::process::{Running, comm, run};
use kevtmon_tests::unique;
use nix::sys::signal::Signal;

/// The program that acts, by the name of a network agent.
fn calico(scratch: &Scratch) -> PathBuf {
    let program = scratch.path().join("calico");
    // A copy would be open for writing in what other tests fork meanwhile, and could not be executed.
    std::os::unix::fs::symlink(actor::program(), &program).expect("a link can be made");
    program
}

/// An entry of a pod, and the command by which `ip` deletes it: one program, which enters the namespace by itself.
struct Entry<'a> {
    pod: &'a Pod,
    address: String,
    command: String,
}

impl<'a> Entry<'a> {
    fn new(pod: &'a Pod) -> Self {
        let address = unique::address(31);
        pod.set_neighbor(&address, "02:00:00:00:00:01", NeighbourState::Permanent);
        let command = format!("ip -n {} neigh del {address} dev eth0", pod.netns_name());
        Self { pod, address, command }
    }

    /// What is said about its deletion by `ip`.
    fn deletion(&self, daemon: &mut Daemon) -> Event {
        let event = daemon.wait_for_deletion(self.pod.inum(), &self.address);
        event.expect("/actor/comm", "ip");
        event
    }
}

/// The end of the message: who did it.
fn expect_by(event: &Event, by: &str) {
    let message = event.text("/message");
    assert!(message.ends_with(&format!(" deleted by {by}")), "by {by}: {event}");
}

fn forker() -> String {
    actor::forker().display().to_string()
}

#[test]
fn the_program_that_runs_a_tool_is_blamed_directly_and_through_a_shell_as_the_user_of_the_moment() {
    let (pod, scratch) = (Pod::new(), Scratch::without_mounts());
    let mut daemon = launch().start();
    let mut calico = Actor::run(calico(&scratch));
    let test = comm(std::process::id()).expect("this process has a name");
    let by = format!("calico (pid {}), run by {test}, by means of ip", calico.pid());
    let direct = Entry::new(&pod);
    calico.act(&format!("run {}", direct.command));
    let event = direct.deletion(&mut daemon);
    expect_by(&event, &by);
    event.expect("/actor/ancestors/0/started", true);

    let script = scratch.path().join("script");
    let by_shell = Entry::new(&pod);
    std::fs::write(&script, format!("{}\nexit 0\n", by_shell.command)).expect("a script can be written");
    calico.act(&format!("run sh {}", script.display()));
    expect_by(&by_shell.deletion(&mut daemon), &by);

    let before = Entry::new(&pod);
    // All of it before the daemon can look.
    daemon.signal(Signal::SIGSTOP);
    calico.act(&format!("run {}", before.command));
    calico.act("uid 1000 1000");
    daemon.signal(Signal::SIGCONT);
    let event = before.deletion(&mut daemon);
    event.expect("/actor/ancestors/0/uid", 0);
    expect_by(&event, &by);
}

#[test]
fn who_enters_a_network_with_tools_is_the_parent_of_what_acts_there() {
    let (pod, scratch) = (Pod::new(), Scratch::without_mounts());
    let mut command = Command::new("nsenter");
    let inside = Running::spawn(
        command.arg(format!("--net={}", pod.netns().path().display())).args(["sleep", "1000000"]),
    );
    eventually!(comm(inside.pid()).as_deref() == Some("sleep"), "it is in the network");
    let mut daemon = launch().start();
    let mut calico = Actor::run(calico(&scratch));
    let test = comm(std::process::id()).expect("this process has a name");
    // It goes by the name under which it is started.
    let arp = scratch.path().join("arp");
    std::os::unix::fs::symlink(kevtmon_tests::image::find("busybox"), &arp).expect("a link can be made");
    let arp = |address: &str| format!("{} -i eth0 -d {address}", arp.display());

    let entry = Entry::new(&pod);
    calico.act(&format!("run nsenter -t {} -n ip neigh del {} dev eth0", inside.pid(), entry.address));
    let event = entry.deletion(&mut daemon);
    // What was executed between the fork and `ip` is not known to the kernel.
    let pid = event.number("/actor/pid").expect("a pid");
    expect_by(&event, &format!("ip (pid {pid}), a child of calico (pid {})", calico.pid()));

    let entry = Entry::new(&pod);
    calico.act(&format!("netns {}", pod.netns().path().display()));
    calico.act(&format!("run {}", arp(&entry.address)));
    let event = daemon.wait_for_deletion(pod.inum(), &entry.address);
    event.expect("/actor/comm", "arp");
    expect_by(&event, &format!("calico (pid {}), run by {test}, by means of arp", calico.pid()));
}

#[test]
fn the_control_group_of_who_runs_a_tool_is_that_of_the_moment() {
    let (pod, scratch) = (Pod::new(), Scratch::without_mounts());
    let group = Cgroup::of_container;
    let groups =
        Hierarchy::all().into_iter().map(|hierarchy| (hierarchy, group(hierarchy), group(hierarchy)));
    let groups = groups.collect::<Vec<_>>();
    let (program, mut daemon) = (calico(&scratch), launch().start());
    for (hierarchy, own, later) in groups {
        let mut calico = Actor::run(&program);
        for moves in [false, true] {
            let entry = Entry::new(&pod);
            own.take(calico.pid());
            // All of it before the daemon can look.
            daemon.signal(Signal::SIGSTOP);
            // The tool is in another group than its parent.
            let leave = format!("echo $$ > {}", Cgroup::root_procs(hierarchy).display());
            let script = scratch.path().join("script");
            std::fs::write(&script, format!("{leave}\n{}\nexit 0\n", entry.command))
                .expect("a script can be written");
            calico.act(&format!("run sh {}", script.display()));
            if moves {
                later.take(calico.pid());
            }
            daemon.signal(Signal::SIGCONT);
            let event = entry.deletion(&mut daemon);
            event.expect("/actor/ancestors/1/pid", calico.pid());
            match moves {
                false => event.expect("/actor/ancestors/1/container/id", own.name()),
                true => event.expect_none("/actor/ancestors/1/container"),
            }
        }
        Cgroup::release(hierarchy, calico.pid());
    }
}

#[test]
fn the_container_that_a_tool_was_moved_into_is_not_that_of_who_uses_it() {
    let (pod, scratch) = (Pod::new(), Scratch::without_mounts());
    let containers =
        Hierarchy::all().into_iter().map(|hierarchy| (hierarchy, Cgroup::of_container(hierarchy)));
    let containers = containers.collect::<Vec<_>>();
    let (program, mut daemon) = (calico(&scratch), launch().start());
    for (hierarchy, container) in containers {
        let mut calico = Actor::run(&program);
        let test = comm(std::process::id()).expect("this process has a name");
        let by = format!("calico (pid {}), run by {test}, by means of ip", calico.pid());
        let inside = format!(" of container {}", &container.name()[..12]);
        let entry = Entry::new(&pod);
        let script = scratch.path().join("script");
        let lines = format!("echo $$ > {}\n{}\nexit 0\n", container.procs().display(), entry.command);
        std::fs::write(&script, lines).expect("a script can be written");
        calico.act(&format!("run sh {}", script.display()));
        let event = entry.deletion(&mut daemon);
        event.expect("/actor/container/id", container.name());
        event.expect("/actor/ancestors/1/join", "host");
        expect_by(&event, &format!("{by}{inside}"));

        let both = Entry::new(&pod);
        container.take(calico.pid());
        calico.act(&format!("run {}", both.command));
        let by = format!("calico (pid {}){inside}, run by {test}, by means of ip", calico.pid());
        expect_by(&both.deletion(&mut daemon), &by);
        Cgroup::release(hierarchy, calico.pid());
    }
}

#[test]
fn who_is_a_parent_only_by_adoption_is_not_blamed() {
    let (pod, scratch) = (Pod::new(), Scratch::without_mounts());
    let (program, mut daemon) = (calico(&scratch), launch().start());
    let pid = |event: &Event| event.number("/actor/pid").expect("a pid");
    // Of his own child's child.
    let mut parent = Actor::run(&program);
    let entry = Entry::new(&pod);
    parent.act(&format!("run {} sibling {}", forker(), entry.command));
    let event = entry.deletion(&mut daemon);
    event.expect("/actor/ancestors/0/pid", parent.pid());
    expect_by(&event, &format!("ip (pid {}), a child of calico (pid {})", pid(&event), parent.pid()));

    // Of an orphan.
    let mut parent = Actor::run(&program);
    parent.act("subreaper");
    let entry = Entry::new(&pod);
    parent.act(&format!("run {} orphan {}", forker(), entry.command));
    let event = entry.deletion(&mut daemon);
    event.expect("/actor/ancestors/0/pid", parent.pid());
    event.expect("/actor/ancestors/0/started", false);
    expect_by(&event, &format!("ip (pid {})", pid(&event)));

    // Of the orphan of who came into the process id namespace from outside.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(program);
    let mut outside = Actor::spawn(&mut command);
    outside.act("run true");
    let init = wait_until("the init of the namespace runs", || only_child(outside.pid()));
    // As many programs were executed on the way to the orphan's parent as on the way to the init.
    let entry = Entry::new(&pod);
    run(&format!("nsenter --target {init} --pid {} orphan {}", forker(), entry.command));
    let event = entry.deletion(&mut daemon);
    event.expect("/actor/ancestors/0/pid", init);
    event.expect_none("/actor/ancestors/0/started");
    expect_by(&event, &format!("ip (pid {}), a child of calico (pid {init})", pid(&event)));
}

#[test]
fn the_details_of_a_process_are_known_again_after_thousands_of_others_on_another_cpu() {
    let pod = Pod::new();
    let mut daemon = launch().config(WITHOUT_BUDGETS).start();
    let on_cpu = |cpu: &str| {
        let mut command = Command::new("taskset");
        let mut actor = Actor::spawn(command.args(["--cpu-list", cpu]).arg(actor::program()));
        actor.act(&format!("netns {}", pod.netns().path().display()));
        actor
    };
    let (mut seldom, mut others) = (on_cpu(&(cpus() - 1).to_string()), on_cpu("0"));
    for _ in 0..2 {
        let entry = Entry::new(&pod);
        seldom.act(&format!("delete eth0 {}", entry.address));
        let event = daemon.wait_for_deletion(pod.inum(), &entry.address);
        event.expect_actor(seldom.pid(), "actor");
        event.expect("/actor/exe", actor::program().display().to_string());
        event.expect("/actor/ancestors/0/pid", std::process::id());
        // The ring has room for more than these.
        for _ in 0..40 {
            others.act(&format!("crowd 100 eth0 {}", unique::address(32)));
            let last = Entry::new(&pod);
            others.act(&format!("delete eth0 {}", last.address));
            daemon.wait_for_deletion(pod.inum(), &last.address);
        }
    }
    let emitted = daemon.events();
    let of_crowd = emitted.iter().filter(|event| {
        event.kind() == "neighbor.deleted" && event.text("/actor/comm") == "actor" && event.is_in(pod.inum())
    });
    let unknown = of_crowd.clone().filter(|event| !event.has("/actor/exe")).collect::<Vec<_>>();
    // All that happens on the node shares the ring, and what did not fit is counted.
    let lost = daemon.metrics().count("kevtmon_events_lost_total", &[("source", "bpf")]);
    assert!(unknown.len() as f64 <= lost, "{lost} lost, but {} are unknown: {}", unknown.len(), unknown[0]);
    assert!(of_crowd.count() as f64 > 8_000.0 - lost);
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn only_child(pid: u32) -> Option<u32> {
    let path = Path::new("/proc").join(pid.to_string()).join(format!("task/{pid}/children"));
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
