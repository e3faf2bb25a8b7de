//! Serializes maps as lists of key-value pairs in key order: JSON object keys must be strings, and equal maps must give
//! equal output.

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

pub fn serialize<'a, M, K, V, S>(map: &'a M, to: S) -> Result<S::Ok, S::Error>
where
    &'a M: IntoIterator<Item = (&'a K, &'a V)>,
    K: Ord + Serialize + 'a,
    V: Serialize + 'a,
    S: Serializer,
{
    let mut pairs: Vec<(&K, &V)> = map.into_iter().collect();
    pairs.sort_unstable_by_key(|(key, _)| *key);
    to.collect_seq(pairs)
}

pub fn deserialize<'de, M, K, V, D>(from: D) -> Result<M, D::Error>
where
    M: IntoIterator<Item = (K, V)> + FromIterator<(K, V)>,
    K: Deserialize<'de>,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Vec::deserialize(from)?.into_iter().collect())
}
