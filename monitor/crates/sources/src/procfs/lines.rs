//! Texts of /proc that another process can make as long as it likes, read line by line: what is kept of them does not depend
//! on how long they are.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::ops::ControlFlow;

use super::dir::{Dir, MAX_TEXT};
use super::mountinfo::MountTable;

const CHUNK: usize = 64 << 10;
/// Of a line of `mountinfo`. What is mounted where is at its beginning.
const MOUNT_LINE: usize = 8 << 10;

impl Dir {
    /// Passes on each line of a file, without its end, of at most so many bytes of the file; of each line the beginning, and
    /// whether there is more of it. Returns whether the file has no more lines, or no more were wanted.
    pub fn lines(
        &self,
        name: &CStr,
        (most, longest): (u64, usize),
        mut each: impl FnMut(&str, bool) -> ControlFlow<()>,
    ) -> io::Result<bool> {
        let mut file = BufReader::with_capacity(CHUNK, File::from(self.handle(name)?).take(most));
        let (mut line, mut is_cut, mut read) = (Vec::new(), false, 0_u64);
        loop {
            let part = match file.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                part => part?,
            };
            if part.is_empty() {
                let is_all = read < most;
                if is_all && !line.is_empty() {
                    let _ = each(&String::from_utf8_lossy(&line), is_cut);
                }
                return Ok(is_all);
            }
            let end = part.iter().position(|byte| *byte == b'\n');
            let text = &part[..end.unwrap_or(part.len())];
            let taken = text.len().min(longest - line.len());
            is_cut |= taken < text.len();
            line.extend_from_slice(&text[..taken]);
            let used = text.len() + usize::from(end.is_some());
            read = read.saturating_add(u64::try_from(used).unwrap_or(u64::MAX));
            file.consume(used);
            if end.is_some() {
                if each(&String::from_utf8_lossy(&line), is_cut).is_break() {
                    return Ok(true);
                }
                line.clear();
                is_cut = false;
            }
        }
    }

    /// The mounts that the process sees, of those whose line is wanted. `root`: its root directory, as its link shows it.
    pub fn mount_table(&self, root: &str, mut wanted: impl FnMut(&str) -> bool) -> io::Result<MountTable> {
        let mut table = MountTable::default();
        let is_all = self.lines(c"mountinfo", (MAX_TEXT, MOUNT_LINE), |line, is_cut| {
            if wanted(line) {
                table.add_line(line, is_cut, root);
            }
            ControlFlow::Continue(())
        })?;
        if !is_all {
            table.cut();
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::procfs::Proc;

    fn process(file: &str, text: &str) -> (tempfile::TempDir, Dir) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("7")).unwrap();
        fs::write(root.path().join("7").join(file), text).unwrap();
        let dir = Proc::new(root.path()).dir(7).unwrap();
        (root, dir)
    }

    fn lines(text: &str, limits: (u64, usize)) -> (Vec<(String, bool)>, bool) {
        let (_root, dir) = process("maps", text);
        let mut lines = Vec::new();
        let each = |line: &str, is_cut| {
            lines.push((line.to_owned(), is_cut));
            ControlFlow::Continue(())
        };
        let is_all = dir.lines(c"maps", limits, each).unwrap();
        (lines, is_all)
    }

    #[test]
    fn of_a_long_line_the_beginning_is_passed_on_and_of_a_long_text_whole_lines() {
        let of = |line: &str, is_cut| (line.to_owned(), is_cut);
        let long = "c".repeat(3 * CHUNK);
        let text = format!("ab\n\n{long}\nd");
        let all = [of("ab", false), of("", false), of("cccc", true), of("d", false)];
        assert_eq!(lines(&text, (u64::MAX, 4)), (all.to_vec(), true));
        assert_eq!(lines("abcd\nef\ngh\n", (9, 4)), ([of("abcd", false), of("ef", false)].to_vec(), false));
    }

    #[test]
    fn a_mount_whose_names_do_not_fit_makes_the_table_partial_and_long_options_do_not() {
        let line = |id: u32, place: &str, options: &str| {
            format!("{id} 1 0:9 / {place} rw - overlay o rw,lowerdir={options}\n")
        };
        let long = format!("/{}", "x".repeat(MOUNT_LINE));
        let (_root, dir) = process("mountinfo", &(line(2, "/a", &long) + &line(3, "/b", "")));
        let table = dir.mount_table("/", |_| true).unwrap();
        assert_eq!((table.iter().count(), table.is_cut()), (2, false));
        let (_root, dir) = process("mountinfo", &(line(2, &long, "") + &line(3, "/b", "")));
        let table = dir.mount_table("/", |_| true).unwrap();
        assert_eq!((table.iter().map(|mount| mount.id).collect::<Vec<_>>(), table.is_cut()), (vec![3], true));
    }

    #[test]
    fn of_more_mounts_than_are_kept_a_bounded_part_is() {
        let text: String =
            (1..2000).map(|id| format!("{id} 0 0:9 / /{} rw - tmpfs t rw\n", "y".repeat(7000))).collect();
        let (_root, dir) = process("mountinfo", &text);
        let table = dir.mount_table("/", |_| true).unwrap();
        let kept: usize = table.iter().map(|mount| mount.mountpoint.len()).sum();
        assert!(table.is_cut() && kept <= 8 << 20, "{kept}");
        assert!(!dir.mount_table("/", |line| line.starts_with("1999 ")).unwrap().is_cut());
    }
}
