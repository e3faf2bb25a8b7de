//! One event as one line of JSON, in the public schema.

use std::io;

use kevtmon_event::Event;
use kevtmon_types::escape::append_json;

/// Appends the event and a newline.
///
/// # Errors
/// Never in practice: the schema has no maps with keys that are not strings.
pub fn write(event: &Event, out: &mut Vec<u8>) -> io::Result<()> {
    append_json(out, event)?;
    out.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use kevtmon_testing::sample;

    use super::*;

    #[test]
    fn every_event_is_one_line_that_reads_back_the_same() {
        for event in sample::all() {
            let mut line = Vec::new();
            write(&event, &mut line).unwrap();
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            let back: Event = serde_json::from_slice(&line).unwrap();
            assert_eq!(back, Event { at: 0, ..event });
        }
    }

    #[test]
    fn what_is_unknown_is_absent() {
        for event in sample::all() {
            let mut line = Vec::new();
            write(&event, &mut line).unwrap();
            assert!(!String::from_utf8(line).unwrap().contains("null"));
        }
    }
}
