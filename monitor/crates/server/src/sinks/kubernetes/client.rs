//! The API server: one connection for each request, so that a server, an address, a certificate or a token that was replaced is
//! noticed by itself, and nothing stays open between the few Events of a node.

use std::env;
use std::error::Error;
use std::future::pending;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use kevtmon_types::escape::Escaped;
use kevtmon_types::regular_file;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore, crypto};
use serde::Deserialize;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

type BoxError = Box<dyn Error + Send + Sync>;

/// For all of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of an answer that are read: the object comes back with what the server adds to it.
const ANSWER_BYTES: usize = 256 << 10;
/// Of a file that is read, for a wrong one may be named.
const FILE_BYTES: u64 = 1 << 20;
/// Of what the server says that are kept: it may quote two names of 253.
const SAID: usize = 2048;
const PORT: u16 = 443;

/// Why an Event was not made.
#[derive(Debug, Error)]
pub(super) enum ApiError {
    #[error(
        "neither [kubernetes] server nor KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT name the API server"
    )]
    NoServer,
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} has no {what}", path.display())]
    Without { path: PathBuf, what: &'static str },
    #[error("{server} is no name of a server")]
    Name {
        server: String,
        #[source]
        source: InvalidDnsNameError,
    },
    #[error("cannot use TLS")]
    Tls(#[from] rustls::Error),
    #[error("cannot start the client")]
    Start(#[source] io::Error),
    #[error("cannot connect to {server}")]
    Connect {
        server: String,
        #[source]
        source: io::Error,
    },
    #[error("{server} does not answer")]
    Silent { server: String },
    #[error("the connection to {server} broke")]
    Broken {
        server: String,
        #[source]
        source: BoxError,
    },
    #[error("it answers {status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("the service account lacks the RBAC verb {verb} of events in events.k8s.io")]
    Forbidden { verb: &'static str },
}

/// What is asked of it.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
    /// What it says of a failure.
    pub(super) message: String,
}

/// Where it is, and what it takes to talk to it.
#[derive(Debug)]
pub(super) struct Client {
    /// As in the configuration; empty for that of the pod's environment.
    pub(super) server: String,
    pub(super) token_file: PathBuf,
    pub(super) ca_file: PathBuf,
}

struct Endpoint {
    host: String,
    port: u16,
}

impl Client {
    /// Whether all that a request takes is there. Sends nothing.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        self.endpoint()?.name()?;
        self.token()?;
        self.tls().map(drop)
    }

    pub(super) fn send(&self, call: Call) -> Result<Answer, ApiError> {
        let endpoint = self.endpoint()?;
        let (name, token, tls) = (endpoint.name()?, self.token()?, self.tls()?);
        let server = endpoint.authority();
        let broken = |source: BoxError| ApiError::Broken { server: server.clone(), source };
        let request = Request::builder()
            .method(call.method)
            .uri(call.path)
            .header(HOST, &server)
            .header(AUTHORIZATION, token)
            .header(CONTENT_TYPE, call.content_type)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "kevtmon")
            .header(CONNECTION, "close")
            .body(Full::new(Bytes::from(call.body)))
            .map_err(|error| broken(error.into()))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(ApiError::Start)?;
        let asked = runtime.block_on(async {
            timeout(PATIENCE, async {
                let not_connected = |source| ApiError::Connect { server: server.clone(), source };
                let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await;
                let stream = TlsConnector::from(tls).connect(name, stream.map_err(not_connected)?).await;
                exchange(TokioIo::new(stream.map_err(not_connected)?), request).await.map_err(broken)
            })
            .await
        });
        // A name may still be looked up: nothing waits for that.
        runtime.shutdown_background();
        asked.unwrap_or_else(|_| Err(ApiError::Silent { server: server.clone() }))
    }

    fn endpoint(&self) -> Result<Endpoint, ApiError> {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let of_pod = || {
            let host = variable("KUBERNETES_SERVICE_HOST")?;
            let port = variable("KUBERNETES_SERVICE_PORT")?.parse().ok()?;
            Some(Endpoint { host, port })
        };
        if self.server.is_empty() { of_pod() } else { Endpoint::of_url(&self.server) }
            .ok_or(ApiError::NoServer)
    }

    /// The kubelet replaces the token before it expires: it is read each time.
    fn token(&self) -> Result<HeaderValue, ApiError> {
        let bytes = read(&self.token_file)?;
        let token = str::from_utf8(&bytes).map(str::trim).ok().filter(|token| !token.is_empty());
        let value = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
        let mut value =
            value.ok_or_else(|| ApiError::Without { path: self.token_file.clone(), what: "token" })?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn tls(&self) -> Result<Arc<ClientConfig>, ApiError> {
        let bytes = read(&self.ca_file)?;
        let mut roots = RootCertStore::empty();
        let (added, _) =
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok));
        if added == 0 {
            return Err(ApiError::Without { path: self.ca_file.clone(), what: "certificate (PEM)" });
        }
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Whether a text is the URL of an API server, or empty.
pub(super) fn is_server(text: &str) -> bool {
    text.is_empty() || Endpoint::of_url(text).is_some()
}

impl Endpoint {
    fn of_url(url: &str) -> Option<Self> {
        let url: Uri = url.parse().ok()?;
        let is_bare = url.scheme_str() == Some("https") && ["", "/"].contains(&url.path());
        let host = url.host().filter(|host| is_bare && !host.is_empty())?;
        // Neither a user nor a port that is none is overlooked.
        let port = match url.authority()?.as_str().strip_prefix(host)? {
            "" => PORT,
            rest => rest.strip_prefix(':')?.parse().ok()?,
        };
        Some(Self { host: host.trim_start_matches('[').trim_end_matches(']').to_owned(), port })
    }

    fn authority(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    fn name(&self) -> Result<ServerName<'static>, ApiError> {
        let named = ServerName::try_from(self.host.clone());
        named.map_err(|source| ApiError::Name { server: self.host.clone(), source })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    match regular_file::open(path).and_then(|file| file.take(FILE_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => Ok(bytes),
        Err(source) => Err(ApiError::Read { path: path.to_owned(), source }),
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Answer, BoxError>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let (mut sender, connection) = http1::handshake(stream).await?;
    let answered = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let seconds = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await?.to_bytes();
        Ok::<_, BoxError>(Answer {
            status,
            retry_after: seconds.map(Duration::from_secs),
            message: said(&body),
        })
    };
    tokio::select! {
        answer = answered => answer,
        // Its errors are those of the answer as well.
        never = async { drop(connection.await); pending().await } => never,
    }
}

/// What it says of a failure: the message of a `Status`, or else the beginning of the text.
fn said(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    let text = match serde_json::from_slice::<Status>(body) {
        Ok(status) => status.message,
        Err(_) => String::from_utf8_lossy(&body[..body.len().min(SAID)]).into_owned(),
    };
    let mut text = Escaped(text.trim()).to_string();
    text.truncate(text.floor_char_boundary(SAID));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_an_https_url_without_a_path() {
        for (url, authority) in [
            ("https://10.96.0.1", "10.96.0.1:443"),
            ("https://10.96.0.1:6443/", "10.96.0.1:6443"),
            ("https://[fd00::1]:6443", "[fd00::1]:6443"),
            ("https://api.example.org", "api.example.org:443"),
        ] {
            let endpoint = Endpoint::of_url(url).unwrap();
            assert_eq!(endpoint.authority(), authority);
            endpoint.name().unwrap();
        }
        for url in [
            "http://10.96.0.1",
            "10.96.0.1:6443",
            "https://",
            "https://a/b",
            "https://a b",
            "https://a:99999",
            "https://u:p@a",
        ] {
            assert!(!is_server(url), "{url}");
        }
        assert!(is_server(""));
    }

    #[test]
    fn what_is_said_is_bounded_and_controls_no_terminal() {
        assert_eq!(said(br#"{"kind":"Status","message":"no\n"}"#), "no");
        assert_eq!(said(b"upstream\x1b[2J"), "upstream\\x1b[2J");
        assert_eq!(said(&[0xff; 9000]).len(), 2046, "whole characters of three bytes");
    }
}
