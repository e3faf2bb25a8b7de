//! The version of a Go program, by the build information that its linker puts into it (`debug/buildinfo` of Go 1.18 and
//! later; before that nothing in it tells a version that the linker was given, nor with `-trimpath`).
//!
//! In: an ELF file of any size, of which the table of sections and one small section are read. Out: a version, or none.
//! The program is never run.

use std::fs::File;
use std::path::Path;

use object::elf::FileHeader64;
use object::read::ReadCache;
use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::{Endianness, ReadRef};

use super::kubernetes;

const SECTION: &[u8] = b".go.buildinfo";
const MAGIC: &[u8] = b"\xff Go buildinf:";
/// Set in the flags where the texts follow the header, instead of pointers to them.
const INLINE: u8 = 2;
const FLAGS_AT: usize = 15;
const HEADER: usize = 32;
/// Real ones have some kilobytes.
const SECTION_MAX: u64 = 1 << 20;
const VERSION_MAX: usize = 64;
/// What a linker sets to the version, in the order of precedence: of Kubernetes, and of Docker, containerd and CRI-O.
const VARIABLES: [&str; 2] = ["version.gitVersion=", "version.Version="];

/// The version of the program in a file; that of a kubelet also by [variables in it](super::kubernetes).
pub(super) fn of_file(path: &Path, is_kubelet: bool) -> Option<String> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let told = build_info(&cache).and_then(|info| of_build_info(&info));
    // Other programs have the same variables, of the Kubernetes that they were built with.
    told.or_else(|| is_kubelet.then(|| kubernetes::of_elf(&cache)).flatten())
}

fn build_info<'data, R: ReadRef<'data>>(data: R) -> Option<String> {
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let (_, section) = sections.section_by_name(endian, SECTION)?;
    if section.sh_size(endian) > SECTION_MAX {
        return None;
    }
    text(section.data(endian, data).ok()?)
}

/// The second of the texts: the first one is Go's own version.
fn text(section: &[u8]) -> Option<String> {
    if !section.starts_with(MAGIC) || section.get(FLAGS_AT)? & INLINE == 0 {
        return None;
    }
    let (_, rest) = counted(section.get(HEADER..)?)?;
    let (info, _) = counted(rest)?;
    Some(String::from_utf8_lossy(info).into_owned())
}

/// Bytes behind their number, which is written in groups of seven bits, the lowest first.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut count = 0_usize;
    for (index, byte) in bytes.iter().enumerate().take(4) {
        count |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return bytes.get(index + 1..)?.split_at_checked(count);
        }
    }
    None
}

/// What was given to the linker, else the version of the main module.
fn of_build_info(info: &str) -> Option<String> {
    let settings = || info.lines().filter_map(|line| line.strip_prefix("build\t-ldflags="));
    let given =
        VARIABLES.iter().find_map(|name| settings().find_map(|flags| version(flags.split_once(name)?.1)));
    let module = info.lines().find_map(|line| line.strip_prefix("mod\t"));
    given.or_else(|| version(module?.split('\t').nth(1)?))
}

pub(super) fn version(text: &str) -> Option<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | '~' | '_');
    let version: String = text.chars().take_while(|c| is_part(*c)).take(VERSION_MAX).collect();
    let number = version.strip_prefix('v').unwrap_or(&version);
    number.starts_with(|c: char| c.is_ascii_digit()).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(info: &str) -> Vec<u8> {
        let mut section = [MAGIC, &[8, INLINE]].concat();
        section.resize(HEADER, 0);
        for text in ["go1.19.8", info] {
            let (low, high) = (text.len() & 0x7f, text.len() >> 7);
            section.extend([u8::try_from(low | 0x80).unwrap(), u8::try_from(high).unwrap()]);
            section.extend(text.as_bytes());
        }
        section
    }

    #[test]
    fn the_version_is_what_the_linker_was_told_else_that_of_the_module() {
        for (info, expected) in [
            (
                "path\tx\nbuild\t-ldflags=\"-w -X 'k8s.io/component-base/version.gitVersion=v1.28.3' -s\"\n",
                Some("v1.28.3"),
            ),
            (
                "build\t-ldflags=\" \\t-X \\\"github.com/docker/docker/dockerversion.Version=20.10.24+dfsg1\\\" \"\n",
                Some("20.10.24+dfsg1"),
            ),
            ("mod\tgithub.com/Mirantis/cri-dockerd\tv0.3.4\th1:x\n", Some("v0.3.4")),
            ("mod\tk8s.io/kubernetes\t(devel)\t\n", None),
            ("build\t-ldflags=-X a/version.Version=\x1b[2J\n", None),
            ("path\tx\n", None),
        ] {
            let text = text(&section(info)).unwrap();
            assert_eq!(of_build_info(&text).as_deref(), expected, "{info}");
        }
    }

    #[test]
    fn what_is_no_build_information_has_no_version() {
        let mut cut = section("mod\tx\tv1.0.0\t\n");
        cut.truncate(HEADER + 5);
        let mut endless = section("");
        endless.truncate(HEADER);
        endless.extend([0xff; 16]);
        let mut by_pointer = section("mod\tx\tv1.0.0\t\n");
        by_pointer[FLAGS_AT] = 0;
        for section in [cut, endless, by_pointer, MAGIC.to_vec(), Vec::new()] {
            assert_eq!(text(&section), None);
        }
        let own = std::env::current_exe().unwrap();
        assert_eq!(of_file(&own, true), None, "a program that is not of Go");
        assert_eq!(of_file(Path::new("/dev/null"), true), None);
    }
}
