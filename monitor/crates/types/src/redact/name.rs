//! Which names announce a secret: of options, variables, headers and keys alike.

/// Secret wherever a name ends in it, even without a separator (`PGPASSWORD`, `authtoken`).
const ENDINGS: &[&str] = &[
    "password", "passwd", "passphrase", "passcode", "secret", "token", "credential", "accesskey",
    "accountkey", "apikey", "authkey", "encryptionkey", "masterkey", "privatekey", "secretkey", "sessionkey",
    "sharedkey", "signingkey", "storagekey", "requirepass", "masterauth",
];

/// Secret as the last word of a name only: `key` is, `monkey` is not.
const WORDS: &[&str] =
    &["key", "pass", "pwd", "psk", "creds", "passin", "passout", "cookie", "authorization"];

/// Whether what belongs to this name (given without leading dashes) is to be masked.
pub(super) fn is_secret(name: &str) -> bool {
    // `--no-password` takes no value; PWD is the working directory.
    let lower = name.to_ascii_lowercase();
    if lower.starts_with("no-") || matches!(lower.as_str(), "pwd" | "oldpwd") {
        return false;
    }
    let stem_len = lower.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '_' | '-' | '.')).len();
    let (name, lower) = (&name[..stem_len], &lower[..stem_len]);
    let singular = lower.strip_suffix('s').unwrap_or(lower);
    ENDINGS.iter().any(|ending| lower.ends_with(ending) || singular.ends_with(ending))
        || WORDS.iter().any(|word| lower.ends_with(word) && begins_word(name, stem_len - word.len()))
}

/// Whether this name is secret too where `=` or `:` follows; as an option it is mostly a switch.
pub(super) fn is_secret_assigned(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    is_secret(name) || (lower.ends_with("auth") && begins_word(name, name.len() - "auth".len()))
}

/// Whether the value may be a scheme and then the secret: `Authorization: Basic …`.
pub(super) fn is_header(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with("authorization")
}

/// Whether this bare word, as an argument of its own, makes the next one a secret (`nmcli … password X`).
pub(super) fn is_secret_word(word: &str) -> bool {
    matches!(word, "password" | "passphrase" | "psk")
}

/// Whether this option takes `user:password`.
pub(super) fn is_user_option(option: &str) -> bool {
    matches!(option, "-u" | "-U" | "--user" | "--proxy-user")
}

/// Whether it names a way to authenticate, as before the secret in a header.
pub(super) fn is_scheme(word: &str) -> bool {
    ["bearer", "basic", "digest", "negotiate", "token", "apikey"].iter().any(|s| word.eq_ignore_ascii_case(s))
}

/// Whether a word of the name begins at `at`: after a separator, or at a change of case.
fn begins_word(name: &str, at: usize) -> bool {
    let bytes = name.as_bytes();
    let Some(before) = at.checked_sub(1).map(|i| bytes[i]) else { return true };
    let upper = bytes[at].is_ascii_uppercase();
    let next_lower = bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
    !before.is_ascii_alphanumeric() || (upper && (!before.is_ascii_uppercase() || next_lower))
}
