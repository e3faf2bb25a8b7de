//! Identifiers of messages, by which the catalog of the journal (`journalctl -x`) explains incidents. The catalog is a file,
//! which the tests here write again and hold current.

use kevtmon_event::{Event, Kind};

/// Offset and prime of FNV-1a with 128 bits.
const FNV: (u128, u128) =
    (0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, 0x0000_0000_0100_0000_0000_0000_0000_013b);

/// `MESSAGE_ID`: 32 hexadecimal digits, the same in every version for what has this name.
fn id(name: &str) -> String {
    let hash = ["kevtmon/", name]
        .concat()
        .bytes()
        .fold(FNV.0, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(FNV.1));
    format!("{hash:032x}")
}

/// The identifier of an event: of its kind, and of an incident that is open, of the kind of that.
pub(super) fn message_id(event: &Event) -> String {
    match &event.incident {
        Some(incident) if event.kind != Kind::IncidentClosed => id(&format!("incident/{}", incident.kind)),
        _ => id(event.kind.name()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use kevtmon_core::diagnose::KINDS;
    use kevtmon_testing::sample;

    use super::*;

    /// The text of `kevtmon.catalog`.
    fn text() -> String {
        let mut text = "# Message catalog of kevtmon, generated: see monitor/ARCHITECTURE.md.\n\
                        # journalctl -x shows it once journalctl --update-catalog has read it.\n"
            .to_owned();
        for kind in KINDS {
            let id = id(&format!("incident/{}", kind.name));
            text.push_str(&format!("\n-- {id}\nSubject: {}\n", kind.title));
            text.push_str("Defined-By: kevtmon\n\n");
            text.push_str(&format!("{}\n\n{}\n\n", wrapped(kind.meaning), wrapped(kind.remedy)));
            text.push_str(
                "kevtmon why @KEVTMON_INCIDENT@ shows the whole story, with advice and commands.\n",
            );
        }
        let closed = Kind::IncidentClosed.name();
        text.push_str(&format!("\n-- {}\nSubject: An incident is over\nDefined-By: kevtmon\n\n", id(closed)));
        text.push_str("kevtmon why @KEVTMON_INCIDENT@ shows what it was, and how it ended.\n");
        text
    }

    /// Lines of at most 80 columns.
    fn wrapped(text: &str) -> String {
        let mut lines = vec![String::new()];
        for word in text.split_whitespace() {
            let Some(line) = lines.last_mut() else { break };
            if !line.is_empty() && line.len() + 1 + word.len() > 80 {
                lines.push(word.to_owned());
                continue;
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.join("\n")
    }

    #[test]
    fn identifiers_never_change() {
        assert_eq!(id("incident/volume-busy"), "4813b0c0886ea85ec27f7bbff156fac5");
        assert_eq!(id("incident.closed"), "47827b248e8faed238a9c04d9a222ca8");
    }

    #[test]
    fn no_two_kinds_share_an_identifier() {
        let names = KINDS.iter().map(|kind| format!("incident/{}", kind.name));
        let all: Vec<String> = names.chain(Kind::ALL.iter().map(|kind| kind.name().to_owned())).collect();
        let ids: BTreeSet<String> = all.iter().map(|name| id(name)).collect();
        assert_eq!(ids.len(), all.len());
    }

    #[test]
    fn an_event_has_the_identifier_of_its_kind() {
        let event = sample::busy();
        assert_eq!(message_id(&event), id("mount.busy"));
    }

    #[test]
    fn the_catalog_file_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/systemd/kevtmon.catalog");
        if std::env::var_os("KEVTMON_BLESS").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text(), "KEVTMON_BLESS=1 writes it again");
    }

    #[test]
    fn every_line_of_the_catalog_fits_a_terminal() {
        assert!(text().lines().all(|line| line.len() <= 80), "{}", text());
    }
}
