//! A pasted line enters; its message leaves, without the JSON around it and without escapes.
//!
//! What a program, syslog or journalctl puts before the message (times, levels, units, numbers) may stay: known words are looked
//! for anywhere.

use serde_json::{Map, Value};

/// Members in which JSON logs have the message: of journalctl, of Docker's json-file, of others.
const MESSAGES: [&str; 4] = ["MESSAGE", "log", "message", "msg"];

/// The message of a line.
pub(super) fn of_line(line: &str) -> String {
    unescaped(of_json(line).as_deref().unwrap_or(line))
}

/// The message in a line of JSON, perhaps behind what the journal or a runtime put before it; then the other members as
/// `name="value"`, as structured logs write them.
fn of_json(line: &str) -> Option<String> {
    let begin = line.find('{')?;
    if begin > 0 && !line[..begin].ends_with(' ') {
        return None;
    }
    let fields: Map<String, Value> = serde_json::from_str(&line[begin..]).ok()?;
    let message = MESSAGES.iter().find_map(|name| fields.get(*name)?.as_str()).unwrap_or_default();
    let mut text = of_json(message).unwrap_or_else(|| message.to_owned());
    for (name, value) in fields.iter().filter(|(name, _)| !MESSAGES.contains(&name.as_str())) {
        let part = |part: &str| value.get(part).and_then(Value::as_str);
        // How a kubelet refers to an object of Kubernetes.
        let object =
            part("namespace").zip(part("name")).map(|(namespace, name)| format!("{namespace}/{name}"));
        if let Some(value) = object.as_deref().or(value.as_str()) {
            text.push_str(&format!(" {name}=\"{value}\""));
        }
    }
    Some(text)
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
            assert_eq!(of_line(line), message);
        }
    }

    #[test]
    fn json_is_read_with_its_other_members_behind_the_message() {
        let klog = r#"{"ts":1733648701.1,"v":0,"msg":"Probe failed","pod":{"name":"etcd1-0","namespace":"lijiaob"},"podUID":"5c94"}"#;
        let plain = r#"Probe failed pod="lijiaob/etcd1-0" podUID="5c94""#;
        let inside = serde_json::json!({ "log": klog, "stream": "stderr" }).to_string();
        assert_eq!(of_line(klog), plain);
        assert_eq!(of_line(&format!("Dec 08 09:05:01 node kubelet[1234]: {klog}")), plain);
        assert_eq!(of_line(&inside), format!("{plain} stream=\"stderr\""));
        for line in ["{", "a {} b", "{\"msg\":", "x{\"msg\":\"y\"}", "[{\"msg\":\"y\"}]"] {
            assert_eq!(of_line(line), line);
        }
    }
}
