//! A file that an earlier schema was written to, as that version of the program left it.

use rusqlite::params;

use super::*;

/// Schema 4, whose incidents had no account.
const SCHEMA_4: &str = "
    CREATE TABLE runs (run INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, base INTEGER NOT NULL, last_seq INTEGER NOT NULL,
        started INTEGER NOT NULL, alive INTEGER NOT NULL, alive_boot INTEGER NOT NULL, ended INTEGER NOT NULL);
    CREATE TABLE kinds (kind INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE events (id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, time INTEGER NOT NULL, high INTEGER NOT NULL,
        class INTEGER NOT NULL, keys BLOB NOT NULL, json TEXT NOT NULL, account INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE blocks (last INTEGER PRIMARY KEY, high INTEGER NOT NULL);
    CREATE TABLE lookup (key INTEGER NOT NULL, class INTEGER NOT NULL, last INTEGER NOT NULL, ids BLOB NOT NULL,
        PRIMARY KEY (key, class, last)) WITHOUT ROWID;
    CREATE TABLE evidence (event INTEGER NOT NULL, incident TEXT NOT NULL, PRIMARY KEY (event, incident)) WITHOUT ROWID;
    CREATE TABLE incidents (id TEXT NOT NULL, kind TEXT NOT NULL, severity INTEGER NOT NULL, open INTEGER NOT NULL,
        opened INTEGER NOT NULL, last_seen INTEGER NOT NULL, closed INTEGER, boot_id TEXT NOT NULL, json TEXT NOT NULL,
        episode INTEGER NOT NULL, UNIQUE (id, opened));
    CREATE INDEX incidents_by_time ON incidents (open, last_seen);
    CREATE TABLE pods (uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, ips TEXT NOT NULL,
        last_seen INTEGER NOT NULL, gone INTEGER) WITHOUT ROWID;
    CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    INSERT INTO meta VALUES ('lag', 0);
    CREATE TABLE gateways (only INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, json TEXT NOT NULL);
    CREATE TABLE accounts (account INTEGER PRIMARY KEY, standing INTEGER NOT NULL, name TEXT NOT NULL);
    INSERT INTO accounts VALUES (0, 2, '');
    CREATE TABLE shares (account INTEGER NOT NULL, last INTEGER NOT NULL, bytes INTEGER NOT NULL,
        PRIMARY KEY (account, last)) WITHOUT ROWID;
    CREATE INDEX shares_by_block ON shares (last);
    PRAGMA user_version = 4;";

/// A file of that schema with an event, an open incident, and closed ones about these targets.
fn written(dir: &Path, targets: &[&str]) {
    let connection = Connection::open(dir.join(FILE)).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.pragma_update(None, "application_id", schema::APPLICATION).unwrap();
    connection.execute_batch(SCHEMA_4).unwrap();
    // What is old would be forgotten.
    let now = time::now();
    let json = |event: &Event| serde_json::to_string(event).unwrap();
    let event = numbered(sample::deletion(), 1);
    connection.execute("INSERT INTO runs VALUES (1, ?1, 0, 2, ?2, ?2, 0, 1)", params![BOOT, now]).unwrap();
    connection.execute("INSERT INTO kinds VALUES (1, ?1)", [event.kind.name()]).unwrap();
    let put = "INSERT INTO events VALUES (1, 1, ?1, ?1, ?2, ?3, ?4, 0)";
    let mut numbers = Vec::new();
    lookup::numbers(&event, &mut numbers);
    let keys: Vec<u8> = numbers.iter().flat_map(|key| key.to_le_bytes()).collect();
    connection.execute(put, params![now, 8 + event.severity as i64, keys, json(&event)]).unwrap();
    let put = "INSERT INTO incidents VALUES (?1, 'volume-busy', 3, ?2, ?3, ?3, NULL, ?4, ?5, 1)";
    let open = incident("open", Kind::IncidentOpened, 2);
    connection.execute(put, params!["open", 1, now, BOOT, json(&open)]).unwrap();
    for (number, target) in targets.iter().enumerate() {
        connection.execute(put, params![format!("closed-{number}"), 0, now, BOOT, target]).unwrap();
    }
    connection.close().unwrap();
}

#[test]
fn incidents_of_schema_4_are_charged_as_those_of_today_and_nothing_is_lost() {
    let cases = [
        (r#"{"target":{"pod":{"uid":"p"},"container":{"id":"c"}}}"#, "p"),
        (r#"{"target":{"pod":{"uid":"p","claimed":true},"container":{"id":"c"}}}"#, "c"),
        (r#"{"target":{"pod":{"uid":"p","claimed":false}}}"#, "p"),
        (r#"{"target":{"container":{"id":"c"},"netns_name":"n"}}"#, "c"),
        (r#"{"target":{"userns":"other","netns_name":"n"}}"#, "other"),
        (r#"{"target":{"netns_name":"n"}}"#, "n"),
        ("{}", ""),
        ("no document", ""),
    ];
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), &cases.map(|(target, _)| target));
    let (writer, previous) = resume(dir.path(), BOOT);
    assert_eq!(previous.incidents.len(), 1);
    writer.stop().unwrap();
    let connection = Connection::open(dir.path().join(FILE)).unwrap();
    assert_eq!(schema::version(&connection).unwrap(), VERSION);
    let mut read = connection.prepare("SELECT account FROM incidents WHERE open = 0 ORDER BY id").unwrap();
    let accounts: Vec<String> = read.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(accounts, cases.map(|(_, account)| account));
    assert_eq!(everything(&reader(dir.path())), [1]);
}
