//! Masks the secrets within one argument, which may be a whole shell script, URL, header or JSON text.
//!
//! The scanner walks over runs of name characters and checks what follows each. Where a value ends depends on the quotes and lists
//! around it, so that it is taken to end with the argument. Only what stands before an `@` ends there.

use super::MASK;
use super::flag::{is_glued_command, is_glued_password, is_password_command};
use super::name::{is_header, is_scheme, is_secret, is_secret_assigned, is_secret_word, is_user_option};

/// What an argument implies about the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Plain,
    Secret,
    /// It is a secret, or the scheme of one that follows.
    Header,
    /// It may be `user:password`.
    User,
}

/// Where an argument stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context {
    /// It is the program's name.
    pub(super) first: bool,
    /// The command takes a password with `-p`, according to a word before.
    pub(super) password_command: bool,
    /// Whatever is glued to `-p` is a password, according to a word before.
    pub(super) glued_command: bool,
    /// It may go on where the capture ends.
    pub(super) cut: bool,
}

/// A part of an argument that is masked, and what it implies about the next argument.
struct Found {
    start: usize,
    end: usize,
    next: Next,
}

/// Appends the argument to the line with its secrets masked.
pub(super) fn mask(arg: &str, expected: Next, context: &Context, line: &mut String) -> Next {
    match expected {
        Next::Secret | Next::Header if matches!(arg, "=" | ":") => {
            line.push_str(arg);
            return expected;
        }
        Next::Header if is_scheme(arg) => {
            line.push_str(arg);
            return Next::Secret;
        }
        Next::Secret | Next::Header => {
            if !arg.is_empty() {
                line.push_str(MASK);
            }
            // The option may have been a switch, and this the option that takes the secret.
            return if is_secret_option(arg) { Next::Secret } else { Next::Plain };
        }
        Next::User => {
            if let Some(colon) = password_of_user(arg) {
                line.push_str(&arg[..=colon]);
                line.push_str(MASK);
                return Next::Plain;
            }
        }
        Next::Plain => {}
    }
    scan(arg, context, line)
}

fn scan(arg: &str, context: &Context, line: &mut String) -> Next {
    let is_list = arg.len() > 2 && arg.starts_with("-o");
    let scanner = Scanner {
        arg,
        bytes: arg.as_bytes(),
        first: context.first,
        password_command: context.password_command,
        glued_command: context.glued_command,
        cut: context.cut,
        begin: if is_list { 2 } else { 0 },
    };
    let mut next = Next::Plain;
    let mut copied = 0;
    let mut at = scanner.begin;
    while at < arg.len() {
        let end = scanner.run_end(at);
        if end == at {
            at += 1;
            continue;
        }
        let found = scanner.secret(at, end);
        at = end;
        if let Some(found) = found {
            next = found.next;
            // In what is masked already, only what it implies about the next argument counts.
            if found.start >= copied {
                line.push_str(&arg[copied..found.start]);
                if found.end > found.start {
                    line.push_str(MASK);
                }
                copied = found.end;
                at = if copied < arg.len() { copied } else { end };
            }
        }
    }
    line.push_str(&arg[copied..]);
    next
}

struct Scanner<'a> {
    arg: &'a str,
    bytes: &'a [u8],
    first: bool,
    password_command: bool,
    glued_command: bool,
    cut: bool,
    /// Where names begin: after a glued `-o`.
    begin: usize,
}

impl Scanner<'_> {
    /// What the run of name characters at `start..end` announces.
    fn secret(&self, start: usize, end: usize) -> Option<Found> {
        let run = &self.arg[start..end];
        let name = run.trim_start_matches('-');
        let dashed = name.len() < run.len();
        let whole = start == 0 && end == self.arg.len();
        if self.is_raw_key(name, end) {
            return Some(plain(end - name.len(), end));
        }
        if self.arg[end..].starts_with("://") {
            return self.user_info(start, end + 3);
        }
        if let Some(value) = self.assigned(start, end).filter(|_| is_secret_assigned(name)) {
            return Some(self.value(name, value));
        }
        let option = dashed && self.begins_word(start);
        if (option && is_secret(name)) || (whole && !self.first && is_secret_word(name)) {
            return self.following(end);
        }
        if option && !run.starts_with("--") && run.starts_with("-p") {
            return self.short_password(start, end);
        }
        if name.eq_ignore_ascii_case("bearer") {
            return self.following(end);
        }
        if option && is_user_option(run) {
            return self.following_user(start, end);
        }
        self.glued_password(start, end)
    }

    /// A key of 128 bits or more as `ip xfrm` takes it: no address is that long.
    fn is_raw_key(&self, name: &str, end: usize) -> bool {
        let least = if self.cut && end == self.arg.len() { 9 } else { 32 };
        name.strip_prefix("0x")
            .is_some_and(|hex| hex.len() >= least && hex.bytes().all(|b| b.is_ascii_hexdigit()))
    }

    /// Where the value begins if `=` or `:` follows the name, which may be quoted.
    fn assigned(&self, start: usize, end: usize) -> Option<usize> {
        let closed = self.after_quote(end).unwrap_or(end);
        let sign = self.skip(closed, |b| matches!(b, b' ' | b'\t'));
        match self.bytes.get(sign)? {
            b'=' if sign == closed => Some(sign + 1),
            b'=' => Some(self.skip(sign + 1, |b| b.is_ascii_whitespace())),
            // `/etc/secret:/etc/secret` is a mount.
            b':' if self.before(start) != Some(b'/') => {
                Some(self.skip(sign + 1, |b| b.is_ascii_whitespace()))
            }
            _ => None,
        }
    }

    fn value(&self, name: &str, value: usize) -> Found {
        if value < self.arg.len() {
            return self.rest(value);
        }
        let next = if is_header(name) { Next::Header } else { Next::Secret };
        let has_colon = self.arg.trim_end().ends_with(':');
        Found { start: value, end: value, next: if has_colon { next } else { Next::Plain } }
    }

    /// What follows, here or in the next argument.
    fn following(&self, end: usize) -> Option<Found> {
        let start = self.skip(end, |b| b.is_ascii_whitespace());
        if start == self.arg.len() {
            return Some(Found { start, end: start, next: Next::Secret });
        }
        (start > end).then(|| self.rest(start))
    }

    fn rest(&self, start: usize) -> Found {
        plain(start, self.arg.len())
    }

    /// `-pPASSWORD`, or the word after `-p` for such a command.
    fn short_password(&self, start: usize, end: usize) -> Option<Found> {
        let value = start + 2;
        let word_end = if start == 0 { self.arg.len() } else { self.word_end(value) };
        let mut before = self.arg[..start].split_ascii_whitespace();
        if word_end > value {
            let cut = self.cut && word_end == self.arg.len();
            let is_password = cut
                || self.glued_command
                || is_glued_password(&self.arg[value..word_end])
                || before.any(is_glued_command);
            return is_password.then(|| self.rest(value));
        }
        let takes_one = self.password_command || before.any(is_password_command);
        takes_one.then(|| self.following(end)).flatten()
    }

    /// The password of the `user:password` that is the next word.
    fn following_user(&self, start: usize, end: usize) -> Option<Found> {
        if end == self.arg.len() {
            return Some(Found { start: end, end, next: Next::User });
        }
        let value = self.skip(end, |b| b == b'=' || b.is_ascii_whitespace());
        let word = &self.arg[value..self.word_end(value)];
        // One in quotes may have spaces.
        let is_closed = matches!(word.as_bytes(), [open @ (b'"' | b'\''), inner @ .., close]
            if open == close && !inner.iter().any(|byte| b"\"'\\".contains(byte)));
        let is_quoted = !is_closed && word.contains(['"', '\'', '\\']);
        let is_whole = is_quoted || start == 0 && self.bytes[end] == b'=';
        let colon = password_of_user(if is_whole { &self.arg[value..] } else { word })?;
        Some(self.rest(value + colon + 1))
    }

    /// `-uUSER:PASSWORD`, and `USER:PASSWORD@HOST` without a scheme.
    fn glued_password(&self, start: usize, end: usize) -> Option<Found> {
        if self.bytes.get(end) != Some(&b':') || self.before(start) == Some(b':') {
            return None;
        }
        let word_end = self.word_end(end);
        let tail = &self.arg[end + 1..word_end];
        if self.begins_word(start) && self.arg[start..end].starts_with("-u") {
            return (!is_number(tail)).then(|| self.rest(end + 1));
        }
        let host = tail[..tail.find('/').unwrap_or(tail.len())].rfind('@')?;
        let digest = ["sha256:", "sha512:"].iter().any(|kind| tail[host + 1..].starts_with(kind));
        (host > 0 && !digest).then(|| plain(end + 1, end + 1 + host))
    }

    /// The user info of a URL whose authority begins at `authority`.
    fn user_info(&self, scheme: usize, authority: usize) -> Option<Found> {
        let quote = self.before(scheme).filter(|b| matches!(b, b'"' | b'\''));
        let word_end = self.find(authority, |b| Some(b) == quote || b.is_ascii_whitespace());
        let word = &self.arg[authority..word_end];
        let host_end = word.find(['/', '?', '#', ',']).unwrap_or(word.len());
        if let Some(at) = word[..host_end].rfind('@') {
            return Some(plain(authority, authority + at));
        }
        // A password with a raw slash: what looks like the port is none.
        let port = word[..host_end].split_once(':').map(|(_, port)| port);
        if !word.starts_with('[')
            && port.is_some_and(|port| !is_number(port))
            && let Some(at) = word.rfind('@')
        {
            return Some(plain(authority, authority + at));
        }
        (self.cut && authority + host_end == self.arg.len() && host_end > 0)
            .then(|| plain(authority, self.arg.len()))
    }

    fn word_end(&self, from: usize) -> usize {
        self.find(from, |b| b.is_ascii_whitespace())
    }

    fn find(&self, from: usize, stop: impl Fn(u8) -> bool) -> usize {
        self.skip(from, |b| !stop(b))
    }

    fn skip(&self, from: usize, over: impl Fn(u8) -> bool) -> usize {
        self.bytes[from..].iter().position(|b| !over(*b)).map_or(self.arg.len(), |n| from + n)
    }

    /// Behind a quote, escaped or not, that stands at `at`.
    fn after_quote(&self, at: usize) -> Option<usize> {
        let quote = self.skip(at, |b| b == b'\\');
        matches!(self.bytes.get(quote)?, b'"' | b'\'').then_some(quote + 1)
    }

    fn before(&self, start: usize) -> Option<u8> {
        if start == self.begin { None } else { self.bytes.get(start.checked_sub(1)?).copied() }
    }

    fn begins_word(&self, start: usize) -> bool {
        self.before(start).is_none_or(|b| b.is_ascii_whitespace() || matches!(b, b'"' | b'\''))
    }

    fn run_end(&self, from: usize) -> usize {
        self.bytes
            .get(from..)
            .map_or(from, |rest| from + rest.iter().position(|b| !is_name(*b)).unwrap_or(rest.len()))
    }
}

fn plain(start: usize, end: usize) -> Found {
    Found { start, end, next: Next::Plain }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

/// An option without its value whose value is a secret.
fn is_secret_option(word: &str) -> bool {
    word.starts_with('-') && is_secret(word.trim_start_matches('-'))
}

/// The colon of `user:password`; `1000:1000` is a user and a group.
fn password_of_user(text: &str) -> Option<usize> {
    text.find(':').filter(|colon| !is_number(&text[colon + 1..]))
}
