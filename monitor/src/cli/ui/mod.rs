//! `ui`: the node in a browser.
//!
//! [`serve`] answers on the loopback, to who has the token of the address that is printed, and asks the daemon over its socket. The
//! page is one file, made of `page.html`, `page.css` and `page.js`.

use std::io::{self, Write as _};

use clap::Args;
use kevtmon_server::client::RemoteError;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};

use super::client::ClientArgs;
use super::{exit, fail, remark};

mod serve;

/// Arguments of `ui`.
#[derive(Debug, Default, Args)]
pub struct UiArgs {
    /// Port on 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
enum UiError {
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("cannot listen on 127.0.0.1, port {port}")]
    Listen { port: u16, source: io::Error },
    #[error("cannot print the address of the page")]
    Print(#[source] io::Error),
    #[error("cannot wait for signals")]
    Signals(#[from] Errno),
}

impl UiArgs {
    /// Serves the page until a signal; returns the exit code.
    pub fn run(&self) -> u8 {
        match self.serve() {
            Ok(()) => exit::OK,
            Err(error @ UiError::Remote(_)) => fail(&error, exit::QUERY),
            Err(error) => fail(&error, exit::FAILED),
        }
    }

    fn serve(&self) -> Result<(), UiError> {
        let socket = self.client.daemon()?.path().to_owned();
        // Before there are other threads, which inherit that they are not ended by these.
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT]);
        signals.thread_block()?;
        let listen = |source| UiError::Listen { port: self.port, source };
        let (_server, url) = serve::start(&socket, self.port).map_err(listen)?;
        let mut out = io::stdout();
        writeln!(out, "{url}").and_then(|()| out.flush()).map_err(UiError::Print)?;
        remark(
            "paste this address into a browser; who has it can read what the daemon knows, and as an argument of a command \
             other users of this machine see it. Ctrl-C ends it",
        );
        signals.wait()?;
        Ok(())
    }
}
