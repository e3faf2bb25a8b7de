//! The API server: one connection for each request, so that a token that was replaced is noticed by itself, too.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use rustls::ClientConfig;
use serde::Deserialize;
use thiserror::Error;

use crate::sinks::http_client::{self, Endpoint, HttpError, Reply};

/// Why an Event was not made.
#[derive(Debug, Error)]
pub(super) enum ApiError {
    #[error(
        "neither [kubernetes] server nor KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT name the API server"
    )]
    NoServer,
    #[error(transparent)]
    Http(#[from] HttpError),
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

/// Where it is, and what it takes to talk to it.
#[derive(Debug)]
pub(super) struct Client {
    /// As in the configuration; empty for that of the pod's environment.
    pub(super) server: String,
    pub(super) token_file: PathBuf,
    pub(super) ca_file: PathBuf,
}

impl Client {
    /// Whether all that a request takes is there. Sends nothing.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        self.endpoint()?.name()?;
        self.token()?;
        self.tls()?;
        Ok(())
    }

    pub(super) fn send(&self, call: Call) -> Result<Reply, ApiError> {
        let endpoint = self.endpoint()?;
        let (token, tls) = (self.token()?, self.tls()?);
        let request = Request::builder()
            .method(call.method)
            .uri(call.path)
            .header(AUTHORIZATION, token)
            .header(CONTENT_TYPE, call.content_type)
            .header(ACCEPT, "application/json")
            .body(Full::new(Bytes::from(call.body)))
            .map_err(|error| HttpError::Request(error.into()))?;
        Ok(endpoint.send(Some(tls), request, http_client::PATIENCE)?)
    }

    fn endpoint(&self) -> Result<Endpoint, ApiError> {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let of_pod = || {
            let host = variable("KUBERNETES_SERVICE_HOST")?;
            let port = variable("KUBERNETES_SERVICE_PORT")?.parse().ok()?;
            Some(Endpoint { is_tls: true, host, port, path: "/".to_owned() })
        };
        if self.server.is_empty() { of_pod() } else { of_url(&self.server) }.ok_or(ApiError::NoServer)
    }

    /// The kubelet replaces the token before it expires: it is read each time.
    fn token(&self) -> Result<HeaderValue, HttpError> {
        let bytes = http_client::read(&self.token_file)?;
        let token = str::from_utf8(&bytes).map(str::trim).ok().filter(|token| !token.is_empty());
        let value = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
        let mut value =
            value.ok_or_else(|| HttpError::Without { path: self.token_file.clone(), what: "token" })?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn tls(&self) -> Result<Arc<ClientConfig>, HttpError> {
        http_client::trusting(&self.ca_file)
    }
}

/// Whether a text is the URL of an API server, or empty.
pub(super) fn is_server(text: &str) -> bool {
    text.is_empty() || of_url(text).is_some()
}

fn of_url(url: &str) -> Option<Endpoint> {
    Endpoint::of_url(url).filter(|endpoint| endpoint.is_tls && !endpoint.has_path())
}

/// What it says of a failure: the message of a `Status`, or else the beginning of the text.
pub(super) fn said(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    match serde_json::from_slice::<Status>(body) {
        Ok(status) => http_client::shown(&status.message),
        Err(_) => http_client::text_of(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_an_https_url_without_a_path() {
        for url in ["https://10.96.0.1", "https://10.96.0.1:6443/", "https://[fd00::1]:6443", ""] {
            assert!(is_server(url), "{url}");
        }
        for url in ["http://10.96.0.1", "10.96.0.1:6443", "https://", "https://a/b", "https://a b"] {
            assert!(!is_server(url), "{url}");
        }
    }

    #[test]
    fn what_is_said_is_the_message_of_a_status_or_else_all() {
        assert_eq!(said(br#"{"kind":"Status","message":"no\n"}"#), "no");
        assert_eq!(said(b"upstream\x1b[2J"), "upstream\\x1b[2J");
    }
}
