//! What others do to the files while they are in use.

use kevtmon_testing::alone::alone;

use super::*;
use crate::store::open::with_suffix;
use crate::store::truncation::survive_truncation;

fn truncate_index(dir: &Path) {
    let index = with_suffix(&dir.join(FILE), "-shm");
    fs::File::options().write(true).open(index).unwrap().set_len(0).unwrap();
}

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
    survive_truncation().unwrap();
    let (mut writer, _) = resume(dir, BOOT);
    insert(&mut writer, 1..=500);
    writer.commit().unwrap();
    writer
}

/// What was committed is there, and nothing else is.
fn assert_whole(dir: &Path) {
    let (mut writer, quarantined) = reopen(dir, 501);
    assert_eq!(quarantined, []);
    insert(&mut writer, 501..=501);
    writer.commit().unwrap();
    assert_eq!(everything(&reader(dir)), (1..=501).collect::<Vec<_>>());
}

#[test]
fn a_log_is_not_copied_by_an_index_that_lost_its_pages() {
    alone(module_path!(), "a_log_is_not_copied_by_an_index_that_lost_its_pages", || {
        type End = fn(Writer) -> Result<(), StoreError>;
        let ends: [End; 4] = [
            |writer| writer.stop(),
            |mut writer| writer.commit(),
            |mut writer| writer.checkpoint().map(drop),
            |writer| {
                drop(writer);
                Err(StoreError::Truncated { path: "-shm".into() })
            },
        ];
        for end in ends {
            let dir = tempfile::tempdir().unwrap();
            let writer = with_a_log(dir.path());
            truncate_index(dir.path());
            let failed = end(writer).unwrap_err();
            assert!(matches!(failed, StoreError::Truncated { .. }), "{failed}");
            assert_whole(dir.path());
        }
    });
}

#[test]
fn an_index_that_is_lost_within_a_transaction_costs_that_transaction_only() {
    alone(module_path!(), "an_index_that_is_lost_within_a_transaction_costs_that_transaction_only", || {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = with_a_log(dir.path());
        insert(&mut writer, 501..=600);
        truncate_index(dir.path());
        // What SQLite makes of it depends on which page it needs next.
        writer.commit().unwrap_err();
        let cause = writer.check_in_place().unwrap_err();
        assert!(matches!(cause, StoreError::Truncated { .. }), "{cause}");
        drop(writer);
        assert_whole(dir.path());
    });
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

#[test]
fn an_index_that_lost_pages_is_not_used_again_while_a_query_has_it() {
    alone(module_path!(), "an_index_that_lost_pages_is_not_used_again_while_a_query_has_it", || {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = with_a_log(dir.path());
        let query = reader(dir.path());
        query.begin_snapshot().unwrap();
        // Its beginning stays, so that it seems to be whole.
        let index = with_suffix(&dir.path().join(FILE), "-shm");
        fs::File::options().write(true).open(index).unwrap().set_len(4096).unwrap();
        let failed = writer.commit().unwrap_err();
        assert!(matches!(failed, StoreError::Truncated { .. }), "{failed}");
        drop(writer);
        let refused = Writer::reopen(dir.path(), SMALL, BOOT, 501, |_| true).err();
        assert!(matches!(refused, Some(StoreError::Truncated { .. })), "{refused:?}");
        drop(query);
        assert_whole(dir.path());
    });
}
