//! An initramfs: files in the "newc" cpio format, as Documentation/driver-api/early-userspace/buffer-format.rst of
//! Linux describes it. It is not compressed: an emulated machine would take longer to unpack than to read.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;

/// Files on their way into an initramfs.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// Adds an empty directory, with those above it.
    pub(crate) fn directory(&mut self, path: &str) -> Result<()> {
        let path = path.trim_start_matches('/');
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        for end in ends {
            let directory = &path[..end];
            if !directory.is_empty() && self.directories.insert(directory.to_owned()) {
                self.entry(directory, DIRECTORY, &[])?;
            }
        }
        Ok(())
    }

    /// Adds a file that may be executed, with the directories above it.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let path = path.trim_start_matches('/');
        if let Some((directory, _)) = path.rsplit_once('/') {
            self.directory(directory)?;
        }
        self.entry(path, EXECUTABLE, content)
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        self.entry("TRAILER!!!", 0, &[])?;
        Ok(self.bytes)
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.entries += 1;
        let size = u32::try_from(content.len()).with_context(|| format!("{name} is too large"))?;
        let name_size = u32::try_from(name.len() + 1).with_context(|| format!("{name} is too long"))?;
        // inode, mode, uid, gid, links, mtime, size, device, special device, name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
        Ok(())
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode and content of each entry, read as the kernel does.
    fn entries(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |index: usize| {
                let text = std::str::from_utf8(&bytes[6 + index * 8..14 + index * 8]).expect("digits");
                u32::from_str_radix(text, 16).expect("a number")
            };
            let size = |index| usize::try_from(field(index)).expect("small");
            let name = String::from_utf8(bytes[110..110 + size(11) - 1].to_vec()).expect("a name");
            let start = (110 + size(11)).next_multiple_of(4);
            let content = bytes[start..start + size(6)].to_vec();
            if name == "TRAILER!!!" {
                return entries;
            }
            entries.push((name, field(1), content));
            bytes = &bytes[(start + size(6)).next_multiple_of(4)..];
        }
    }

    #[test]
    fn a_file_comes_after_its_directories_and_each_of_them_once() {
        let mut archive = Archive::default();
        archive.file("/a/b/c", b"odd").expect("fits");
        archive.file("/a/b/d", b"").expect("fits");
        archive.directory("/a/e").expect("fits");
        let found = entries(&archive.finish().expect("fits"));
        let names: Vec<_> = found.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/c", "a/b/d", "a/e"]);
        assert_eq!(found[0].1, DIRECTORY);
        assert_eq!((found[2].1, found[2].2.as_slice()), (EXECUTABLE, b"odd".as_slice()));
    }
}
