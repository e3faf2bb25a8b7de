//! The daemon's readable output, line by line, put together to events again: a head line, and below it, indented,
//! the details. Only the form is parsed.

#[derive(Debug, Default)]
pub(super) struct Transcript {
    /// One text per event.
    events: Vec<String>,
}

impl Transcript {
    pub(super) fn push(&mut self, line: &str) {
        match self.events.last_mut() {
            Some(event) if line.starts_with(' ') => {
                event.push('\n');
                event.push_str(line);
            }
            _ => self.events.push(line.to_owned()),
        }
    }

    /// Index of the first event from `from` on that is of `kind` and holds all `words`, as far as it was read.
    pub(super) fn find(&self, from: usize, kind: &str, words: &[&str]) -> Option<usize> {
        (from..self.events.len()).find(|&index| {
            let event = &self.events[index];
            kind_of(event) == Some(kind) && words.iter().all(|word| event.contains(word))
        })
    }

    /// How many events there are whose kind starts with `kind` and whose text holds `word`.
    pub(super) fn count(&self, kind: &str, word: &str) -> usize {
        self.events
            .iter()
            .filter(|event| kind_of(event).is_some_and(|name| name.starts_with(kind)) && event.contains(word))
            .count()
    }
}

/// After time and severity.
fn kind_of(event: &str) -> Option<&str> {
    event.split_whitespace().nth(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 6] = [
        "05:04:05.678 warning  neighbor.deleted  static gateway ARP deleted by ip (pid 7)",
        "                      by     ip (pid 7)",
        "                             ← calico(6) ← kubelet(5)",
        "                      entry  169.254.1.1 · in netns 4026532253",
        "05:04:06.000 info     mount.released    /neighbor.deleted unmounted",
        "                      mount  /neighbor.deleted",
    ];

    fn transcript(lines: &[&str]) -> Transcript {
        let mut transcript = Transcript::default();
        lines.iter().for_each(|line| transcript.push(line));
        transcript
    }

    #[test]
    fn an_event_is_found_by_its_kind_and_by_words_of_all_its_lines() {
        let transcript = transcript(&LINES);
        assert_eq!(transcript.find(0, "neighbor.deleted", &["← calico(", "netns 4026532253"]), Some(0));
        assert_eq!(transcript.find(0, "mount.released", &[]), Some(1));
        assert_eq!(transcript.find(0, "neighbor.deleted", &["unmounted"]), None);
        assert_eq!(transcript.find(1, "neighbor.deleted", &[]), None);
    }

    #[test]
    fn an_event_is_not_found_before_the_line_with_the_word_was_read() {
        let mut transcript = transcript(&LINES[..3]);
        assert_eq!(transcript.find(0, "neighbor.deleted", &["netns 4026532253"]), None);
        transcript.push(LINES[3]);
        assert_eq!(transcript.find(0, "neighbor.deleted", &["netns 4026532253"]), Some(0));
    }

    #[test]
    fn events_are_counted_by_the_beginning_of_their_kind() {
        let transcript = transcript(&LINES);
        assert_eq!(transcript.count("neighbor.", "in netns 4026532253"), 1);
        assert_eq!(transcript.count("neighbor.", "in netns 1"), 0);
        assert_eq!(transcript.count("mount.", ""), 1);
    }
}
