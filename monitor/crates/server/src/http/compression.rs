//! Compression of a response, where the client accepts it (RFC 9110, section 12.5.3).

use std::io::{self, Write as _};
use std::sync::OnceLock;

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::HeaderMap;
use hyper::body::Bytes;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};

use super::body::whole;
use super::response::Response;

/// A text for any number of responses, compressed once if a client accepts that.
#[derive(Debug)]
pub struct Compressible {
    plain: Bytes,
    gzipped: OnceLock<Option<Bytes>>,
}

impl From<String> for Compressible {
    fn from(text: String) -> Self {
        Self { plain: text.into(), gzipped: OnceLock::new() }
    }
}

/// A response with the text as its body, compressed if the client accepts gzip; `plain` makes the response.
pub fn compressed(
    request: &HeaderMap,
    text: &Compressible,
    plain: impl FnOnce(super::body::Body) -> Response,
) -> Response {
    let gzip = || text.gzipped.get_or_init(|| gzip(&text.plain).map(Bytes::from).ok()).clone();
    let gzipped = if accepts_gzip(request) { gzip() } else { None };
    let is_gzipped = gzipped.is_some();
    let mut response = plain(whole(gzipped.unwrap_or_else(|| text.plain.clone())));
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
    if is_gzipped {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// The fastest level: metrics and events repeat themselves so much that the others hardly gain.
pub(crate) fn gzip(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 4), Compression::fast());
    encoder.write_all(text)?;
    encoder.finish()
}

/// Whether gzip is accepted, and no less than an uncompressed body.
fn accepts_gzip(request: &HeaderMap) -> bool {
    let (mut gzip, mut any, mut identity) = (None, None, None);
    let codings = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    for coding in codings.flat_map(|value| value.split(',')) {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        // What cannot be understood is not taken for consent.
        let weight = weight.map_or(1.0, |weight| weight.trim().parse::<f32>().unwrap_or(0.0));
        match name.as_str() {
            "gzip" | "x-gzip" => gzip = Some(weight),
            "*" => any = Some(weight),
            "identity" => identity = Some(weight),
            _ => {}
        }
    }
    let gzip: f32 = gzip.or(any).unwrap_or(0.0);
    gzip > 0.0 && gzip >= identity.unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_used_only_where_the_client_accepts_it() {
        for (accepted, expected) in [
            ("gzip", true),
            ("GZIP", true),
            ("deflate, gzip;q=0.5, br", true),
            ("gzip;q=1.0, identity;q=0.5, *;q=0", true),
            ("*", true),
            ("*;q=0.1", true),
            ("", false),
            ("br", false),
            ("identity", false),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("gzip;q=0, *", false),
            ("gzip;q=0.5, identity", false),
            ("gzip;q=loud", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accepted));
            assert_eq!(accepts_gzip(&headers), expected, "{accepted}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
