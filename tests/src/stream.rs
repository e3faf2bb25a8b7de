//! A reader of the daemon's stream of events, over its unix socket.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::patience::patience;

/// Lines that come as they happen.
#[derive(Debug)]
pub struct Stream {
    lines: BufReader<Chunks>,
}

impl Stream {
    /// Requests `/v1/events?follow=1` with these further parameters, and reads the head of the response. What happens
    /// from then on is in the stream.
    #[must_use]
    pub fn open(socket: &Path, parameters: &str) -> Self {
        let mut stream = UnixStream::connect(socket).expect("the daemon listens");
        stream.set_read_timeout(Some(patience())).expect("a time limit can be set");
        write!(stream, "GET /v1/events?follow=1{parameters} HTTP/1.1\r\nHost: kevtmon\r\n\r\n")
            .expect("the daemon takes a request");
        // As little as possible is taken from the socket ahead of who reads.
        let mut chunks = Chunks { stream: BufReader::with_capacity(1024, stream), left: 0 };
        let status = chunks.line().expect("an answer has a head");
        assert!(status.contains(" 200 "), "{status}");
        while chunks.line().is_some_and(|line| !line.is_empty()) {}
        Self { lines: BufReader::with_capacity(1024, chunks) }
    }

    /// The next line; `None` when the stream has ended. Panics when none comes.
    pub fn next_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let length = self.lines.read_line(&mut line).expect("a line comes");
        // What is cut off in the middle of a line is no line.
        (length > 0 && line.ends_with('\n')).then(|| line.trim_end().to_owned())
    }

    /// The number of the next event; `None` when the stream has ended.
    pub fn next_seq(&mut self) -> Option<u64> {
        let line = self.next_line()?;
        let (_, rest) = line.split_once("\"seq\":").unwrap_or_else(|| panic!("no number: {line}"));
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        Some(digits.parse().unwrap_or_else(|_| panic!("no number: {line}")))
    }
}

/// The body of an answer in chunks.
#[derive(Debug)]
struct Chunks {
    stream: BufReader<UnixStream>,
    left: usize,
}

impl Chunks {
    /// A line of the protocol; `None` at the end of the connection.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("nothing comes: {error}"),
        }
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.left == 0 {
            match self.line() {
                None => return Ok(0),
                Some(line) if line.is_empty() => {}
                Some(line) => match usize::from_str_radix(&line, 16) {
                    Ok(0) => return Ok(0),
                    Ok(size) => self.left = size,
                    Err(_) => panic!("not the size of a chunk: {line}"),
                },
            }
        }
        let most = buffer.len().min(self.left);
        let read = match self.stream.read(&mut buffer[..most]) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            read => read?,
        };
        self.left -= read;
        Ok(read)
    }
}
