//! Breaks text into lines of a terminal's width.
//!
//! Text breaks between words; a word that is longer than a line, such as a path, is shortened in its middle. A command
//! breaks between arguments, behind a backslash, so that it can still be pasted.
//! A line that is coloured already breaks between words as well.

/// Columns of a line.
pub(super) const WIDTH: usize = 80;
/// No word is shortened to less.
pub(super) const SHORTEST: usize = 12;

/// The lines of a text, without their indentation: the first begins behind `first` columns, the others behind `rest`.
pub(super) fn lines(text: &str, first: usize, rest: usize) -> Vec<String> {
    let room = |line: usize| WIDTH.saturating_sub(if line == 0 { first } else { rest }).max(SHORTEST);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        let gap = usize::from(used > 0);
        if used + gap + length > room(lines.len() - 1) && (used > 0 || first > rest) {
            lines.push(String::new());
            used = 0;
        }
        let word = shortened(word, room(lines.len() - 1));
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            used += word.chars().count();
            line.push_str(&word);
        }
    }
    lines
}

/// A line with colours, broken behind `rest` columns from the second line on. Its own indentation stays.
pub(super) fn broken(line: &str, rest: usize) -> Vec<String> {
    let text = line.trim_start_matches(' ');
    let mut lines = vec![" ".repeat(line.len() - text.len())];
    let mut used = line.len() - text.len();
    let mut is_first = true;
    // Several blanks are columns of a table, and stay together with what follows them.
    for word in text.split_inclusive(' ') {
        let (shown, length) = (word.trim_end(), plain(word.trim_end()).chars().count());
        if used + length > WIDTH && !is_first {
            lines.push(" ".repeat(rest));
            used = rest;
        }
        let room = WIDTH.saturating_sub(used).max(SHORTEST);
        if let Some(line) = lines.last_mut() {
            // Colours are set by short words only.
            let shown = if length > room { shortened(shown, room) } else { shown.to_owned() };
            used += length.min(room) + (word.len() - word.trim_end().len());
            line.push_str(&shown);
            line.push_str(&word[word.trim_end().len()..]);
        }
        is_first = false;
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}

/// A line without the sequences that set colours.
pub(super) fn plain(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

/// The lines of a shell command, each but the last ending in a backslash. An argument is never broken.
pub(super) fn command_lines(command: &str, first: usize, rest: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in arguments(command) {
        let used = if lines.len() == 1 { first } else { rest };
        let Some(line) = lines.last_mut() else { break };
        // Room for the backslash is kept.
        let full = used + line.chars().count() + 1 + word.chars().count() + 2 > WIDTH;
        match (line.is_empty(), full) {
            (true, _) => line.push_str(word),
            (false, false) => {
                line.push(' ');
                line.push_str(word);
            }
            (false, true) => {
                line.push_str(" \\");
                lines.push(word.to_owned());
            }
        }
    }
    lines
}

/// The arguments of a command as they are written, with their quotes.
fn arguments(command: &str) -> Vec<&str> {
    let (mut words, mut begin, mut quoted, mut escaped) = (Vec::new(), 0, None, false);
    let mut before = ' ';
    for (at, c) in command.char_indices() {
        match (c, quoted) {
            _ if escaped => escaped = false,
            // `$'…'` knows escapes, `'…'` does not.
            ('\\', None | Some(true)) => escaped = true,
            ('\'', None) => quoted = Some(before == '$'),
            ('\'', Some(_)) => quoted = None,
            (' ', None) => {
                words.push(&command[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
        before = c;
    }
    words.push(&command[begin..]);
    words.retain(|word| !word.is_empty());
    words
}

/// A word in so many columns: what does not fit is left out in the middle.
pub(super) fn shortened(word: &str, room: usize) -> String {
    let length = word.chars().count();
    if length <= room {
        return word.to_owned();
    }
    let kept = room.max(SHORTEST) - 1;
    let end = kept / 2;
    let begin: String = word.chars().take(kept - end).collect();
    let end: String = word.chars().skip(length - end).collect();
    format!("{begin}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_breaks_between_words_and_long_words_lose_their_middle() {
        let path = format!("/var/lib/kubelet/pods/{}/volumes/end", "x".repeat(100));
        let text = format!("{} {path} is busy", "word ".repeat(20));
        let lines = lines(&text, 10, 4);
        assert!(lines[0].chars().count() <= WIDTH - 10);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH - 4), "{lines:?}");
        let shown = lines.iter().find(|line| line.contains('…')).unwrap();
        assert!(shown.starts_with("/var/lib/kubelet") && shown.ends_with("volumes/end"), "{shown}");
        assert_eq!(super::lines("", 0, 0), [""]);
    }

    #[test]
    fn a_command_breaks_between_arguments_only() {
        let quoted = format!("'{} {}'", "a b".repeat(10), "c");
        let command = format!("nsenter -t 1 -n ip {quoted} {quoted} $'it\\'s {quoted}");
        let lines = command_lines(&command, 4, 6);
        assert!(lines.len() > 1 && lines[..lines.len() - 1].iter().all(|line| line.ends_with(" \\")));
        let joined = lines.join("\n").replace(" \\\n", " ");
        assert_eq!(joined, command);
    }

    #[test]
    fn a_broken_command_is_the_same_command_to_a_shell() {
        let command = format!("printf '%s|' {} 'two words' it\\'s $'a\\'b c'", "x".repeat(60));
        let run = |script: &str| {
            let ran = std::process::Command::new("bash").args(["-c", script]).output().unwrap();
            String::from_utf8(ran.stdout).unwrap()
        };
        let lines = command_lines(&command, 40, 6);
        assert!(lines.len() > 2);
        assert_eq!(run(&lines.join("\n")), run(&command));
        assert!(run(&command).contains("a'b c|"));
    }
}
