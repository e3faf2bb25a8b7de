//! `cargo xtask btf`: the part of a kernel's type information that the daemon reads, small enough to be kept for tests.
//!
//! In: what `/sys/kernel/btf/vmlinux` has, or a kernel's image. Out: the same types, in the same order and with the same
//! offsets, without the members that no source file of the daemon names, and without types that none of the others leads to.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use self::reduce::Wanted;
use crate::workspace;

mod reduce;

/// Where the tests look for it.
const KEPT: &str = "monitor/crates/probe/src/btf/kernels";

/// Where the daemon names what it reads.
const READERS: &str = "monitor/crates/probe/src";

/// The first 8 bytes of type information, of a version and a header that has not changed since 4.18.
const HEADER: [u8; 8] = [0x9f, 0xeb, 1, 0, 24, 0, 0, 0];

#[derive(Args)]
pub(crate) struct Options {
    /// What the kernel is called among those that are kept, such as 6.12-arm64
    kernel: String,
    /// /sys/kernel/btf/vmlinux of that kernel, or its vmlinuz
    file: PathBuf,
}

/// Keeps the reduced types of a kernel for the tests.
pub(crate) fn btf(options: &Options) -> Result<()> {
    let file = &options.file;
    let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let types = find(&content).with_context(|| format!("no type information in {}", file.display()))?;
    let reduced = reduce::reduce(&types, &wanted()?).context("malformed type information")?;
    let kept = workspace::root().join(KEPT).join(format!("{}.btf", options.kernel));
    fs::write(&kept, &reduced).with_context(|| format!("cannot write {}", kept.display()))?;
    eprintln!("xtask: {}: {} of {} bytes", workspace::shown(&kept), reduced.len(), types.len());
    Ok(())
}

/// The type information in a file: all of it, or somewhere in an image that may be compressed.
fn find(content: &[u8]) -> Option<Vec<u8>> {
    const PACKED: [(&[u8], &str); 4] = [
        (b"\xfd7zXZ\0", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\x02\x21\x4c\x18", "lz4"),
        (b"\x1f\x8b\x08", "gzip"),
    ];
    find_plain(content).or_else(|| {
        PACKED.iter().find_map(|(magic, program)| {
            positions(content, magic).find_map(|at| find_plain(&unpacked(program, &content[at..])?))
        })
    })
}

/// The longest, since other things begin so by chance.
fn find_plain(content: &[u8]) -> Option<Vec<u8>> {
    let lengths = positions(content, &HEADER).filter_map(|at| {
        let header = content.get(at..at + 24)?;
        let word = |at: usize| Some(u32::from_le_bytes(*header.get(at..)?.first_chunk::<4>()?) as usize);
        let (types, strings) = (word(12)?, word(20)?);
        let is_plausible = word(8)? == 0 && word(16)? == types;
        is_plausible.then_some((at, 24 + types + strings))
    });
    let (at, len) = lengths.max_by_key(|(_, len)| *len)?;
    content.get(at..at + len).map(<[u8]>::to_vec)
}

fn positions(content: &[u8], of: &[u8]) -> impl Iterator<Item = usize> {
    content.windows(of.len()).enumerate().filter(move |(_, window)| *window == of).map(|(at, _)| at)
}

/// What a program makes of packed bytes and whatever follows them, which it complains about.
fn unpacked(program: &str, packed: &[u8]) -> Option<Vec<u8>> {
    let mut command = Command::new(program);
    command.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut input = child.stdin.take()?;
    let packed = packed.to_vec();
    // It ends before it has read all.
    let writer = std::thread::spawn(move || drop(input.write_all(&packed)));
    let output = child.wait_with_output().ok()?.stdout;
    writer.join().ok()?;
    (output.len() > 1 << 20).then_some(output)
}

/// What the literals in the sources name: `"task_struct.fs"` is a member, and a word alone can be an enumeration or a helper.
fn wanted() -> Result<Wanted> {
    let mut wanted = Wanted::default();
    add_wanted(&workspace::root().join(READERS), &mut wanted)?;
    if wanted.members.is_empty() {
        bail!("{READERS} names no members");
    }
    Ok(wanted)
}

fn add_wanted(directory: &Path, wanted: &mut Wanted) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            add_wanted(&path, wanted)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            add_names(&text, wanted);
        }
    }
    Ok(())
}

fn add_names(text: &str, wanted: &mut Wanted) {
    let is_name = |literal: &&str| {
        !literal.is_empty() && literal.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))
    };
    for literal in text.lines().flat_map(|line| line.split('"').skip(1).step_by(2)).filter(is_name) {
        match literal.split_once('.') {
            Some((structure, members)) => {
                wanted.structures.insert(structure.to_owned());
                wanted.members.extend(members.split('.').map(str::to_owned));
            }
            None => _ = wanted.others.insert(literal.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types_and_members_are_read_from_literals() {
        let text = r#"fs: btf.need("task_struct.fs")?, // "no name: spaces"
            btf.any_of(&["a.b.c", "d"]), format!("{name}_cgrp_id")"#;
        let mut found = Wanted::default();
        add_names(text, &mut found);
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (structures, members) = (set(&["task_struct", "a"]), set(&["fs", "b", "c"]));
        assert_eq!(found, Wanted { structures, members, others: set(&["d"]) });
    }

    #[test]
    fn type_information_is_found_within_other_bytes() {
        let mut types = HEADER.to_vec();
        for word in [0_u32, 4, 4, 4, 0x0101_0101, 0x6162_6300] {
            types.extend(word.to_le_bytes());
        }
        let around = [&b"before"[..], &HEADER, &types, b"after"].concat();
        assert_eq!(find(&around), Some(types));
        assert_eq!(find(b"nothing"), None);
    }
}
