//! A pseudo terminal: a program runs on it, keys are sent, and what it draws is read as a screen.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};

use crate::patience::wait_until;
use crate::process::Running;

/// Lines and columns.
const SIZE: (u16, u16) = (24, 80);
/// What the shell prints before the exit code of the program.
const ENDED: &str = "the program has ended with ";

/// A terminal of 80x24.
#[derive(Debug)]
pub struct PseudoTerminal {
    master: File,
    slave: OwnedFd,
    written: RefCell<Vec<u8>>,
}

impl Default for PseudoTerminal {
    fn default() -> Self {
        Self::new()
    }
}

impl PseudoTerminal {
    /// Makes one.
    #[must_use]
    pub fn new() -> Self {
        let size = Winsize { ws_row: SIZE.0, ws_col: SIZE.1, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).expect("a terminal can be made");
        // What other tests start does not keep it.
        for end in [&pair.master, &pair.slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("a flag of a descriptor can be set");
        }
        fcntl(&pair.master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a flag of a terminal can be set");
        Self { master: pair.master.into(), slave: pair.slave, written: RefCell::default() }
    }

    /// Starts a program on it, below a shell that stays: with the leader of its session a terminal would lose its modes.
    pub fn spawn(&self, command: &Command) -> Running {
        let end = || Stdio::from(self.slave.try_clone().expect("a descriptor can be duplicated"));
        let mut session = Command::new("setsid");
        let script = format!("\"$@\"; echo \"{ENDED}$?.\"; exec sleep 1000000");
        session
            .args(["--ctty", "sh", "-c", &script, "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        session.env("TERM", "xterm").env_remove("NO_COLOR");
        Running::spawn(session.stdin(end()).stdout(end()).stderr(end()))
    }

    /// Waits for the end of the program; its exit code.
    #[must_use]
    pub fn wait(&self) -> String {
        wait_until("the program on the terminal ends", || {
            let written = self.written();
            let (_, code) = written.rsplit_once(ENDED)?;
            code.split_once('.').map(|(code, _)| code.to_owned())
        })
    }

    /// Sends keys, as a user types them.
    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("a terminal takes keys");
    }

    /// Its modes.
    #[must_use]
    pub fn modes(&self) -> Termios {
        tcgetattr(&self.slave).expect("a terminal has modes")
    }

    /// All that was written to it.
    #[must_use]
    pub fn written(&self) -> String {
        let mut written = self.written.borrow_mut();
        // An error once there is nothing to read.
        let _ = (&self.master).read_to_end(&mut written);
        String::from_utf8_lossy(&written).into_owned()
    }

    /// What it shows: a terminal that knows how to place the cursor and how to clear everything.
    #[must_use]
    pub fn screen(&self) -> String {
        let blank = || vec![vec![' '; usize::from(SIZE.1)]; usize::from(SIZE.0)];
        let (mut cells, mut row, mut column) = (blank(), 0, 0);
        let written = self.written();
        let mut letters = written.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '\x1b' if letters.next_if_eq(&'[').is_some() => {
                    let mut parameters = String::new();
                    let mut end = ' ';
                    for letter in letters.by_ref() {
                        if ('@'..='~').contains(&letter) {
                            end = letter;
                            break;
                        }
                        parameters.push(letter);
                    }
                    match end {
                        'H' => {
                            let mut places = parameters.split(';').map(|place| place.parse::<usize>());
                            let mut next =
                                || places.next().and_then(Result::ok).unwrap_or(1).saturating_sub(1);
                            (row, column) = (next(), next());
                        }
                        'J' => cells = blank(),
                        _ => {}
                    }
                }
                '\r' => column = 0,
                '\n' => row += 1,
                letter if !letter.is_control() => {
                    if let Some(cell) = cells.get_mut(row).and_then(|line| line.get_mut(column)) {
                        *cell = letter;
                    }
                    column += 1;
                }
                _ => {}
            }
        }
        let line = |line: Vec<char>| format!("{}\n", line.into_iter().collect::<String>().trim_end());
        cells.into_iter().map(line).collect()
    }
}
