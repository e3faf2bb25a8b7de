//! A client of the daemon's HTTP endpoints, over a plain connection or its socket.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::patience::patience;

/// A response.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Header lines.
    pub head: String,
    /// The rest.
    pub body: String,
}

/// Sends one request.
///
/// # Errors
/// Without a response.
pub fn try_get(address: SocketAddr, path: &str) -> io::Result<Answer> {
    exchange(connect(address)?, &address.to_string(), path)
}

/// The same over a unix socket.
///
/// # Errors
/// Without a response.
pub fn try_get_local(socket: &Path, path: &str) -> io::Result<Answer> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(patience()))?;
    exchange(stream, "kevtmon", path)
}

fn exchange(mut stream: impl Read + Write, host: &str, path: &str) -> io::Result<Answer> {
    // At once: who is answered before he has sent all of it may not read the answer any more.
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    parse(bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a response of HTTP"))
}

/// As [`try_get`]; `None` without a response.
#[must_use]
pub fn get(address: SocketAddr, path: &str) -> Option<Answer> {
    try_get(address, path).ok()
}

/// Sends one request of a client that accepts gzip; head and body of the response, as they came, `None` without one.
#[must_use]
pub fn get_compressed(address: SocketAddr, path: &str) -> Option<(String, Vec<u8>)> {
    const BREAK: &[u8] = b"\r\n\r\n";
    let mut stream = connect(address).ok()?;
    let headers = "Accept-Encoding: gzip\r\nConnection: close";
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n\r\n").ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    let at = bytes.windows(BREAK.len()).position(|window| window == BREAK)?;
    let body = bytes.split_off(at + BREAK.len());
    Some((String::from_utf8(bytes).ok()?, body))
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, patience())?;
    stream.set_read_timeout(Some(patience()))?;
    Ok(stream)
}

/// A response, as it came.
#[must_use]
pub fn parse(bytes: Vec<u8>) -> Option<Answer> {
    let text = String::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunk(body)? } else { body.to_owned() };
    Some(Answer { status, head: head.to_owned(), body })
}

fn unchunk(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, tail) = rest.split_once("\r\n")?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.push_str(tail.get(..size)?);
        rest = tail.get(size + 2..)?;
    }
}
