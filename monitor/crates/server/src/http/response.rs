//! Responses that all endpoints share.

use hyper::StatusCode;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};

use super::body::{Body, whole};

/// A response of the daemon.
pub type Response = hyper::Response<Body>;

pub const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
pub const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
/// One JSON document.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// One JSON document per line.
pub const NDJSON: HeaderValue = HeaderValue::from_static("application/x-ndjson");

pub fn respond(status: StatusCode, content_type: HeaderValue, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A line of text, such as an error.
pub fn text(status: StatusCode, line: impl Into<String>) -> Response {
    let mut line = line.into();
    line.push('\n');
    respond(status, TEXT, whole(line))
}

/// Refuses a method; `allowed` as in the `Allow` header.
pub fn method_not_allowed(allowed: &'static str) -> Response {
    let mut refusal =
        text(StatusCode::METHOD_NOT_ALLOWED, format!("only {}", allowed.replace(", ", " and ")));
    refusal.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    refusal
}
