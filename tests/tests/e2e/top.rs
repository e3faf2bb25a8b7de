//! `kevtmon top`: a gateway that is really deleted, on a pseudo terminal.

use std::process::Command;

use kevtmon_tests::daemon::{Daemon, launch, program};
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::patience::{wait_until, within_patience};
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::Running;
use kevtmon_tests::terminal::PseudoTerminal;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::Termios;
use nix::unistd::Pid;

/// Exit code where no daemon answers, or there is no terminal.
const NOT_SHOWN: i32 = 2;

/// `ip` is a tool: this test is who used it.
fn culprit() -> String {
    format!("(pid {})", std::process::id())
}

fn top(daemon: &Daemon) -> Command {
    let mut command = Command::new(program());
    command.arg("top").arg("--socket").arg(daemon.socket()).arg("--state-dir").arg(daemon.state());
    command
}

/// A text without the breaks of its lines.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn expect_shown(terminal: &PseudoTerminal, words: &[&str]) {
    let is_shown = |screen: &str| words.iter().all(|words| joined(screen).contains(*words));
    let shown = within_patience(|| is_shown(&terminal.screen()).then_some(()));
    assert!(shown.is_some(), "{words:?} in:\n{}", terminal.screen());
}

/// Selects the incident whose sentence has this word: others of the node may be above it.
fn select(terminal: &mut PseudoTerminal, word: &str) {
    let mut keys = ["j"; 64].into_iter().chain(["k"; 64]).cycle();
    wait_until(&format!("the incident of {word} is selected"), || {
        let screen = terminal.screen();
        let detail =
            screen.split_once("\ngateway-neighbor-lost, ").map(|(_, detail)| detail.replace('\n', ""));
        let is_it = detail.is_some_and(|detail| detail.contains(word));
        if !is_it {
            terminal.press(keys.next().unwrap_or_default());
        }
        is_it.then_some(())
    });
}

/// The program on the terminal has ended well, and left it as it was.
#[track_caller]
fn expect_end(terminal: &PseudoTerminal, before: &Termios) {
    assert_eq!(terminal.wait(), "0");
    assert_eq!(terminal.modes(), *before);
    let written = terminal.written();
    let left = written.rfind("\x1b[?1049l");
    assert!(left > written.rfind("\x1b[?1049h"), "its screen is left: {written:?}");
    assert!(written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l"), "the cursor is shown: {written:?}");
}

/// The program below the shell of a terminal.
fn program_below(shell: &Running) -> Pid {
    let children = format!("/proc/{0}/task/{0}/children", shell.pid());
    let child =
        wait_until("the program runs", || std::fs::read_to_string(&children).ok()?.trim().parse().ok());
    Pid::from_raw(child)
}

#[test]
fn a_deleted_gateway_is_shown_live_with_its_story_and_the_terminal_is_as_before() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    let mut terminal = PseudoTerminal::new();
    let before = terminal.modes();
    let _shell = terminal.spawn(&top(&daemon));
    expect_shown(&terminal, &["Sources: ", "Events/min", "q quit"]);
    assert_ne!(terminal.modes(), before, "keys are read one by one");

    pod.delete_gateway();
    let opened = daemon.wait_for_incident(sandbox.id());
    select(&mut terminal, sandbox.uid());
    expect_shown(&terminal, &[&culprit()]);
    terminal.press("\r");
    expect_shown(&terminal, &["Cause to effect", opened.text("/incident/id"), "Esc back"]);
    terminal.press("\x1b");
    expect_shown(&terminal, &["Open incidents (", "Enter why"]);
    terminal.press("q");
    expect_end(&terminal, &before);
}

#[test]
fn signals_ctrl_c_and_the_end_of_its_terminal_end_it_and_that_of_the_daemon_is_said() {
    let mut daemon = launch().start();
    let ran = daemon.ask(&["top"]);
    assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(NOT_SHOWN), ""));
    assert_eq!(ran.stderr, "kevtmon: top needs a terminal; `kevtmon incidents` prints the open incidents\n");

    let shown = || {
        let terminal = PseudoTerminal::new();
        let before = terminal.modes();
        let shell = terminal.spawn(&top(&daemon));
        expect_shown(&terminal, &["Sources: "]);
        (terminal, before, shell)
    };
    for signal in [Some(Signal::SIGTERM), Some(Signal::SIGHUP), None] {
        let (mut terminal, before, shell) = shown();
        match signal {
            Some(signal) => kill(program_below(&shell), signal).expect("a child can be signalled"),
            None => terminal.press("\x03"),
        }
        expect_end(&terminal, &before);
    }

    let (terminal, _, shell) = shown();
    let program = program_below(&shell);
    drop(terminal);
    // A shell would otherwise keep it as a zombie, which has ended as well.
    wait_until("the program ends", || {
        let stat = std::fs::read_to_string(format!("/proc/{program}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });

    let (mut terminal, before, _shell) = shown();
    daemon.stop();
    expect_shown(&terminal, &["no answer since"]);
    terminal.press("q");
    expect_end(&terminal, &before);
}

#[test]
fn without_a_daemon_it_says_so() {
    let scratch = Scratch::without_mounts();
    let socket = scratch.path().join("no.sock");
    let mut command = Command::new(program());
    command.arg("top").arg("--socket").arg(&socket).arg("--state-dir").arg(scratch.path());
    let terminal = PseudoTerminal::new();
    let _shell = terminal.spawn(&command);
    assert_eq!(terminal.wait(), NOT_SHOWN.to_string());
    let expected = format!("kevtmon: no daemon listens on {}", socket.display());
    assert!(terminal.written().contains(&expected), "{:?}", terminal.written());
}
