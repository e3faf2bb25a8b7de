//! A small reader of BTF, for the offsets of what the programs read.
//!
//! Only structures, unions, typedefs and enums matter here; everything else is skipped, kinds that this file does not know as
//! well if the kernel tells how long they are. Layout: `Documentation/bpf/btf.rst`. Bytes in, offsets out; any bytes give an answer or an error, never a panic.

use kevtmon_ebpf::MISSING;
use thiserror::Error;

/// What can be wrong with type information.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum BtfError {
    #[error("malformed BTF at byte {0}")]
    Malformed(usize),
    /// A member that the programs cannot do without.
    #[error("this kernel's BTF has no {0}")]
    Missing(&'static str),
}

const MAGIC: u16 = 0xeb9f;

const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;

/// Bytes of the header where it tells how long types of each kind are, which newer kernels may do.
const HEADER_WITH_LAYOUT: usize = 32;

/// Type information of a kernel.
pub struct Btf<'a> {
    bytes: &'a [u8],
    strings: usize,
    /// Byte position of each type; type 0 is void.
    types: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Type {
    at: usize,
    name: u32,
    kind: u32,
    vlen: usize,
    kind_flag: bool,
    size_or_type: u32,
}

impl<'a> Btf<'a> {
    /// Indexes the types.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        let word = |at| read_u32(bytes, at).ok_or(BtfError::Malformed(at));
        let magic = bytes.first_chunk::<2>().map(|b| u16::from_ne_bytes(*b));
        if magic != Some(MAGIC) {
            return Err(BtfError::Malformed(0));
        }
        let header = word(4)? as usize;
        let start = header + word(8)? as usize;
        let end = start + word(12)? as usize;
        let strings = header + word(16)? as usize;
        let layout = match header >= HEADER_WITH_LAYOUT {
            true => {
                bytes.get(header + word(24)? as usize..).and_then(|tail| tail.get(..word(28).ok()? as usize))
            }
            false => None,
        };
        let mut btf = Self { bytes, strings, types: vec![0] };
        let mut at = start;
        while at < end {
            let entry = btf.read(at)?;
            btf.types.push(at);
            let extra = extra(&entry).or_else(|| extra_by_layout(&entry, layout?));
            at += 12 + extra.ok_or(BtfError::Malformed(at))?;
        }
        Ok(btf)
    }

    /// Byte offset of `STRUCT.MEMBER[.MEMBER]`, through anonymous members and typedefs; `None` if this
    /// kernel has no such member.
    pub fn offset(&self, path: &str) -> Option<u32> {
        self.member(path).map(|(bits, _)| bits / 8)
    }

    /// Byte offset of a member that the programs cannot do without.
    pub fn need(&self, path: &'static str) -> Result<u32, BtfError> {
        self.offset(path).ok_or(BtfError::Missing(path))
    }

    /// Byte offset of a bit field of one bit, and the number of the bit in that byte.
    pub fn need_bit(&self, path: &'static str) -> Result<(u32, u32), BtfError> {
        let (bits, _) = self.member(path).ok_or(BtfError::Missing(path))?;
        Ok((bits / 8, bits % 8))
    }

    /// Byte offset of the first of these members that this kernel has, else [`MISSING`].
    pub fn any_of(&self, paths: &[&str]) -> u32 {
        paths.iter().find_map(|path| self.offset(path)).unwrap_or(MISSING)
    }

    /// Size in bytes of the integer that a path ends at.
    pub fn size(&self, path: &str) -> Option<u32> {
        let (_, id) = self.member(path)?;
        Some(self.resolve(id)?.size_or_type)
    }

    /// Value of an enumerator.
    pub fn enumerator(&self, of: &str, name: &str) -> Option<u32> {
        self.named(of, KIND_ENUM).find_map(|entry| {
            (0..entry.vlen).find_map(|index| {
                let at = entry.at + 12 + index * 8;
                (self.string(read_u32(self.bytes, at)?) == Some(name.as_bytes()))
                    .then(|| read_u32(self.bytes, at + 4))
                    .flatten()
            })
        })
    }

    /// Whether programs may call a helper, by its name without `bpf_`. What it gives to which of them is not told.
    pub fn has_helper(&self, name: &str) -> bool {
        self.enumerator("bpf_func_id", &format!("BPF_FUNC_{name}")).is_some()
    }

    /// Offset in bits, and type.
    fn member(&self, path: &str) -> Option<(u32, u32)> {
        let mut names = path.split('.');
        let of = names.next()?;
        let names: Vec<&str> = names.collect();
        self.named(of, KIND_STRUCT).find_map(|start| {
            let mut current = start;
            let mut offset = 0;
            let mut id = 0;
            for name in &names {
                let (member_offset, member_id) = self.find(&current, name, 0)?;
                offset = member_offset.checked_add(offset)?;
                id = member_id;
                current = self.resolve(id)?;
            }
            Some((offset, id))
        })
    }

    fn find(&self, of: &Type, name: &str, depth: u32) -> Option<(u32, u32)> {
        if !matches!(of.kind, KIND_STRUCT | KIND_UNION) || depth > 8 {
            return None;
        }
        (0..of.vlen).find_map(|index| {
            let at = of.at + 12 + index * 12;
            let name_offset = read_u32(self.bytes, at)?;
            let id = read_u32(self.bytes, at + 4)?;
            let mut bits = read_u32(self.bytes, at + 8)?;
            if of.kind_flag {
                bits &= 0x00ff_ffff;
            }
            let found = self.string(name_offset)?;
            if found == name.as_bytes() {
                Some((bits, id))
            } else if found.is_empty() {
                let (inner, id) = self.find(&self.resolve(id)?, name, depth + 1)?;
                Some((bits.checked_add(inner)?, id))
            } else {
                None
            }
        })
    }

    /// Follows typedefs and qualifiers.
    fn resolve(&self, mut id: u32) -> Option<Type> {
        for _ in 0..32 {
            let entry = self.read(*self.types.get(id as usize).filter(|at| **at > 0)?).ok()?;
            // typedef, volatile, const, restrict, type tag
            if matches!(entry.kind, KIND_TYPEDEF | 9 | 10 | 11 | 18) {
                id = entry.size_or_type;
            } else {
                return Some(entry);
            }
        }
        None
    }

    fn named<'b>(&'b self, name: &'b str, kind: u32) -> impl Iterator<Item = Type> + 'b {
        self.types.iter().skip(1).filter_map(move |at| {
            let entry = self.read(*at).ok()?;
            (entry.kind == kind && self.string(entry.name) == Some(name.as_bytes())).then_some(entry)
        })
    }

    fn string(&self, offset: u32) -> Option<&'a [u8]> {
        let tail = self.bytes.get(self.strings + offset as usize..)?;
        Some(&tail[..tail.iter().position(|byte| *byte == 0)?])
    }

    fn read(&self, at: usize) -> Result<Type, BtfError> {
        let word = |offset| read_u32(self.bytes, at + offset).ok_or(BtfError::Malformed(at));
        let info = word(4)?;
        Ok(Type {
            at,
            name: word(0)?,
            // Wider than any kernel so far uses; what is added is zero in all of them.
            kind: (info >> 24) & 0x7f,
            vlen: (info & 0x00ff_ffff) as usize,
            kind_flag: info >> 31 == 1,
            size_or_type: word(8)?,
        })
    }
}

/// Bytes that follow a type's common part.
fn extra(entry: &Type) -> Option<usize> {
    Some(match entry.kind {
        1 | 14 | 17 => 4,
        3 => 12,
        KIND_STRUCT | KIND_UNION | 15 | 19 => entry.vlen * 12,
        KIND_ENUM | 13 => entry.vlen * 8,
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

/// The same of any kind, as the kernel tells: bytes of one item, and of each of those that are counted.
fn extra_by_layout(entry: &Type, layout: &[u8]) -> Option<usize> {
    let of_kind = layout.get(entry.kind as usize * 4..)?;
    Some(usize::from(*of_kind.first()?) + entry.vlen * usize::from(*of_kind.get(1)?))
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk::<4>().map(|b| u32::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests;
