//! Ids of incidents: the same incident has the same id after a restart, so that it does not page again.
//!
//! FNV-1a with 128 bits over node, boot id, kind and subject, each followed by a byte that occurs in no UTF-8
//! text, folded to 64 bits. The hash avoids accidental collisions, not deliberate ones.

use serde::{Deserialize, Serialize};

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
const END: u8 = 0xff;

/// An incident's id; 16 hex digits in the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(super) struct IncidentId(u64);

impl IncidentId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16).map(Self)
    }

    pub(super) fn text(self) -> String {
        format!("{:016x}", self.0)
    }
}

impl From<IncidentId> for String {
    fn from(id: IncidentId) -> Self {
        id.text()
    }
}

impl TryFrom<String> for IncidentId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not an incident id"))
    }
}

/// Generates the ids of one node in one boot.
#[derive(Debug)]
pub(super) struct IdGenerator {
    /// Hash state after node and boot id.
    prefix: u128,
}

impl IdGenerator {
    pub(super) fn new(node: &str, boot_id: &str) -> Self {
        Self { prefix: add(add(OFFSET, node), boot_id) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the upper half is folded in before it is cut off")]
    pub(super) fn id(&self, kind: &str, subject: &str) -> IncidentId {
        let hash = add(add(self.prefix, kind), subject);
        IncidentId((hash ^ (hash >> 64)) as u64)
    }
}

fn add(hash: u128, text: &str) -> u128 {
    text.bytes().chain([END]).fold(hash, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_depends_on_every_part_and_on_where_one_ends() {
        let id = |node, boot, kind, subject| IdGenerator::new(node, boot).id(kind, subject);
        let one = id("n", "b", "k", "s");
        assert_eq!(one, id("n", "b", "k", "s"));
        for other in
            [id("x", "b", "k", "s"), id("n", "x", "k", "s"), id("n", "b", "x", "s"), id("n", "b", "k", "x")]
        {
            assert_ne!(one, other);
        }
        assert_ne!(id("n", "b", "ks", ""), id("n", "b", "k", "s"));
    }

    #[test]
    fn the_text_of_an_id_never_changes_and_reads_back() {
        let id = IdGenerator::new("slave-197", "b").id("gateway-neighbor-lost", "94feeebc95fb/2/169.254.1.1");
        assert_eq!(IncidentId::parse(&id.text()), Some(id));
        assert_eq!(id.text().len(), 16);
        assert_eq!(IncidentId::parse("12"), None);
    }
}
