//! The one-letter option that takes a password in many programs, and a port, path or process in many others.

/// Programs and subcommands whose `-p` takes a password as the next argument.
const PASSWORD_COMMANDS: &[&str] = &["sshpass", "login", "htpasswd", "smbpasswd"];

/// Programs whose `-p` has the password glued to it, whatever it looks like; of the first two every program whose name
/// begins like that.
const GLUED_FAMILIES: &[&str] = &["mysql", "mariadb"];
const GLUED_COMMANDS: &[&str] = &["sshpass", "mycli", "7z", "7za", "7zr", "7zz", "rar", "unrar"];

/// Long options with one dash that begin like it (find, ps, ffmpeg, gcc, Go programs).
const LONG_OPTIONS: &[&str] = &[
    "pass", "path", "pedantic", "perm", "pid", "pidfile", "pid-file", "ping", "pipe", "pix_fmt", "policy",
    "port", "preset", "print", "print0", "printf", "profile", "protocol", "proto", "proxy", "prune",
    "pthread",
];

/// Whether `-p` takes a password after this word of the same command.
pub(super) fn is_password_command(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word);
    PASSWORD_COMMANDS.contains(&name)
}

/// Whether whatever is glued to `-p` is a password after this word of the same command.
pub(super) fn is_glued_command(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word);
    GLUED_COMMANDS.contains(&name) || GLUED_FAMILIES.iter().any(|family| name.starts_with(family))
}

/// Whether what is glued to `-p` can be a password: no port or list of ports, no path, no other option. A short
/// run of letters is one-letter options together, as of `ps` and `install`.
pub(super) fn is_glued_password(value: &str) -> bool {
    let is_ports = |text: &str| {
        let text = text.trim_end_matches("/tcp").trim_end_matches("/udp");
        text.bytes().all(|byte| byte.is_ascii_digit() || b".:,-[]".contains(&byte))
    };
    let is_flags = value.len() <= 2 && value.bytes().all(|byte| byte.is_ascii_lowercase());
    let is_path = value.starts_with(['/', '.', '~', '$']);
    let name = value.split(['=', ':']).next().unwrap_or(value);
    let is_long = LONG_OPTIONS.contains(&format!("p{name}").as_str());
    !(value.is_empty() || is_ports(value) || is_flags || is_path || is_long)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_paths_and_options_are_no_passwords() {
        for value in
            ["", "22", "8080:80/tcp", "[::1]:80:80", "/tmp", "./x", "m", "ef", "rint0", "ath", "id=7"]
        {
            assert!(!is_glued_password(value), "{value}");
        }
        for value in ["hunter2", "s3cr3t", "abc", "Pa", "8080x"] {
            assert!(is_glued_password(value), "{value}");
        }
    }
}
