//! The server that takes the records, most often an OpenTelemetry Collector.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderName,
    HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use hyper::{HeaderMap, Method, Request, StatusCode};
use thiserror::Error;

use crate::http::gzip;
use crate::sinks::http_client::{self, Endpoint, HttpError, Reply};

/// Where the specification has it.
const PATH: &str = "/v1/logs";
/// The authorities that the node trusts: of Debian, Alpine and Arch; of Fedora and RHEL; of SUSE.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];
/// Of a file of headers, at most.
const HEADERS: usize = 64;
/// What the request itself says.
const OWN_HEADERS: [HeaderName; 12] = [
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, USER_AGENT,
];

/// Why no record was taken.
#[derive(Debug, Error)]
pub(super) enum OtlpError {
    #[error("[otlp] endpoint is no URL")]
    NoEndpoint,
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(
        "{}: line {line} is none of at most 64 headers of the form NAME: VALUE that can be set",
        path.display()
    )]
    Header { path: PathBuf, line: usize },
    #[error("cannot compress the records")]
    Compress(#[source] io::Error),
    #[error("it answers {status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("it has too much to do: {status}: {message}")]
    Busy { status: StatusCode, message: String },
}

/// Where it is, and what it takes to talk to it.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) endpoint: String,
    /// Empty for the authorities of the node.
    pub(super) ca_file: PathBuf,
    /// Empty for none.
    pub(super) headers_file: PathBuf,
}

impl Client {
    /// Whether all that a request takes is there. Sends nothing.
    pub(super) fn check(&self) -> Result<(), OtlpError> {
        let endpoint = self.endpoint()?;
        self.headers()?;
        if endpoint.is_tls {
            endpoint.name()?;
            http_client::trusting(self.authorities())?;
        }
        Ok(())
    }

    /// Sends a message, and waits for the answer for so long.
    pub(super) fn send(&self, message: &[u8], patience: Duration) -> Result<Reply, OtlpError> {
        let endpoint = self.endpoint()?;
        let tls = match endpoint.is_tls {
            true => Some(http_client::trusting(self.authorities())?),
            false => None,
        };
        let path = if endpoint.has_path() { endpoint.path.as_str() } else { PATH };
        let body = Full::new(Bytes::from(gzip(message).map_err(OtlpError::Compress)?));
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .body(body)
            .map_err(|error| HttpError::Request(error.into()))?;
        let headers = request.headers_mut();
        *headers = self.headers()?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        Ok(endpoint.send(tls, request, patience)?)
    }

    fn endpoint(&self) -> Result<Endpoint, OtlpError> {
        Endpoint::of_url(&self.endpoint).ok_or(OtlpError::NoEndpoint)
    }

    /// Whether secrets are sent that everybody on the way can read.
    pub(super) fn exposes_headers(&self) -> bool {
        let is_exposed = |endpoint: Endpoint| !endpoint.is_tls && !endpoint.is_of_this_node();
        !self.headers_file.as_os_str().is_empty() && self.endpoint().is_ok_and(is_exposed)
    }

    fn authorities(&self) -> &Path {
        if !self.ca_file.as_os_str().is_empty() {
            return &self.ca_file;
        }
        let [first, ..] = AUTHORITIES.map(Path::new);
        AUTHORITIES.map(Path::new).into_iter().find(|path| path.exists()).unwrap_or(first)
    }

    /// A secret in them may be replaced at any time: they are read each time.
    fn headers(&self) -> Result<HeaderMap, OtlpError> {
        let mut headers = HeaderMap::new();
        if self.headers_file.as_os_str().is_empty() {
            return Ok(headers);
        }
        let bytes = http_client::read(&self.headers_file)?;
        for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            let no_header = || OtlpError::Header { path: self.headers_file.clone(), line: number };
            let line = str::from_utf8(line).map_err(|_| no_header())?.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let header =
                header(line).filter(|(name, _)| headers.len() < HEADERS && !OWN_HEADERS.contains(name));
            let (name, mut value) = header.ok_or_else(no_header)?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(headers)
    }
}

fn header(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
    Some((name, HeaderValue::from_str(value.trim()).ok()?))
}

/// Whether a text is the URL of a server, or empty.
pub(super) fn is_endpoint(text: &str) -> bool {
    text.is_empty() || Endpoint::of_url(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_from_a_file_and_each_line_has_to_be_one() {
        let dir = tempfile::tempdir().unwrap();
        let headers_file = dir.path().join("headers");
        let client = Client {
            endpoint: "http://127.0.0.1:4318".into(),
            ca_file: PathBuf::new(),
            headers_file: headers_file.clone(),
        };
        let text = "# of the tenant\nX-Scope-OrgID: one\n\nauthorization:  Bearer a:b \n";
        std::fs::write(&headers_file, text).unwrap();
        let headers = client.headers().unwrap();
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["x-scope-orgid"], "one");
        assert_eq!(headers["authorization"], "Bearer a:b");
        assert!(!format!("{headers:?}").contains("Bearer"), "they are secrets");
        client.check().unwrap();
        let many = "a: b\n".repeat(HEADERS + 1);
        for text in ["no header", "a b: c", "a: \x01", "Transfer-Encoding: chunked", "user-agent: a", &many] {
            std::fs::write(&headers_file, text).unwrap();
            let error = client.check().unwrap_err().to_string();
            let line = if text == many { HEADERS + 1 } else { 1 };
            assert!(error.contains(&format!("headers: line {line} is none of")), "{error}");
        }
    }

    #[test]
    fn headers_are_exposed_without_tls_outside_of_the_node() {
        for (endpoint, is_exposed) in [
            ("http://127.0.0.1:4318", false),
            ("http://[::1]:4318", false),
            ("http://localhost:4318", false),
            ("http://10.0.0.1:4318", true),
            ("http://collector:4318", true),
            ("https://collector:4318", false),
        ] {
            let client = Client {
                endpoint: endpoint.into(),
                ca_file: PathBuf::new(),
                headers_file: "/headers".into(),
            };
            assert_eq!(client.exposes_headers(), is_exposed, "{endpoint}");
        }
    }
}
