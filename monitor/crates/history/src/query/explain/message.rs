//! A pasted line enters; its message leaves, without the JSON around it and without escapes.
//!
//! What a program, syslog or journalctl puts before the message (times, levels, units, numbers) may stay: known words are looked
//! for anywhere.

use serde_json::{Map, Value};

/// Members in which JSON logs have the message: of journalctl, of Docker's json-file, of others.
const MESSAGES: [&str; 4] = ["MESSAGE", "log", "message", "msg"];

/// Members with the error of a structured log.
const ERRORS: [&str; 2] = ["err", "error"];

/// What is known of a line.
#[derive(Debug)]
pub(super) struct Message {
    /// Names may be anywhere in it.
    pub(super) text: String,
    /// In so many bytes of it known words are looked for: other members of JSON may quote anything, such as a command line.
    pub(super) searched: usize,
}

pub(super) fn of_line(line: &str) -> Message {
    let (message, others) = of_json(line).unwrap_or_else(|| (line.to_owned(), String::new()));
    let mut text = unescaped(&message);
    let searched = text.len();
    text.push_str(&unescaped(&others));
    Message { text, searched }
}

/// The message in a line of JSON, perhaps behind what the journal or a runtime put before it; and the other members as
/// `name="value"`, as structured logs write them.
fn of_json(line: &str) -> Option<(String, String)> {
    let begin = line.find('{')?;
    if begin > 0 && !line[..begin].ends_with(' ') {
        return None;
    }
    let fields: Map<String, Value> = serde_json::from_str(&line[begin..]).ok()?;
    let message = MESSAGES.iter().find_map(|name| text_of(fields.get(*name)?)).unwrap_or_default();
    let (mut text, mut others) = of_json(&message).unwrap_or_else(|| (message.clone(), String::new()));
    // Those of the journal itself begin with an underscore.
    let is_other = |name: &str| !MESSAGES.contains(&name) && !name.starts_with('_');
    for (name, value) in fields.iter().filter(|(name, _)| is_other(name)) {
        let part = |part: &str| value.get(part).and_then(Value::as_str);
        // How a kubelet refers to an object of Kubernetes.
        let object =
            part("namespace").zip(part("name")).map(|(namespace, name)| format!("{namespace}/{name}"));
        if let Some(value) = object.as_deref().or(value.as_str()) {
            let of_name = if ERRORS.contains(&name.as_str()) { &mut text } else { &mut others };
            of_name.push_str(&format!(" {name}=\"{value}\""));
        }
    }
    Some((text, others))
}

/// A text, or the bytes of one, as journalctl shows those with control characters.
fn text_of(value: &Value) -> Option<String> {
    let Some(bytes) = value.as_array() else { return value.as_str().map(str::to_owned) };
    let byte = |value: &Value| value.as_u64().and_then(|byte| u8::try_from(byte).ok());
    let bytes = bytes.iter().map(byte).collect::<Option<Vec<u8>>>()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Without the backslashes before quotation marks, however often the message was quoted; escaped line breaks become blanks.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let behind = rest[at..].trim_start_matches('\\');
        match behind.chars().next() {
            Some('"' | '\'') => rest = behind,
            Some('n' | 'r' | 't') => {
                plain.push(' ');
                rest = &behind[1..];
            }
            _ => {
                plain.push_str(&rest[at..rest.len() - behind.len()]);
                rest = behind;
            }
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_loses_its_quotes_however_deep_they_are() {
        for (line, message) in [
            ("plain", "plain"),
            (r#"msg="a \"b\" c""#, r#"msg="a "b" c""#),
            (r#"err="x \\\"y\\\": z""#, r#"err="x "y": z""#),
            (r"Output: umount: /a: target is busy.\n\n", "Output: umount: /a: target is busy.  "),
            (r"var-lib\x2dkubelet\", r"var-lib\x2dkubelet\"),
        ] {
            assert_eq!(of_line(line).text, message);
        }
    }

    #[test]
    fn json_is_read_with_its_other_members_behind_the_message() {
        let klog = r#"{"ts":1733648701.1,"v":0,"msg":"Probe failed","pod":{"name":"etcd1-0","namespace":"lijiaob"},"podUID":"5c94"}"#;
        let plain = r#"Probe failed pod="lijiaob/etcd1-0" podUID="5c94""#;
        let inside = serde_json::json!({ "log": klog, "stream": "stderr" }).to_string();
        assert_eq!(of_line(klog).text, plain);
        assert_eq!(of_line(&format!("Dec 08 09:05:01 node kubelet[1234]: {klog}")).text, plain);
        assert_eq!(of_line(&inside).text, format!("{plain} stream=\"stderr\""));
        for line in ["{", "a {} b", "{\"msg\":", "x{\"msg\":\"y\"}", "[{\"msg\":\"y\"}]"] {
            assert_eq!(of_line(line).text, line);
        }
    }

    #[test]
    fn known_words_are_in_the_message_and_its_error_and_in_nothing_else() {
        let journal = r#"{"MESSAGE":[104,105],"_CMDLINE":"grep secret","UNIT":"a"}"#;
        let message = of_line(journal);
        assert_eq!((message.text.as_str(), message.searched), (r#"hi UNIT="a""#, 2));
        let message = of_line(r#"{"a":"1","err":"busy","msg":"m"}"#);
        assert_eq!(&message.text[..message.searched], r#"m err="busy""#);
        assert_eq!(message.text, r#"m err="busy" a="1""#);
    }
}
