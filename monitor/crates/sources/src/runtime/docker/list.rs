//! The answer to a list, read entry by entry: what it costs follows from the containers that it tells, not from how many
//! entries it has.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{Error, SeqAccess, Visitor};

use super::api::ContainerSummary;
use super::facts;
use crate::kubelet::PodLabels;
use crate::runtime::client::{ENTRIES_MAX, Listed};

/// Errors: what is no list of containers, or one of more than a node can have.
pub(super) fn read(answer: &[u8], labels: &PodLabels) -> Result<Listed, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(answer);
    let listed = json.deserialize_seq(Entries { labels })?;
    json.end()?;
    Ok(listed)
}

struct Entries<'l> {
    labels: &'l PodLabels,
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = Listed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of containers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Listed, A::Error> {
        let mut listed = Listed::default();
        while let Some(entry) = entries.next_element::<ContainerSummary>()? {
            match facts::from_summary(entry, self.labels) {
                Some(_) if listed.containers.len() >= ENTRIES_MAX => {
                    return Err(A::Error::custom(format!("it has more than {ENTRIES_MAX} containers")));
                }
                Some(facts) => listed.containers.push(facts),
                None => listed.malformed += 1,
            }
        }
        Ok(listed)
    }
}
