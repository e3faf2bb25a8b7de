//! Bytes from the ring become facts. Pure: what needs /proc is added by the reader of the ring.

use kevtmon_ebpf::Header;
use kevtmon_observation::{Observation, Source};
use kevtmon_types::namespace::NsInum;
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::cni::PartialCalls;
use super::hooks::{self, Decode};

/// A record that the programs do not write.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    #[error("record of kind {kind} truncated at {len} bytes")]
    Short {
        /// Kind in the header, 0 if there was no header.
        kind: u32,
        len: usize,
    },
    #[error("record of unknown kind {0}")]
    Kind(u32),
    #[error("record with invalid {field} {value}")]
    Value { field: &'static str, value: u32 },
}

/// The lower half of the cookie of the namespace, which records about it have as their detail.
pub(super) fn cookie_half(header: &Header) -> Option<u32> {
    Some(header.detail).filter(|half| *half != 0)
}

/// Turns records into observations.
#[derive(Debug)]
pub struct Decoder {
    host_netns: NsInum,
    calls: PartialCalls,
}

impl Decoder {
    /// One that knows of no record before.
    pub fn new(host_netns: NsInum) -> Self {
        Self { host_netns, calls: PartialCalls::default() }
    }

    /// Decodes one record by the layout that its header names; `None` if it is a part of what others complete.
    pub fn record(&mut self, bytes: &[u8]) -> Result<Option<Observation>, DecodeError> {
        let header = layout::<Header>(bytes)?;
        let mut kinds = hooks::records().flat_map(|records| records.kinds);
        let observed = |(at, fact)| Observation { at, source: Source::Bpf, fact };
        match kinds.find(|(kind, _)| *kind == header.kind) {
            Some((_, Decode::Fact(decode))) => {
                Ok(Some(observed((header.boot_ns, decode(bytes, self.host_netns)?))))
            }
            Some((_, Decode::Part(decode))) => Ok(decode(&mut self.calls, bytes)?.map(observed)),
            None => Err(DecodeError::Kind(header.kind)),
        }
    }
}

/// Decodes a record that is a fact by itself.
#[cfg(test)]
pub(super) fn record(bytes: &[u8], host_netns: NsInum) -> Result<Observation, DecodeError> {
    let whole = Decoder::new(host_netns).record(bytes)?;
    whole.ok_or_else(|| short(bytes))
}

/// A record of fixed size.
pub(super) fn layout<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<&T, DecodeError> {
    T::ref_from_prefix(bytes).map(|(record, _)| record).map_err(|_| short(bytes))
}

pub(super) fn short(bytes: &[u8]) -> DecodeError {
    let kind = Header::ref_from_prefix(bytes).map_or(0, |(header, _)| header.kind);
    DecodeError::Short { kind, len: bytes.len() }
}

/// Text up to the first NUL.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    lossy(&bytes[..end])
}

/// As [`String::from_utf8_lossy`], in a buffer of its length: of one that grows, secrets would be left where it was, and it
/// would be up to twice as large.
pub(super) fn lossy(bytes: &[u8]) -> String {
    let parts = || {
        bytes.utf8_chunks().flat_map(|chunk| {
            let replaced = if chunk.invalid().is_empty() { "" } else { "\u{FFFD}" };
            [chunk.valid(), replaced]
        })
    };
    let mut text = String::with_capacity(parts().map(str::len).sum());
    parts().for_each(|part| text.push_str(part));
    text
}

#[cfg(test)]
mod tests {
    use kevtmon_ebpf::neighbor::{KIND_NEIGHBOR, NeighborRecord};
    use zerocopy::{FromZeros as _, IntoBytes as _};

    use super::*;

    #[test]
    fn what_is_no_text_takes_no_more_memory_than_it_is_long() {
        for bytes in [&[0xff; 1365][..], b"", b"plain", b"a\xffb\xe2\x82", "é\u{1F404}".as_bytes()] {
            let text = lossy(bytes);
            assert_eq!((text.as_str(), text.capacity()), (&*String::from_utf8_lossy(bytes), text.len()));
        }
    }

    #[test]
    fn a_cut_or_foreign_record_is_an_error() {
        assert_eq!(record(&[1, 2, 3], 1).unwrap_err(), DecodeError::Short { kind: 0, len: 3 });
        let mut whole = NeighborRecord::new_zeroed();
        whole.header.kind = KIND_NEIGHBOR;
        let mut bytes = whole.as_bytes().to_vec();
        bytes.truncate(100);
        assert_eq!(record(&bytes, 1).unwrap_err(), DecodeError::Short { kind: KIND_NEIGHBOR, len: 100 });
        bytes[..4].copy_from_slice(&99_u32.to_ne_bytes());
        assert_eq!(record(&bytes, 1).unwrap_err(), DecodeError::Kind(99));
        assert_eq!(record(&[0; 4096], 1).unwrap_err(), DecodeError::Kind(0));
    }
}
