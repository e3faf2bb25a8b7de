//! Requests to other nodes: one connection for each, so that a server, an address or a certificate that was replaced is noticed by
//! itself, and nothing stays open in between. What one takes is bounded: time, files that are read for it, and the answer.

use std::error::Error;
use std::ffi::{c_char, c_int};
use std::future::pending;
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use kevtmon_types::escape::Escaped;
use kevtmon_types::regular_file;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore, crypto};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

type BoxError = Box<dyn Error + Send + Sync>;

/// For all of a request, usually.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Of an answer that are read: an API server sends the object back with what it adds to it.
const ANSWER_BYTES: usize = 256 << 10;
/// Of a file that is read, for a wrong one may be named.
const FILE_BYTES: u64 = 1 << 20;
/// Of what a server says that are kept: it may quote two names of 253.
const SAID: usize = 2048;

/// Why there is no answer.
#[derive(Debug, Error)]
pub(super) enum HttpError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has no {what}", path.display())]
    Without { path: PathBuf, what: &'static str },
    #[error("{server} is no name of a server")]
    Name { server: String, source: InvalidDnsNameError },
    #[error("cannot use TLS")]
    Tls(#[from] rustls::Error),
    #[error("cannot make the request")]
    Request(#[source] BoxError),
    #[error("cannot start the client")]
    Start(#[source] io::Error),
    #[error("cannot connect to {server}")]
    Connect { server: String, source: io::Error },
    #[error("{server} does not answer")]
    Silent { server: String },
    #[error("the connection to {server} broke")]
    Broken { server: String, source: BoxError },
}

/// An answer, as it was read.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    /// As the server names it: it may be any time.
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Bytes,
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// `/` where the URL has none.
    pub(super) path: String,
}

impl Endpoint {
    /// Of a URL by http or https. One with a user or a query is none: both may be secrets, and settings must not hold any.
    pub(super) fn of_url(url: &str) -> Option<Self> {
        let url: Uri = url.parse().ok()?;
        let (is_tls, port) = match url.scheme_str()? {
            "https" => (true, 443),
            "http" => (false, 80),
            _ => return None,
        };
        let host = url.host().filter(|host| url.query().is_none() && !host.is_empty())?;
        // Neither a user nor a port that is none is overlooked.
        let port = match url.authority()?.as_str().strip_prefix(host)? {
            "" => port,
            rest => rest.strip_prefix(':')?.parse().ok()?,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Self { is_tls, host, port, path: url.path().to_owned() })
    }

    pub(super) fn has_path(&self) -> bool {
        !["", "/"].contains(&self.path.as_str())
    }

    /// Whether it is reached by the loopback.
    pub(super) fn is_of_this_node(&self) -> bool {
        let is_loopback = |address: IpAddr| address.is_loopback();
        self.host == "localhost" || self.host.parse().is_ok_and(is_loopback)
    }

    pub(super) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// What its certificate has to be for.
    pub(super) fn name(&self) -> Result<ServerName<'static>, HttpError> {
        let named = ServerName::try_from(self.host.clone());
        named.map_err(|source| HttpError::Name { server: self.host.clone(), source })
    }

    /// Sends a request: with `tls` by that, else as it is.
    pub(super) fn send(
        &self,
        tls: Option<Arc<ClientConfig>>,
        mut request: Request<Full<Bytes>>,
        patience: Duration,
    ) -> Result<Reply, HttpError> {
        let server = self.authority();
        let broken = |source: BoxError| HttpError::Broken { server: server.clone(), source };
        let host = HeaderValue::from_str(&server).map_err(|error| HttpError::Request(error.into()))?;
        let headers = request.headers_mut();
        headers.insert(HOST, host);
        headers.insert(USER_AGENT, HeaderValue::from_static("kevtmon"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        let tls = match tls {
            Some(tls) => Some((TlsConnector::from(tls), self.name()?)),
            None => None,
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(HttpError::Start)?;
        let asked = runtime.block_on(async {
            timeout(patience, async {
                let not_connected = |source| HttpError::Connect { server: server.clone(), source };
                let stream = self.connect(patience / 4).await.map_err(not_connected)?;
                let Some((connector, name)) = tls else {
                    return exchange(TokioIo::new(stream), request).await.map_err(broken);
                };
                let stream = connector.connect(name, stream).await.map_err(not_connected)?;
                exchange(TokioIo::new(stream), request).await.map_err(broken)
            })
            .await
        });
        asked.unwrap_or_else(|_| Err(HttpError::Silent { server: server.clone() }))
    }

    /// To the first of its addresses that answers in time.
    async fn connect(&self, patience: Duration) -> io::Result<TcpStream> {
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in self.addresses().await? {
            match timeout(patience, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => failure = error,
                Err(_) => failure = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(failure)
    }

    /// The C library has no deadline: nothing waits for its thread. Tokio's own lookup panics where there is none to be had.
    async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = (self.host.clone(), self.port);
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![(address, port).into()]);
        }
        use_no_modules_for_names();
        let (sender, found) = oneshot::channel();
        thread::Builder::new().name("lookup".to_owned()).spawn(move || {
            let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
            // The request may have timed out.
            let _ = sender.send(found);
        })?;
        found.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}

/// Names are looked up in /etc/hosts and by DNS, which are part of the program: for what else /etc/nsswitch.conf names, the C library
/// would load modules of the host, made for another program, into this one (`nss/nss_database.c` of glibc).
fn use_no_modules_for_names() {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
        }
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: both are texts that end with a zero and live for ever; glibc copies what it keeps.
            if unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) } != 0 {
                tracing::warn!("names of servers are looked up as the host's nsswitch.conf says");
            }
        });
    }
}

/// TLS that trusts the authorities in a file, and no others.
pub(super) fn trusting(ca_file: &Path) -> Result<Arc<ClientConfig>, HttpError> {
    let bytes = read(ca_file)?;
    let mut roots = RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok));
    if added == 0 {
        return Err(HttpError::Without { path: ca_file.to_owned(), what: "certificate (PEM)" });
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The beginning of a file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::new();
    match regular_file::open(path).and_then(|file| file.take(FILE_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => Ok(bytes),
        Err(source) => Err(HttpError::Read { path: path.to_owned(), source }),
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Reply, BoxError>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let (mut sender, connection) = http1::handshake(stream).await?;
    let answered = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let retry_after = answer.headers().get(RETRY_AFTER).and_then(|value| pause(value.to_str().ok()?));
        // What it has decided holds, also where the text to it is broken or too long.
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        Ok::<_, BoxError>(Reply { status, retry_after, body })
    };
    tokio::select! {
        answer = answered => answer,
        // Its errors are those of the answer as well.
        never = async { drop(connection.await); pending().await } => never,
    }
}

/// A pause in seconds, or until a date.
fn pause(named: &str) -> Option<Duration> {
    match named.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let date = rfc2822::parse(named).ok()?.timestamp();
            Some(date.duration_since(Timestamp::now()).try_into().unwrap_or_default())
        }
    }
}

/// The beginning of what a server says, which is any bytes.
pub(super) fn text_of(body: &[u8]) -> String {
    shown(&String::from_utf8_lossy(&body[..body.len().min(SAID)]))
}

/// The same of a text.
pub(super) fn shown(text: &str) -> String {
    let mut text = Escaped(text.trim()).to_string();
    text.truncate(text.floor_char_boundary(SAID));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_of_http_that_holds_no_secret() {
        for (url, is_tls, authority, path) in [
            ("https://10.96.0.1", true, "10.96.0.1:443", "/"),
            ("https://10.96.0.1:6443/", true, "10.96.0.1:6443", "/"),
            ("https://[fd00::1]:6443", true, "[fd00::1]:6443", "/"),
            ("http://collector:4318/v1/logs", false, "collector:4318", "/v1/logs"),
            ("http://collector.example.org", false, "collector.example.org:80", "/"),
        ] {
            let endpoint = Endpoint::of_url(url).unwrap();
            let authority = (is_tls, authority.to_owned(), path);
            assert_eq!((endpoint.is_tls, endpoint.authority(), endpoint.path.as_str()), authority);
            assert_eq!(endpoint.has_path(), endpoint.path != "/");
            endpoint.name().unwrap();
        }
        for url in [
            "10.96.0.1:6443", "https://", "https://a b", "unix:///run/a.sock", "https://user:secret@a",
            "https://a/?token=secret", "https://a:70000", "https://a:",
        ] {
            assert_eq!(Endpoint::of_url(url), None, "{url}");
        }
    }

    #[test]
    fn a_pause_is_in_seconds_or_until_a_date() {
        assert_eq!(pause("120"), Some(Duration::from_secs(120)));
        assert_eq!(pause("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert!(pause("Sat, 06 Nov 2094 08:49:37 GMT").unwrap() > Duration::from_secs(1 << 30));
        assert_eq!(pause("soon"), None);
    }

    #[test]
    fn names_are_looked_up() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let endpoint = |host| Endpoint::of_url(&format!("http://{host}:{port}")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(endpoint("localhost").connect(PATIENCE)).unwrap();
        // A part of a name has at most 63 characters: no server is asked.
        let no_name = "a".repeat(64);
        let error = runtime.block_on(endpoint(no_name.as_str()).connect(PATIENCE)).unwrap_err();
        assert!(error.to_string().contains("lookup"), "{error}");
        runtime.block_on(endpoint("127.0.0.1").connect(PATIENCE)).unwrap();
    }

    #[test]
    fn what_is_said_is_bounded_and_controls_no_terminal() {
        assert_eq!(text_of(b"upstream\x1b[2J"), "upstream\\x1b[2J");
        assert_eq!(text_of(&[0xff; 9000]).len(), 2046, "whole characters of three bytes");
    }
}
