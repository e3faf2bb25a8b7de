//! `top`: the node, live on a terminal.
//!
//! [`feed`] asks the daemon, in threads of its own, so that a daemon that is slow delays no key. [`view`] is what is shown.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use kevtmon_render::time::Clock;
use kevtmon_server::client::RemoteError;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::client::ClientArgs;
use super::{exit, fail, remark};

mod feed;
mod rates;
mod view;

use feed::{Answer, Request};
use view::{Input, View};

/// The screen is drawn again after this long without a key, in milliseconds.
const FRAME: u16 = 200;
/// Answers that wait to be shown; then the threads that ask wait.
const ANSWERS: usize = 1024;
/// Requests that wait to be answered.
const REQUESTS: usize = 2;

/// Arguments of `top`.
#[derive(Debug, Default, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub client: ClientArgs,
}

/// Why the node cannot be shown.
#[derive(Debug, thiserror::Error)]
enum TopError {
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("cannot use the terminal")]
    Terminal(#[from] io::Error),
}

impl From<Errno> for TopError {
    fn from(error: Errno) -> Self {
        Self::Terminal(error.into())
    }
}

impl TopArgs {
    /// Shows the node until a user quits; returns the exit code.
    pub fn run(&self) -> u8 {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            remark("top needs a terminal; `kevtmon incidents` prints the open incidents");
            return exit::QUERY;
        }
        match self.show() {
            Ok(()) => exit::OK,
            Err(error) => fail(&error, exit::QUERY),
        }
    }

    fn show(&self) -> Result<(), TopError> {
        let remotes = [self.client.daemon()?, self.client.daemon()?];
        // Before there are other threads, which inherit that they are not ended by these.
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT]);
        signals.thread_block()?;
        let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let (answered, answers) = sync_channel(ANSWERS);
        let (requests, requested) = sync_channel(REQUESTS);
        feed::start(remotes, answered, requested);
        let view = View::new(Clock { now: Timestamp::now(), zone: TimeZone::system() });
        // Restores the terminal also where the program panics.
        let mut terminal = ratatui::try_init()?;
        let shown = run(view, &mut terminal, &signals, &requests, &answers);
        ratatui::try_restore()?;
        Ok(shown?)
    }
}

fn run(
    mut view: View,
    terminal: &mut DefaultTerminal,
    signals: &SignalFd,
    requests: &SyncSender<Request>,
    answers: &Receiver<Answer>,
) -> io::Result<()> {
    let mut refresh = false;
    loop {
        loop {
            match answers.try_recv() {
                Ok(answer) => refresh |= view.update(answer),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(io::Error::other("a thread has ended")),
            }
        }
        // A full queue has one already.
        refresh = refresh && requests.try_send(Request::Incidents).is_err();
        view.tick(Timestamp::now());
        terminal.draw(|frame| view.draw(frame))?;
        if await_input(signals)?.is_break() {
            return Ok(());
        }
        while event::poll(Duration::ZERO)? {
            let Event::Key(key) = event::read()? else { continue };
            let Some(input) = input(key) else { continue };
            if input == Input::Quit {
                return Ok(());
            }
            if let Some(id) = view.press(input)
                && requests.try_send(Request::Why(id)).is_err()
            {
                view.set_story("the daemon does not respond".to_owned());
            }
        }
    }
}

/// Waits for a key, a signal or the next frame; breaks where the program is to end. crossterm would read a terminal that is gone
/// for ever.
fn await_input(signals: &SignalFd) -> io::Result<ControlFlow<()>> {
    let keys = io::stdin();
    let mut waited =
        [PollFd::new(keys.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    match poll(&mut waited, FRAME) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let has = |fd: &PollFd<'_>, flags| fd.revents().is_some_and(|events| events.intersects(flags));
    let is_gone = has(&waited[0], PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL);
    let is_over = is_gone || has(&waited[1], PollFlags::POLLIN);
    Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
}

fn input(key: KeyEvent) -> Option<Input> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Input::Quit),
        KeyCode::Char('q') => Some(Input::Quit),
        KeyCode::Esc => Some(Input::Back),
        KeyCode::Enter => Some(Input::Why),
        KeyCode::Up | KeyCode::Char('k') => Some(Input::Up(1)),
        KeyCode::Down | KeyCode::Char('j') => Some(Input::Down(1)),
        KeyCode::PageUp => Some(Input::Up(10)),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(Input::Down(10)),
        _ => None,
    }
}
