//! What others do to the files while they are in use.

use super::*;
use crate::store::open::with_suffix;

fn insert(writer: &mut Writer, seqs: std::ops::RangeInclusive<u64>) {
    for seq in seqs {
        writer.insert(&numbered(sample::deletion(), seq)).unwrap();
    }
}

fn reopen(dir: &Path, next: u64) -> (Writer, Vec<Quarantined>) {
    Writer::reopen(dir, SMALL, BOOT, next, |_| true).unwrap()
}

/// A store with 500 events, most of them in the log only.
fn with_a_log(dir: &Path) -> Writer {
    let (mut writer, _) = resume(dir, BOOT);
    insert(&mut writer, 1..=500);
    writer.commit().unwrap();
    writer
}

#[test]
fn nothing_is_written_to_files_that_somebody_took_away_and_others_are_made() {
    let truncate = |path: &Path| fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap();
    let remove = |path: &Path| fs::remove_file(path).unwrap();
    type Way<'a> = (&'a dyn Fn(&Path), &'a str);
    let ways: [Way<'_>; 2] = [(&truncate, "was truncated"), (&remove, "was removed or replaced")];
    for (suffix, (way, said)) in ["", "-wal"].into_iter().flat_map(|suffix| ways.map(|way| (suffix, way))) {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = with_a_log(dir.path());
        // Its tables are in the file by now.
        writer.stop().unwrap();
        (writer, _) = reopen(dir.path(), 501);
        insert(&mut writer, 501..=600);
        writer.commit().unwrap();
        // A query does not keep what is gone.
        let query = reader(dir.path());
        query.begin_snapshot().unwrap();
        insert(&mut writer, 601..=610);
        way(&with_suffix(&dir.path().join(FILE), suffix));
        let failed = writer.commit().unwrap_err();
        assert!(failed.is_damage() && failed.to_string().contains(said), "{failed}");
        let quarantined = writer.quarantine(&failed).unwrap().unwrap();
        assert!(quarantined.path.to_str().unwrap().contains(".corrupt-"), "{quarantined:?}");
        let (mut writer, quarantined) = reopen(dir.path(), 611);
        assert_eq!(quarantined, []);
        insert(&mut writer, 611..=611);
        writer.commit().unwrap();
        assert_eq!(everything(&reader(dir.path())), [611], "{suffix} {said}");
    }
}

#[test]
fn another_process_that_reads_keeps_the_log_from_being_copied() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = with_a_log(dir.path());
    let mut other = Reader::open_beside_daemon(dir.path()).unwrap();
    let held = other.hold(dir.path()).unwrap();
    let first = 1..=500;
    assert_eq!(everything(&other), first.clone().collect::<Vec<_>>());
    let mut log = Log::Short;
    for batch in 1..20 {
        insert(&mut writer, 500 * batch + 1..=500 * batch + 500);
        writer.commit().unwrap();
        log = writer.checkpoint().unwrap();
        if log == Log::Held {
            break;
        }
    }
    assert_eq!(log, Log::Held);
    assert_eq!(everything(&other), first.collect::<Vec<_>>());
    drop(held);
    assert_eq!(writer.checkpoint().unwrap(), Log::Copied);
    let _held = other.hold(dir.path()).unwrap();
    assert_eq!(everything(&other).last(), Some(&writer.last_seq));
}

#[test]
fn a_damaged_file_is_set_aside_where_it_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let writer = with_a_log(dir.path());
    writer.stop().unwrap();
    // The header stays, so that it opens.
    let path = dir.path().join(FILE);
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096..].fill(0xee);
    fs::write(&path, bytes).unwrap();
    let (mut writer, quarantined) = reopen(dir.path(), 501);
    let [Quarantined { reason, .. }] = &quarantined[..] else { panic!("{quarantined:?}") };
    assert!(reason.contains("malformed") || reason.contains("damaged"), "{reason}");
    insert(&mut writer, 501..=501);
    writer.commit().unwrap();
    assert_eq!(everything(&reader(dir.path())), [501]);
}
