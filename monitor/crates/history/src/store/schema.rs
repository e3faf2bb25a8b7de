//! The tables.
//!
//! An event is one row with its full JSON. Whatever it can be found by is a number in `lookup`: its names, its class (kind
//! and severity), its account. Under each of them the events stand in the order of pages.

use rusqlite::Connection;

/// Marks a file as ours (`application_id`): "kevt".
pub(super) const APPLICATION: i32 = 0x6b65_7674;

/// The schema that this program reads and writes (`user_version`); 0 is an empty file.
pub const VERSION: u32 = 1;

// Times are nanoseconds since the epoch.
const TABLES: &str = "
    -- One row per start of the daemon. The id of an event is base + seq.
    CREATE TABLE runs (
        run        INTEGER PRIMARY KEY,
        boot_id    TEXT NOT NULL,
        base       INTEGER NOT NULL,
        last_seq   INTEGER NOT NULL,
        started    INTEGER NOT NULL,
        alive      INTEGER NOT NULL,
        alive_boot INTEGER NOT NULL, -- the same moment on the boot clock
        ended      INTEGER NOT NULL  -- 1 when it stopped in good order
    );
    CREATE TABLE classes (
        class    INTEGER PRIMARY KEY,
        kind     TEXT NOT NULL,
        severity INTEGER NOT NULL,
        UNIQUE (kind, severity)
    );
    -- Who caused events, so that nobody's displace those of others.
    CREATE TABLE accounts (
        account  INTEGER PRIMARY KEY,
        standing INTEGER NOT NULL, -- how much its events matter; 0 the most
        weight   INTEGER NOT NULL, -- what a byte of them counts
        name     TEXT NOT NULL,
        bytes    INTEGER NOT NULL, -- what its events take
        UNIQUE (standing, name)
    );
    CREATE TABLE events (
        id      INTEGER PRIMARY KEY,
        seq     INTEGER NOT NULL,
        time    INTEGER NOT NULL,
        class   INTEGER NOT NULL,
        account INTEGER NOT NULL,
        names   BLOB NOT NULL, -- what else it stands under in lookup, sorted, 8 bytes each, little-endian
        json    TEXT NOT NULL
    );
    CREATE TABLE lookup (
        key   INTEGER NOT NULL,
        time  INTEGER NOT NULL,
        id    INTEGER NOT NULL,
        class INTEGER NOT NULL,
        PRIMARY KEY (key, time, id)
    ) WITHOUT ROWID;
    -- Which incidents rest on an event.
    CREATE TABLE evidence (
        event    INTEGER NOT NULL, -- its id
        incident TEXT NOT NULL,
        PRIMARY KEY (event, incident)
    ) WITHOUT ROWID;
    -- Each episode of an incident has a row.
    CREATE TABLE incidents (
        id        TEXT NOT NULL,
        kind      TEXT NOT NULL,
        severity  INTEGER NOT NULL,
        open      INTEGER NOT NULL,
        opened    INTEGER NOT NULL,
        last_seen INTEGER NOT NULL,
        closed    INTEGER,
        boot_id   TEXT NOT NULL,
        json      TEXT NOT NULL,    -- its newest event
        episode   INTEGER NOT NULL,
        account   TEXT NOT NULL,    -- whose it is, so that the closed ones of one user displace none of another's
        UNIQUE (id, opened)
    );
    CREATE INDEX incidents_by_time ON incidents (open, last_seen);
    CREATE TABLE pods (
        uid       TEXT PRIMARY KEY,
        namespace TEXT NOT NULL,
        name      TEXT NOT NULL,
        ips       TEXT NOT NULL, -- JSON list
        last_seen INTEGER NOT NULL,
        gone      INTEGER        -- when a container of it was removed and none appeared since
    ) WITHOUT ROWID;
    -- What the next run is to know of this one.
    CREATE TABLE kept (
        name    TEXT PRIMARY KEY,
        boot_id TEXT NOT NULL,
        json    TEXT NOT NULL
    ) WITHOUT ROWID;
";

/// The schema of an open file.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Makes the tables of an empty file, all or none.
pub(super) fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    if version(connection)? == VERSION {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.execute_batch(TABLES)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MADE: [&str; 9] =
        ["accounts", "classes", "events", "evidence", "incidents", "kept", "lookup", "pods", "runs"];

    #[test]
    fn an_empty_file_gets_every_table_once() {
        let mut connection = Connection::open_in_memory().unwrap();
        for _ in 0..2 {
            create(&mut connection).unwrap();
            assert_eq!(version(&connection).unwrap(), VERSION);
        }
        for table in MADE {
            connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
        }
    }

    #[test]
    fn a_file_whose_tables_cannot_be_made_stays_as_it_was() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE pods (x)").unwrap();
        create(&mut connection).unwrap_err();
        assert_eq!(version(&connection).unwrap(), 0);
        let count = "SELECT count(*) FROM sqlite_schema";
        assert_eq!(connection.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    }
}
