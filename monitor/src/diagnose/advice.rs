//! Commands that an operator can paste: names that come from the node are quoted.

use crate::event::{Advice, Container, Risk};

/// One next step; the arguments of the command are quoted where needed.
pub(super) fn advice(text: &str, risk: Risk, command: &[&str]) -> Advice {
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    Advice { text: text.to_owned(), command: words.join(" "), risk }
}

/// The command that restarts a container by the tool of its own runtime, with a new network. None where that is not
/// known to exist: the tool of another runtime does not find the container.
pub(super) fn restart(container: &Container) -> Option<[&str; 3]> {
    let tool = match container.runtime.as_deref()? {
        "docker" => "docker",
        "podman" => "podman",
        "containerd" => "nerdctl",
        _ => return None,
    };
    Some([tool, "restart", &container.id])
}

/// The command that ends a container of a pod, where the kubelet starts another one in its place: a container behind
/// the CRI cannot be restarted.
pub(super) fn replace_in_pod(container: &Container) -> Option<[&str; 3]> {
    matches!(container.runtime.as_deref()?, "containerd" | "crio").then_some([
        "crictl",
        "stop",
        &container.id,
    ])
}

/// Quotes an argument for a POSIX shell; control characters as `$'…'` of bash and zsh, so that none reaches the
/// terminal.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+~".contains(c);
    if !word.is_empty() && word.chars().all(plain) && !word.starts_with('~') {
        return word.to_owned();
    }
    if !word.chars().any(char::is_control) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut text = String::from("$'");
    for c in word.chars() {
        match c {
            '\'' | '\\' => text.extend(['\\', c]),
            c if c.is_control() => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("a\nb'\\", r"$'a\u000ab\'\\'"),
            ("\u{1b}[2J", r"$'\u001b[2J'"),
        ] {
            assert_eq!(quoted(word), shown, "{word:?}");
        }
    }
}
