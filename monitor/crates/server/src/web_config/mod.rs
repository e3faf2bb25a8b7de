//! `--web.config.file`: TLS and basic authentication for metrics, in the format of Prometheus' exporter-toolkit, as far as it
//! makes sense here. What is not supported is refused rather than ignored.
//!
//! Events are never served by TCP, whatever this file says.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use document::{Keys, Node, invalid};
use kevtmon_types::position::Position;
use kevtmon_types::regular_file;
use rustls::ServerConfig;
use thiserror::Error;
use tls::ClientAuth;
use users::Users;

mod attempts;
mod document;
mod handshake_rate;
mod stream;
#[cfg(test)]
mod tests;
mod tls;
mod users;
mod watched;

pub use stream::{WebListener, WebStream};
pub use watched::{Refusal, WatchedConfig};

/// Maximum size of this file, a certificate or a key.
const MAX_MIB: u64 = 1;

/// Why a web configuration cannot be used. The daemon exits with code 64.
#[derive(Debug, Error)]
pub enum WebConfigError {
    #[error("cannot read the web configuration {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{position}: {message}")]
    Invalid {
        position: Position,
        /// What is wrong, and what is valid.
        message: String,
    },
}

/// What is to be checked of clients, and how they are talked to.
#[derive(Debug)]
pub struct WebConfig {
    /// `None` without TLS.
    tls: Option<Arc<ServerConfig>>,
    certificates: ClientAuth,
    users: Arc<Users>,
}

/// Files, and what each was before it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Files(Vec<(PathBuf, Stamp)>);

/// What tells a file from another one at the same place, and from itself before it was written to; `None` if it is not there.
type Stamp = Option<(u64, u64, i64, i64)>;

impl Files {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.push((path.to_owned(), stamp(path)));
        regular_file::read(path, MAX_MIB)
    }

    /// The same files, as they are now.
    fn now(&self) -> Self {
        Self(self.0.iter().map(|(path, _)| (path.clone(), stamp(path))).collect())
    }
}

fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
}

const TOP: Keys = Keys {
    valid: &["tls_server_config", "basic_auth_users", "http_server_config"],
    unsupported: &[("rate_limit", "the rate of readings is limited by itself")],
};
const HTTP: Keys =
    Keys { valid: &["http2"], unsupported: &[("headers", "metrics are no pages of a browser")] };

impl WebConfig {
    /// Reads the file, and those that it names, relative to its directory.
    pub fn load(path: &Path) -> Result<Self, WebConfigError> {
        Self::read(path, &mut Files::default())
    }

    /// The same, and notes the files that it looks at: also where one of them is why it cannot be used.
    fn read(path: &Path, files: &mut Files) -> Result<Self, WebConfigError> {
        let text =
            files.read(path).map_err(|source| WebConfigError::Read { path: path.to_owned(), source })?;
        let text = String::from_utf8(text).map_err(|error| {
            invalid(Position { path: path.to_owned(), line: 1, column: 1 }, error.to_string())
        })?;
        let document = document::read(path, &text)?;
        let table = document.table(&TOP)?;
        if let Some(http) = table.get("http_server_config") {
            // HTTP/1.1 is what every client of metrics speaks.
            http.table(&HTTP)?.get("http2").map(Node::flag).transpose()?;
        }
        let users = table.given("basic_auth_users")?.map(Users::of).transpose()?.unwrap_or_default();
        let directory = path.parent().unwrap_or(Path::new(""));
        let tls =
            table.given("tls_server_config")?.map(|node| tls::of(node, directory, files)).transpose()?;
        let (tls, certificates) = tls.map_or((None, ClientAuth::None), |(tls, auth)| (Some(tls), auth));
        Ok(Self { tls, certificates, users: Arc::new(users) })
    }

    /// Whether it lets clients in that the other one keeps out, for not asking them at all.
    fn asks_less_than(&self, other: &Self) -> bool {
        (self.users.is_empty() && !other.users.is_empty()) || self.certificates < other.certificates
    }
}
