//! The web configuration in use: looked at for each connection, and read again when one of its files has changed.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;
use kevtmon_types::error_chain::chain;
use kevtmon_types::lock::lock;
use rustls::ServerConfig;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::attempts::{Attempts, Outcome};
use super::handshake_rate::HandshakeRate;
use super::users::Claim;
use super::{Files, WebConfig, WebConfigError};

/// A disk that takes longer is not waited for: the configuration from before is used.
const DISK_PATIENCE: Duration = Duration::from_secs(1);

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Name and password are missing or wrong.
    Unauthorized,
    /// Too many passwords are being compared.
    Busy,
}

/// The configuration in use. Where a changed one is wrong, the one from before stays.
#[derive(Debug)]
pub struct WatchedConfig {
    shared: Arc<Shared>,
    /// Held by the thread that looks at its files.
    looking: Arc<tokio::sync::Mutex<()>>,
    /// Of TLS handshakes.
    pub(super) handshake_rate: Mutex<HandshakeRate>,
}

/// What a thread that waits for a disk goes on with by itself.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    current: Mutex<Current>,
    attempts: Attempts,
}

#[derive(Debug, Clone)]
struct Current {
    web: Arc<WebConfig>,
    /// Its files when they were looked at last.
    seen: Files,
}

impl WatchedConfig {
    /// Reads it.
    pub fn load(path: &Path) -> Result<Self, WebConfigError> {
        let mut seen = Files::default();
        let web = WebConfig::read(path, &mut seen)?;
        let shared = Shared {
            path: path.to_owned(),
            current: Mutex::new(Current { web: Arc::new(web), seen }),
            attempts: Attempts::default(),
        };
        Ok(Self { shared: Arc::new(shared), looking: Arc::default(), handshake_rate: Mutex::default() })
    }

    /// Whether connections are encrypted. That stays as it was at the start.
    pub(super) fn has_tls(&self) -> bool {
        lock(&self.shared.current).web.tls.is_some()
    }

    /// How to talk to the next client, once it is its turn; `None` where it would have to wait too long.
    pub(super) async fn handshake(&self, from: IpAddr) -> Option<Arc<ServerConfig>> {
        let turn = lock(&self.handshake_rate).take(from, Instant::now());
        sleep(turn?).await;
        self.look().await;
        lock(&self.shared.current).web.tls.clone()
    }

    /// Whether a client may read metrics.
    /// Errors: why not.
    pub async fn admit(&self, authorization: Option<&HeaderValue>, from: IpAddr) -> Result<(), Refusal> {
        if !self.has_tls() {
            self.look().await;
        }
        let users = Arc::clone(&lock(&self.shared.current).web.users);
        if users.is_empty() {
            return Ok(());
        }
        let claim = authorization.and_then(Claim::of).ok_or(Refusal::Unauthorized)?;
        match self.shared.attempts.compare(&users, claim, from).await {
            Outcome::Right => Ok(()),
            Outcome::Wrong => Err(Refusal::Unauthorized),
            Outcome::Busy => Err(Refusal::Busy),
        }
    }

    /// Reads it again if a file has changed. One thread looks at a time: meanwhile, what is there is used.
    async fn look(&self) {
        let Ok(looking) = Arc::clone(&self.looking).try_lock_owned() else { return };
        let shared = Arc::clone(&self.shared);
        let looked = spawn_blocking(move || {
            shared.look();
            drop(looking);
        });
        // If it takes longer, its result is for later clients.
        let _ = timeout(DISK_PATIENCE, looked).await;
    }
}

impl Shared {
    fn look(&self) {
        let before = lock(&self.current).clone();
        if let Some(newer) = look(&self.path, &before) {
            self.attempts.keep(&newer.web.users);
            *lock(&self.current) = newer;
        }
    }
}

/// What is to be used from now on, if a file has changed.
fn look(path: &Path, before: &Current) -> Option<Current> {
    if before.seen.now() == before.seen {
        return None;
    }
    // Where it cannot be used, these are what it waits for: a file that it names may come later.
    let mut seen = Files::default();
    let why = match WebConfig::read(path, &mut seen) {
        Ok(web) if web.tls.is_some() != before.web.tls.is_some() => {
            "TLS cannot be switched on or off without a restart".to_owned()
        }
        // A file that is being written is empty, or has its first lines only.
        Ok(web) if web.asks_less_than(&before.web) => {
            "authentication cannot be switched off without a restart".to_owned()
        }
        Ok(web) => {
            tracing::info!(path = %path.display(), "web configuration reloaded");
            return Some(Current { web: Arc::new(web), seen });
        }
        Err(error) => chain(&error),
    };
    tracing::error!("{why}; keeping the web configuration from before");
    Some(Current { web: Arc::clone(&before.web), seen })
}

#[cfg(test)]
mod tests;
