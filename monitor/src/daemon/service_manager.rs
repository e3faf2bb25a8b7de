//! Tells the service manager how the daemon is: sd_notify(3) with `Type=notify`, and the watchdog.
//!
//! Written here in place of a library's call, since that waits where the service manager takes nothing, and the core waits for
//! nobody. What it does not take at once is sent later.

use std::collections::VecDeque;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use kevtmon_event::{Event, Kind};
use nix::time::{ClockId, clock_gettime};

/// Longest status that is shown, in bytes.
const STATUS: usize = 400;
/// Most messages that wait.
const UNSENT: usize = 16;

#[derive(Debug, Default)]
pub(super) struct ServiceManager {
    address: Option<SocketAddr>,
    watchdog: Option<Duration>,
    status: String,
    /// Whether it was told that the daemon is ready.
    is_started: bool,
    /// What it has not taken yet, the oldest first.
    unsent: VecDeque<String>,
}

impl ServiceManager {
    /// As the environment tells (`NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`).
    pub(super) fn of_environment() -> Self {
        let socket = env::var_os("NOTIFY_SOCKET");
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| is_ours);
        Self::new(socket, watchdog.map(Duration::from_micros))
    }

    fn new(socket: Option<OsString>, watchdog: Option<Duration>) -> Self {
        let address = socket.and_then(|socket| match address(&socket) {
            Ok(address) => Some(address),
            Err(error) => {
                tracing::warn!(%error, ?socket, "cannot use NOTIFY_SOCKET");
                None
            }
        });
        let watchdog = watchdog.filter(|watchdog| address.is_some() && !watchdog.is_zero());
        Self { address, watchdog, ..Self::default() }
    }

    /// How often it is to be told that the core works: twice as often as it must be.
    pub(super) fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog / 2)
    }

    /// Tells what an event says of the daemon itself.
    pub(super) fn event(&mut self, event: &Event) {
        if event.kind == Kind::DaemonReady && !mem::replace(&mut self.is_started, true) {
            self.ready();
        }
        if let Some(daemon) = &event.daemon {
            self.status(daemon.summary());
        }
    }

    /// The daemon is ready, or has read its configuration again.
    pub(super) fn ready(&mut self) {
        self.send("READY=1\n".to_owned());
    }

    /// The daemon reads its configuration again.
    pub(super) fn reloading(&mut self) {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
        self.send(format!("RELOADING=1\nMONOTONIC_USEC={}\n", now.as_micros()));
    }

    pub(super) fn stopping(&mut self) {
        self.send("STOPPING=1\n".to_owned());
    }

    pub(super) fn feed_watchdog(&mut self) {
        self.send("WATCHDOG=1\n".to_owned());
    }

    /// How the daemon is, in one line; sent if it is another one than before.
    pub(super) fn status(&mut self, status: String) {
        if self.address.is_none() || self.status == status {
            return;
        }
        let end = status.floor_char_boundary(STATUS);
        self.send(format!("STATUS={}\n", status[..end].replace(char::is_control, " ")));
        self.status = status;
    }

    fn send(&mut self, text: String) {
        if self.address.is_some() && self.unsent.len() < UNSENT {
            self.unsent.push_back(text);
        }
        self.flush();
    }

    /// Sends what was not taken before, as far as it is now.
    pub(super) fn flush(&mut self) {
        let Some(address) = &self.address else { return };
        while let Some(text) = self.unsent.front() {
            let sent = UnixDatagram::unbound().and_then(|socket| {
                socket.set_nonblocking(true)?;
                socket.send_to_addr(text.as_bytes(), address)
            });
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => tracing::debug!(%error, "the service manager takes no message"),
                Ok(_) => {}
            }
            self.unsent.pop_front();
        }
    }
}

/// A path, or behind `@` a name in the abstract namespace.
fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(socket),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_event::Severity;
    use kevtmon_testing::sample;

    use super::*;

    fn received(listener: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        let length = listener.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn each_state_is_a_message_and_a_status_is_sent_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let mut manager = ServiceManager::new(Some(path.into()), Some(Duration::from_secs(30)));
        assert_eq!(manager.watchdog_interval(), Some(Duration::from_secs(15)));
        manager.ready();
        assert_eq!(received(&listener), "READY=1\n");
        manager.reloading();
        let text = received(&listener);
        let time = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap().trim_end();
        assert!(time.parse::<u64>().unwrap() > 0, "{text}");
        for _ in 0..2 {
            manager.status("2 sources\nwork".into());
        }
        manager.status("x".repeat(1000));
        manager.feed_watchdog();
        manager.stopping();
        assert_eq!(received(&listener), "STATUS=2 sources work\n");
        assert_eq!(received(&listener).len(), "STATUS=\n".len() + STATUS);
        assert_eq!(received(&listener), "WATCHDOG=1\n");
        assert_eq!(received(&listener), "STOPPING=1\n");
    }

    #[test]
    fn the_first_ready_event_is_the_start_and_later_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let mut manager = ServiceManager::new(Some(path.into()), None);
        let mut event = sample::daemon(Severity::Info);
        event.kind = Kind::DaemonReady;
        manager.event(&event);
        event.daemon.as_mut().unwrap().degraded = [("hook.link".to_owned(), "EPERM".to_owned())].into();
        manager.event(&event);
        assert_eq!(received(&listener), "READY=1\n");
        let [first, second] = [received(&listener), received(&listener)];
        assert!(first.starts_with("STATUS=") && second.ends_with("degraded: hook.link\n"), "{first}{second}");
    }

    #[test]
    fn a_name_in_the_abstract_namespace_is_reached() {
        let name = format!("kevtmon-notify-{}", process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        ServiceManager::new(Some(format!("@{name}").into()), None).ready();
        assert_eq!(received(&listener), "READY=1\n");
    }

    #[test]
    fn without_a_service_manager_nothing_is_sent_and_no_watchdog_is_fed() {
        let mut manager = ServiceManager::new(None, Some(Duration::from_secs(1)));
        assert_eq!(manager.watchdog_interval(), None);
        manager.ready();
        manager.status("all".into());
        assert!(ServiceManager::new(Some("relative".into()), None).address.is_none());
    }

    #[test]
    fn one_that_takes_nothing_is_not_waited_for_and_gets_later_what_it_missed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let mut manager = ServiceManager::new(Some(path.into()), None);
        while manager.unsent.is_empty() {
            manager.feed_watchdog();
        }
        manager.ready();
        manager.stopping();
        listener.set_nonblocking(true).unwrap();
        let mut messages = Vec::new();
        let mut buffer = [0; 64];
        while messages.last().is_none_or(|last| last != "STOPPING=1\n") {
            match listener.recv(&mut buffer) {
                Ok(length) => messages.push(String::from_utf8_lossy(&buffer[..length]).into_owned()),
                Err(_) => manager.flush(),
            }
        }
        assert_eq!(messages.iter().filter(|message| *message == "READY=1\n").count(), 1);
        // The memory of one that never takes anything is bounded.
        for _ in 0..10_000 {
            manager.feed_watchdog();
        }
        assert!(manager.unsent.len() <= UNSENT);
    }
}
