//! Text from outside, made harmless: what controls a terminal, reorders text or does not show becomes an escape, in
//! JSON and in text for people; a name that could be taken for words of a sentence, or of
//! a shell, is quoted.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

use serde::Serialize;

/// Length of the JSON of most events, in bytes.
const EVENT: usize = 2048;

/// Whether a character controls a terminal, reorders text or does not show: control and format characters, separators
/// of lines, spaces other than the plain one, and what no character is assigned to.
pub fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    // The standard library knows what is printable. Only behind another character it leaves accents alone.
    let mut text = [b'.'; 5];
    let end = 1 + c.encode_utf8(&mut text[1..]).len();
    str::from_utf8(&text[..end]).is_ok_and(|text| text.escape_debug().nth(1) == Some('\\'))
}

/// Displays text with hidden characters escaped, as Rust writes them.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return f.write_str(self.0);
        }
        self.0.chars().try_for_each(|c| match c {
            '\n' => f.write_str("\\n"),
            '\t' => f.write_str("\\t"),
            '\r' => f.write_str("\\r"),
            c if !is_hidden(c) => f.write_char(c),
            c if u32::from(c) <= 0xff => write!(f, "\\x{:02x}", u32::from(c)),
            c => write!(f, "{}", c.escape_unicode()),
        })
    }
}

/// A name in a sentence: as it is if it is one plain word, else in quotes and escaped. Whoever chooses the name of a
/// process, a path or a container so cannot write a part of the sentence.
pub fn name(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@+~%#=[]".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    Cow::Owned(format!("\"{}\"", Escaped(&text)))
}

/// Quotes an argument for a POSIX shell; what controls a terminal or does not show as `$'…'` of bash and zsh, so that none reaches the
/// terminal.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+~".contains(c);
    if !word.is_empty() && word.chars().all(plain) && !word.starts_with('~') {
        return word.to_owned();
    }
    if !word.chars().any(is_hidden) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut text = String::from("$'");
    for c in word.chars() {
        match c {
            '\'' | '\\' => text.extend(['\\', c]),
            // By its bytes: what stands for a character depends on the locale of the shell.
            c if is_hidden(c) => {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
            }
            c => text.push(c),
        }
    }
    text.push('\'');
    text
}

/// A value as JSON in which hidden characters are escapes.
pub fn to_json(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    // As long as most events, so that it does not move while it grows.
    let mut json = Vec::with_capacity(EVENT);
    append_json(&mut json, value)?;
    String::from_utf8(json).map_err(|error| serde_json::Error::io(io::Error::other(error)))
}

/// Appends a value as JSON in which hidden characters are escapes.
pub fn append_json(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
    let begin = out.len();
    serde_json::to_writer(&mut *out, value)?;
    // One look at the whole is cheaper than one at each of its many short strings.
    if !is_harmless(&out[begin..]) {
        let plain = out.split_off(begin);
        let plain = str::from_utf8(&plain).map_err(|error| serde_json::Error::io(io::Error::other(error)))?;
        write_fragment(out, plain).map_err(serde_json::Error::io)?;
    }
    Ok(())
}

/// The same JSON with hidden characters as escapes, whoever wrote it.
pub fn json(text: &str) -> Cow<'_, str> {
    if is_harmless(text.as_bytes()) {
        return Cow::Borrowed(text);
    }
    let mut json = Vec::with_capacity(text.len() + 16);
    // Writing to memory cannot fail, and only whole characters are written. Hidden ones stand in strings only, but for
    // white space between the tokens of somebody else's JSON.
    match write_fragment(&mut json, text).map(|()| String::from_utf8(json)) {
        Ok(Ok(json)) => Cow::Owned(json),
        _ => Cow::Borrowed(text),
    }
}

/// Whether nothing in a piece of JSON is to be escaped. Control characters below the space are escapes there already.
fn is_harmless(fragment: &[u8]) -> bool {
    // Without a branch for each byte: DEL has the highest bit as its successor, what is not ASCII has it itself.
    fragment.iter().fold(0, |seen, byte| seen | byte | byte.wrapping_add(1)) < 0x80
}

fn write_fragment(writer: &mut Vec<u8>, fragment: &str) -> io::Result<()> {
    let mut begin = 0;
    for (at, c) in fragment.char_indices().filter(|(_, c)| !matches!(c, '\0'..='~') && is_hidden(*c)) {
        writer.write_all(&fragment.as_bytes()[begin..at])?;
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(writer, "\\u{unit:04x}")?;
        }
        begin = at + c.len_utf8();
    }
    writer.write_all(&fragment.as_bytes()[begin..])
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn whatever_does_not_show_is_hidden_and_nothing_else() {
        for c in ['\0', '\u{1b}', '\u{7f}', '\u{80}', '\u{9b}', '\u{ad}', '\u{a0}', '\u{61c}', '\u{200b}'] {
            assert!(is_hidden(c), "{c:?}");
        }
        for c in ['\u{200d}', '\u{200e}', '\u{2028}', '\u{202e}', '\u{2066}', '\u{feff}', '\u{e0041}'] {
            assert!(is_hidden(c), "{c:?}");
        }
        for c in "aZ0 '\"\\/é日\u{301}\u{93f}\u{fe0f}🐄".chars() {
            assert!(!is_hidden(c), "{c:?}");
        }
    }

    #[test]
    fn json_is_the_same_string_in_printable_characters() {
        let odd = "a\u{202e}b\u{7f}c\u{9b}d\"\\\n\u{1b}é\u{e0041}";
        let json = to_json(&serde_json::json!({ "text": odd, odd: 1 })).unwrap();
        assert!(json.contains(r"a\u202eb\u007fc\u009bd"), "{json}");
        assert!(json.contains(r"\udb40\udc41") && json.contains('é'), "{json}");
        assert!(!json.chars().any(is_hidden), "{json:?}");
        let back: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((back["text"].as_str(), back[odd].as_u64()), (Some(odd), Some(1)));
        assert_eq!(
            super::json(&serde_json::to_string(&back).unwrap()),
            json,
            "a line that has them as they are"
        );
        assert!(matches!(super::json(&json), Cow::Borrowed(_)) || json.contains('é'));
    }

    #[test]
    fn a_name_cannot_become_a_part_of_the_sentence() {
        for plain in ["kubelet", "runc:[2:INIT]", "kworker/0:1", "/var/lib/a~b/c", "app@1.service"] {
            assert_eq!(name(plain), plain);
        }
        for (odd, shown) in [
            ("", "\"\""),
            ("kubelet (pid 1)", "\"kubelet (pid 1)\""),
            ("tmux: server", "\"tmux: server\""),
            ("a\", run by \"b", r#""a\", run by \"b""#),
            ("a\\", r#""a\\""#),
            ("a\n\u{1b}[2J\u{202e}", r#""a\n\x1b[2J\u{202e}""#),
            ("кubelet", "\"кubelet\""),
        ] {
            assert_eq!(name(odd), shown);
        }
    }

    #[test]
    fn a_name_chosen_by_a_user_cannot_become_a_command() {
        for (word, shown) in [
            ("eth0", "eth0"),
            (
                "/var/lib/kubelet/pods/kubernetes.io~glusterfs",
                "/var/lib/kubelet/pods/kubernetes.io~glusterfs",
            ),
            ("a;rm -rf /", "'a;rm -rf /'"),
            ("it's", r"'it'\''s'"),
            ("$(reboot)", "'$(reboot)'"),
            ("~root", "'~root'"),
            ("", "''"),
            ("a\nb'\\", r"$'a\x0ab\'\\'"),
            ("\u{1b}[2J", r"$'\x1b[2J'"),
            ("a\u{202e}b", r"$'a\xe2\x80\xaeb'"),
        ] {
            assert_eq!(quoted(word), shown, "{word:?}");
        }
    }
}
