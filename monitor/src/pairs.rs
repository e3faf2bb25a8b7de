//! Maps as lists of pairs in the order of their keys, for serde: a key that is no text cannot name a JSON field, and
//! equal maps are written equally.

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

pub(crate) fn serialize<'a, M, K, V, S>(map: &'a M, to: S) -> Result<S::Ok, S::Error>
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

pub(crate) fn deserialize<'de, M, K, V, D>(from: D) -> Result<M, D::Error>
where
    M: IntoIterator<Item = (K, V)> + FromIterator<(K, V)>,
    K: Deserialize<'de>,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Vec::deserialize(from)?.into_iter().collect())
}
