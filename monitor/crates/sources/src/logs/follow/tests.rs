use std::io::Write as _;
use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::*;

const ALL: usize = 1 << 20;

struct Log {
    directory: TempDir,
    followed: Followed,
}

impl Log {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let followed = Followed::new(directory.path().join("kubelet.log"));
        Self { directory, followed }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn append(&self, text: &[u8]) {
        self.append_to("kubelet.log", text);
    }

    fn append_to(&self, name: &str, text: &[u8]) {
        let path = self.path(name);
        File::options().append(true).create(true).open(path).unwrap().write_all(text).unwrap();
    }

    fn read(&mut self, bytes: usize) -> (Vec<String>, Looked) {
        let mut lines = Vec::new();
        let looked = self.followed.look(bytes, &mut |line| lines.push(line.to_owned())).unwrap();
        (lines, looked)
    }

    fn look(&mut self) -> Looked {
        self.read(ALL).1
    }

    fn lines(&mut self) -> Vec<String> {
        self.read(ALL).0
    }
}

#[test]
fn what_is_there_at_first_is_old_and_what_comes_is_read_once() {
    let mut log = Log::new();
    log.append(b"old\n");
    assert_eq!(log.lines(), [""; 0]);
    log.append(b"a\nb\nbeg");
    assert_eq!(log.lines(), ["a", "b"]);
    log.append(b"un\n\n");
    assert_eq!(log.lines(), ["begun", ""]);
    assert_eq!(log.look(), Looked::default());
}

#[test]
fn a_file_that_comes_later_is_read_from_its_begin() {
    let mut log = Log::new();
    assert_eq!(log.lines(), [""; 0]);
    log.append(b"first\n");
    assert_eq!(log.lines(), ["first"]);
}

#[test]
fn a_file_that_is_renamed_is_read_to_its_end_and_then_the_new_one() {
    let mut log = Log::new();
    log.append(b"old\n");
    log.look();
    log.append(b"a\n");
    assert_eq!(log.lines(), ["a"]);
    log.append(b"last\n");
    fs::rename(log.path("kubelet.log"), log.path("kubelet.log.1")).unwrap();
    assert_eq!(log.lines(), [""; 0], "the new one is not there yet");
    log.append(b"new\n");
    let (lines, looked) = log.read(ALL);
    assert_eq!((&lines[..], looked.is_torn), (&["last".to_owned(), "new".to_owned()][..], false));
}

#[test]
fn a_file_that_is_made_after_another_one_was_removed_is_read_from_its_begin() {
    let mut log = Log::new();
    log.append(b"old\n");
    log.look();
    fs::remove_file(log.path("kubelet.log")).unwrap();
    assert_eq!(log.lines(), [""; 0]);
    // The number of the one that is gone would be given again.
    log.append_to("other", b"");
    log.append(b"first\n");
    assert_eq!(log.lines(), ["first"]);
}

#[test]
fn a_file_that_was_made_before_it_came_is_old() {
    let mut log = Log::new();
    log.append_to("other", b"old\n");
    assert_eq!(log.lines(), [""; 0]);
    // The other one was made at the same moment as it was looked for.
    log.followed.missing_at = log.followed.missing_at.map(|missing| missing + Duration::from_secs(3600));
    fs::rename(log.path("other"), log.path("kubelet.log")).unwrap();
    assert_eq!(log.lines(), [""; 0]);
    log.append(b"new\n");
    assert_eq!(log.lines(), ["new"]);
}

#[test]
fn whether_a_file_is_new_is_told_by_its_birth_and_else_by_its_last_change_and_size() {
    let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let since = at(1000).unwrap();
    for (born, changed, len, expected) in [
        (at(1000), at(1000), u64::MAX, true),
        (at(999), at(1001), 1, false),
        (None, at(1001), NEW_MAX, true),
        (None, at(1001), NEW_MAX + 1, false),
        (None, at(999), 1, false),
        (None, None, 1, false),
    ] {
        assert_eq!(is_new(since, born, changed, len), expected, "{born:?} {changed:?} {len}");
    }
}

#[test]
fn of_a_file_that_was_replaced_and_is_gone_it_is_told_that_its_end_is_missing() {
    let mut log = Log::new();
    log.append(b"old\n");
    log.look();
    fs::write(log.path("next"), b"old\n").unwrap();
    fs::rename(log.path("next"), log.path("kubelet.log")).unwrap();
    let (lines, looked) = log.read(ALL);
    assert_eq!((lines.len(), looked.is_torn), (0, true), "who puts a file there may have copied old lines");
    log.append(b"newest\n");
    let (lines, looked) = log.read(ALL);
    assert_eq!((&lines[..], looked.is_torn), (&["newest".to_owned()][..], false));
}

#[test]
fn a_file_that_is_truncated_is_read_from_its_begin() {
    let mut log = Log::new();
    log.append(b"a long line that was there before\n");
    log.look();
    log.append(b"half");
    log.look();
    fs::write(log.path("kubelet.log"), b"short\n").unwrap();
    assert_eq!(log.lines(), ["short"]);
    log.append(b"more\n");
    assert_eq!(log.lines(), ["more"]);
}

#[test]
fn a_line_of_a_mebibyte_is_cut_and_garbage_is_left_out() {
    let mut log = Log::new();
    log.append(b"");
    log.look();
    let mut long = "é".repeat(512 * 1024).into_bytes();
    long.push(b'\n');
    log.append(&long);
    log.append(b"\xff\xfe\n\0\0\0\nwhole\n");
    let (mut lines, mut malformed) = (Vec::new(), 0);
    for _ in 0..8 {
        let (more, looked) = log.read(ALL);
        lines.extend(more);
        malformed += looked.malformed;
    }
    assert_eq!(lines.len(), 2, "{}", lines.len());
    assert_eq!((lines[0].len(), lines[1].as_str()), (LINE_MAX, "whole"));
    assert_eq!(malformed, 3);
}

#[test]
fn so_much_is_read_at_once_and_what_is_far_behind_is_left_out() {
    let mut log = Log::new();
    log.append(b"");
    log.look();
    let line = [b'x'; 1023];
    let text: Vec<u8> = (0..4096).flat_map(|_| line.iter().copied().chain([b'\n'])).collect();
    log.append(&text);
    let (lines, looked) = log.read(10 * 1024);
    assert_eq!((lines.len(), looked.bytes, looked.skipped), (10, 10 * 1024, 0));
    (0..3).for_each(|_| log.append(&text));
    let (lines, looked) = log.read(10 * 1024);
    assert_eq!(lines.len(), 10);
    assert_eq!(looked.skipped, 4 * 4096 * 1024 - 20 * 1024);
    log.append(b"rest of a line\nnext\n");
    let (lines, looked) = log.read(ALL);
    assert!(lines.contains(&"next".to_owned()), "{looked:?}");
}

#[test]
fn what_is_no_regular_file_is_refused_without_waiting() {
    let log = Log::new();
    let fifo = log.path("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    log.append(b"a\n");
    symlink(log.path("kubelet.log"), log.path("link")).unwrap();
    for path in [fifo, log.path("link"), log.directory.path().to_owned(), "/dev/zero".into()] {
        assert!(Followed::new(path.clone()).look(ALL, &mut |_| {}).is_err(), "{}", path.display());
    }
}

#[test]
fn no_file_stays_open() {
    let mut log = Log::new();
    log.append(b"a\n");
    log.look();
    log.append(b"b\n");
    log.look();
    let name = log.path("kubelet.log");
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    assert!(open.into_iter().all(|fd| !fs::read_link(fd.path()).is_ok_and(|to| to == name)));
}
