//! Leaves out of type information what nobody asks for.

use std::collections::{BTreeMap, BTreeSet};

/// Kinds of types, as `include/uapi/linux/btf.h` numbers them.
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const ENUM64: u32 = 19;

const HEADER: usize = 24;

/// How the enumerators of helpers begin: there are hundreds.
const HELPER: &str = "BPF_FUNC_";

/// A type, and what follows its common part.
struct Type<'a> {
    name: &'a str,
    info: u32,
    size_or_type: u32,
    /// Members, enumerators, or what else is of its kind.
    rest: &'a [u8],
}

impl<'a> Type<'a> {
    fn kind(&self) -> u32 {
        (self.info >> 24) & 0x1f
    }

    fn is_composite(&self) -> bool {
        matches!(self.kind(), STRUCT | UNION)
    }

    fn is_enum(&self) -> bool {
        matches!(self.kind(), ENUM | ENUM64)
    }

    fn parts(&self) -> impl Iterator<Item = &'a [u8]> {
        let size = if self.kind() == ENUM { 8 } else { 12 };
        let has_any = self.is_composite() || self.is_enum();
        self.rest.chunks_exact(size).take(if has_any { usize::MAX } else { 0 })
    }

    /// Another type that this one is the same as, but for its name or a qualifier.
    fn stands_for(&self) -> Option<u32> {
        matches!(self.kind(), 8..=11 | 18).then_some(self.size_or_type)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) structures: BTreeSet<String>,
    /// Names of members, of whatever structure.
    pub(super) members: BTreeSet<String>,
    /// Names of enumerations, and of helpers.
    pub(super) others: BTreeSet<String>,
}

/// Of the wanted structures the wanted members, and what these hold by value. `None` for what is no type information.
pub(super) fn reduce(bytes: &[u8], wanted: &Wanted) -> Option<Vec<u8>> {
    let (types, strings) = parse(bytes)?;
    let of_part = |part: &[u8]| word(part, 0).and_then(|name| text(strings, name)).unwrap_or_default();
    let is_wanted = |of: &Type<'_>, part: &[u8]| {
        let name = of_part(part);
        match name.strip_prefix(HELPER) {
            Some(helper) => wanted.others.contains(helper),
            None => of.is_enum() || name.is_empty() || wanted.members.contains(name),
        }
    };
    let mut kept: BTreeMap<u32, Vec<&[u8]>> = BTreeMap::new();
    let named = types.iter().enumerate().filter(|(_, found)| match found.kind() {
        STRUCT => wanted.structures.contains(found.name),
        ENUM | ENUM64 => wanted.others.contains(found.name),
        _ => false,
    });
    let mut to_keep: Vec<u32> = named.filter_map(|(index, _)| u32::try_from(index + 1).ok()).collect();
    while let Some(id) = to_keep.pop() {
        if kept.contains_key(&id) {
            continue;
        }
        let Some(found) = get(&types, id) else { continue };
        let parts: Vec<&[u8]> = found.parts().filter(|part| is_wanted(found, part)).collect();
        if found.is_composite() {
            to_keep.extend(parts.iter().filter_map(|part| word(part, 4)));
        }
        to_keep.extend(found.stands_for());
        kept.insert(id, parts);
    }
    write(&types, strings, &kept)
}

fn get<'t, 'a>(types: &'t [Type<'a>], id: u32) -> Option<&'t Type<'a>> {
    types.get((id as usize).checked_sub(1)?)
}

/// All types, and the bytes of the strings.
fn parse(bytes: &[u8]) -> Option<(Vec<Type<'_>>, &[u8])> {
    let [types_at, types_len, strings_at, strings_len] =
        [8, 12, 16, 20].map(|at| word(bytes, at).map(|n| n as usize));
    let body = bytes.get(word(bytes, 4)? as usize..)?;
    let strings = body.get(strings_at?..)?.get(..strings_len?)?;
    let mut left = body.get(types_at?..)?.get(..types_len?)?;
    let mut types = Vec::new();
    while !left.is_empty() {
        let info = word(left, 4)?;
        let len = 12 + extra(info)?;
        let (this, next) = left.split_at_checked(len)?;
        let name = text(strings, word(this, 0)?)?;
        types.push(Type { name, info, size_or_type: word(this, 8)?, rest: this.get(12..)? });
        left = next;
    }
    Some((types, strings))
}

/// Bytes that follow a type's common part.
fn extra(info: u32) -> Option<usize> {
    let count = (info & 0xffff) as usize;
    Some(match (info >> 24) & 0x1f {
        1 | 14 | 17 => 4,
        ARRAY => 12,
        STRUCT | UNION | 15 | ENUM64 => count * 12,
        ENUM | 13 => count * 8,
        PTR | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

/// What is kept, with new numbers in the old order. Pointers and arrays are of nothing then.
fn write(types: &[Type<'_>], strings: &[u8], kept: &BTreeMap<u32, Vec<&[u8]>>) -> Option<Vec<u8>> {
    let numbers: BTreeMap<u32, u32> = kept.keys().copied().zip(1..).collect();
    let number = |id: u32| numbers.get(&id).copied().unwrap_or(0);
    let mut texts = Texts::default();
    let mut body: Vec<u8> = Vec::new();
    for (id, parts) in kept {
        let found = get(types, *id)?;
        let has_parts = found.is_composite() || found.is_enum();
        let count = if has_parts { u32::try_from(parts.len()).ok()? } else { found.info & 0xffff };
        let size_or_type = match found.kind() {
            PTR => 0,
            _ => found.stands_for().map_or(found.size_or_type, number),
        };
        for word in [texts.add(found.name), found.info & 0xffff_0000 | count, size_or_type] {
            body.extend(word.to_le_bytes());
        }
        for part in parts {
            body.extend(texts.add(text(strings, word(part, 0)?)?).to_le_bytes());
            let second = word(part, 4)?;
            let second = if found.is_composite() { number(second) } else { second };
            body.extend(second.to_le_bytes());
            body.extend(part.get(8..)?);
        }
        match found.kind() {
            ARRAY => body.extend([0; 8].iter().chain(found.rest.get(8..)?)),
            _ if !has_parts => body.extend(found.rest),
            _ => {}
        }
    }
    let header = [HEADER, 0, body.len(), body.len(), texts.bytes.len()];
    let mut whole = vec![0x9f, 0xeb, 1, 0];
    for number in header {
        whole.extend(u32::try_from(number).ok()?.to_le_bytes());
    }
    whole.extend(body);
    whole.extend(texts.bytes);
    Some(whole)
}

/// Strings, each once.
struct Texts {
    bytes: Vec<u8>,
    known: BTreeMap<String, u32>,
}

impl Default for Texts {
    fn default() -> Self {
        // The empty one has the number 0.
        Self { bytes: vec![0], known: BTreeMap::from([(String::new(), 0)]) }
    }
}

impl Texts {
    fn add(&mut self, text: &str) -> u32 {
        if let Some(at) = self.known.get(text) {
            return *at;
        }
        // Smaller than what it was read from.
        let at = u32::try_from(self.bytes.len()).unwrap_or(0);
        self.bytes.extend(text.bytes());
        self.bytes.push(0);
        self.known.insert(text.to_owned(), at);
        at
    }
}

fn text(strings: &[u8], at: u32) -> Option<&str> {
    let tail = strings.get(at as usize..)?;
    std::str::from_utf8(tail.split(|byte| *byte == 0).next()?).ok()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct a { int x; struct b y; int z; }`, `struct b { int w; void *v; }`, `struct c {}`.
    fn types() -> Vec<u8> {
        let strings = b"\0int\0a\0x\0y\0z\0b\0w\0v\0c\0";
        let at = |name: &str| {
            let name = [b"\0", name.as_bytes(), b"\0"].concat();
            u32::try_from(
                strings.windows(name.len()).position(|window| window == name).expect("a string") + 1,
            )
            .expect("small")
        };
        let words = [
            vec![at("int"), 1 << 24, 4, 32],
            vec![0, PTR << 24, 0],
            vec![at("a"), STRUCT << 24 | 3, 24, at("x"), 1, 0, at("y"), 4, 64, at("z"), 1, 192],
            vec![at("b"), STRUCT << 24 | 2, 16, at("w"), 1, 0, at("v"), 2, 64],
            vec![at("c"), STRUCT << 24, 0],
        ]
        .concat();
        let len = u32::try_from(words.len() * 4).expect("small");
        let header = [0x0001_eb9f, 24, 0, len, len, u32::try_from(strings.len()).expect("small")];
        let mut bytes: Vec<u8> = header.iter().chain(&words).flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(strings);
        bytes
    }

    fn wanted(structure: &str, members: &[&str]) -> Wanted {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Wanted { structures: set(&[structure]), members: set(members), others: BTreeSet::new() }
    }

    fn reduced(structure: &str, members: &[&str]) -> Vec<String> {
        let bytes = reduce(&types(), &wanted(structure, members)).expect("types");
        let (types, strings) = parse(&bytes).expect("types again");
        let shown = types.iter().map(|found| {
            let parts = found.parts().map(|part| {
                let [name, of, at] = [0, 4, 8].map(|at| word(part, at).expect("a word"));
                format!(" {}:{of}@{at}", text(strings, name).expect("a name"))
            });
            format!("{}{}", found.name, parts.collect::<String>())
        });
        shown.collect()
    }

    #[test]
    fn what_is_named_stays_with_what_it_holds() {
        assert_eq!(reduced("a", &["y", "v"]), ["", "a y:3@64", "b v:1@64"]);
        assert_eq!(reduced("b", &["w", "x"]), ["int", "b w:1@0"]);
        assert_eq!(reduced("nothing", &["x"]), [""; 0]);
    }

    #[test]
    fn cut_bytes_are_no_types() {
        let whole = types();
        for len in 0..whole.len() - 20 {
            assert!(reduce(&whole[..len], &wanted("a", &["x"])).is_none(), "{len}");
        }
    }
}
