//! Events for people: one line that says it, and below it, indented, who did it and whose it was.
//!
//! Nothing is wrapped. What came from outside may hold terminal escapes, so control characters are shown, never
//! sent.

use std::fmt::{self, Write};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::event::{
    Actor, ActorSource, Confidence, Container, Daemon, Event, Link, Lost, Mount, MountHolder, Neighbor, Pod,
    Route, Severity, Target,
};
use crate::observation::{Access, Verdict};

/// Longest list of holders; the rest is counted.
const MAX_HOLDERS: usize = 20;

/// Time and severity are this wide.
const BELOW_KIND: &str = "                      ";

/// How to write.
#[derive(Debug, Clone)]
pub struct Pretty {
    /// Whether the reader is a terminal that shows colour.
    pub colour: bool,
    /// Time zone of the times.
    pub zone: TimeZone,
}

/// How a word stands out on a terminal.
#[derive(Clone, Copy)]
pub(crate) enum Ink {
    Dim,
    Bold,
    Cyan,
    Yellow,
    Red,
}

impl Ink {
    fn code(self) -> &'static str {
        match self {
            Self::Dim => "2",
            Self::Bold => "1",
            Self::Cyan => "36",
            Self::Yellow => "33",
            Self::Red => "1;31",
        }
    }
}

impl Pretty {
    /// The event as one paragraph that ends in a newline.
    #[must_use]
    pub fn text(&self, event: &Event) -> String {
        self.paragraph(event, event.kind.name(), &self.clock(&event.time))
    }

    /// The same, with the name of its kind and its time in other words.
    #[must_use]
    pub fn paragraph(&self, event: &Event, kind: &str, when: &str) -> String {
        let mut out = String::with_capacity(512);
        // Writing to a string cannot fail.
        let _ = self.write(event, kind, when, &mut out);
        out
    }

    fn write(&self, event: &Event, kind: &str, when: &str, out: &mut String) -> fmt::Result {
        let severity = format!("{:<8}", event.severity.name());
        let kind = format!("{:<17}", shown(kind));
        writeln!(
            out,
            "{} {} {} {}",
            self.ink(Ink::Dim, when),
            self.ink(severity_ink(event.severity), &severity),
            self.ink(Ink::Bold, &kind),
            Shown(&event.message),
        )?;
        if let Some(actor) = &event.actor {
            self.actor(actor, out)?;
        }
        if let Some(line) = event.target.as_deref().and_then(target) {
            self.detail("of", &line, out)?;
        }
        if let Some(neighbor) = &event.neighbor {
            self.detail("entry", &neighbor_line(neighbor), out)?;
        }
        if let Some(link) = &event.link {
            self.detail("link", &link_line(link), out)?;
        }
        if let Some(route) = &event.route {
            self.detail("route", &route_line(route), out)?;
        }
        if let Some(mount) = &event.mount {
            self.detail("mount", &shown(&mount.path), out)?;
            self.detail("", &mount_line(mount), out)?;
        }
        self.holders(event, out)?;
        if let Some(lost) = &event.lost {
            self.detail("lost", &self.lost_line(lost), out)?;
        }
        if let Some(daemon) = &event.daemon {
            self.daemon(daemon, out)?;
        }
        Ok(())
    }

    fn clock(&self, time: &str) -> String {
        match time.parse::<Timestamp>() {
            Ok(timestamp) => timestamp.to_zoned(self.zone.clone()).strftime("%H:%M:%S%.3f").to_string(),
            Err(_) => Shown(time).to_string(),
        }
    }

    pub(crate) fn ink(&self, ink: Ink, text: &str) -> String {
        if self.colour { format!("\x1b[{}m{text}\x1b[0m", ink.code()) } else { text.to_owned() }
    }

    /// Details stand below the kind, behind a label.
    pub(crate) fn detail(&self, label: &str, text: &str, out: &mut String) -> fmt::Result {
        let label = format!("{label:<6}");
        writeln!(out, "{BELOW_KIND}{} {text}", self.ink(Ink::Dim, &label))
    }

    fn actor(&self, actor: &Actor, out: &mut String) -> fmt::Result {
        let mut words = vec![format!("{} (pid {})", Shown(&actor.comm), actor.pid)];
        words.extend(actor.exe.as_deref().map(shown));
        match (&actor.container, &actor.pod, &actor.unit) {
            (None, None, Some(unit)) => words.push(shown(unit)),
            (container, pod, _) => words.extend(owner(container.as_ref(), pod.as_ref())),
        }
        words.extend(actor.uid.filter(|uid| *uid != 0).map(|uid| format!("uid {uid}")));
        if actor.confidence != Confidence::Certain {
            let sure = match actor.confidence {
                Confidence::Guess => "a guess",
                Confidence::Likely | Confidence::Certain => "likely",
            };
            words.push(format!("{sure}, {}", learned(actor.source)));
        }
        self.detail("by", &words.join(" · "), out)?;
        if let Some(cmdline) = actor.cmdline.as_deref().filter(|line| Some(*line) != actor.exe.as_deref()) {
            self.detail("", &format!("$ {}", Shown(cmdline)), out)?;
        }
        if !actor.ancestors.is_empty() {
            let chain: Vec<String> = actor
                .ancestors
                .iter()
                .map(|ancestor| format!("← {}({})", Shown(&ancestor.comm), ancestor.pid))
                .collect();
            self.detail("", &self.ink(Ink::Dim, &chain.join(" ")), out)?;
        }
        Ok(())
    }

    fn holders(&self, event: &Event, out: &mut String) -> fmt::Result {
        let holders = event.holders.as_deref().unwrap_or_default();
        let mountpoint = event.mount.as_ref().map_or("", |mount| &mount.path);
        let (listed, rest) = holders.split_at(holders.len().min(MAX_HOLDERS));
        let width = listed.iter().map(|holder| name(holder).chars().count()).max().unwrap_or(0);
        for (index, holder) in listed.iter().enumerate() {
            self.detail(if index == 0 { "held" } else { "" }, &holder_line(holder, mountpoint, width), out)?;
        }
        if !rest.is_empty() {
            self.detail("", &format!("… and {} more", rest.len()), out)?;
        }
        let verdict = match event.holders_verdict {
            Some(Verdict::MountNamespace) => "only copies in other mount namespaces hold it",
            Some(Verdict::ChildMount) => "only mounts below it hold it",
            Some(Verdict::Kernel) => "no process holds it: the kernel does",
            Some(Verdict::Transient) => "nobody holds it any more",
            Some(Verdict::NotAMount) => "nothing is mounted there",
            Some(Verdict::Skipped) => "holders were not looked for again",
            Some(Verdict::Incomplete) => "no holder found, but not every process could be read",
            Some(Verdict::Processes) if event.holders_complete == Some(false) => {
                "there may be more: not every process could be read"
            }
            Some(Verdict::Processes) | None => return Ok(()),
        };
        self.detail(if holders.is_empty() { "held" } else { "" }, verdict, out)
    }

    fn lost_line(&self, lost: &Lost) -> String {
        let mut line =
            format!("{} from {} ({})", Shown(&lost.count), Shown(&lost.source), Shown(&lost.reason));
        if let (Some(from), Some(to)) = (&lost.from, &lost.to) {
            line.push_str(&format!(", {} to {}", self.clock(from), self.clock(to)));
        }
        line
    }

    fn daemon(&self, daemon: &Daemon, out: &mut String) -> fmt::Result {
        let sources: Vec<String> = daemon
            .sources
            .iter()
            .map(|(source, state)| format!("{} {}", Shown(source), Shown(state)))
            .collect();
        if !sources.is_empty() {
            self.detail("with", &sources.join(" · "), out)?;
        }
        for (index, (what, why)) in daemon.degraded.iter().enumerate() {
            let label = if index == 0 { "lacks" } else { "" };
            self.detail(label, &format!("{}: {}", Shown(what), Shown(why)), out)?;
        }
        Ok(())
    }
}

pub(crate) fn severity_ink(severity: Severity) -> Ink {
    match severity {
        Severity::Debug | Severity::Info => Ink::Dim,
        Severity::Notice => Ink::Cyan,
        Severity::Warning => Ink::Yellow,
        Severity::Critical => Ink::Red,
    }
}

fn learned(source: ActorSource) -> &'static str {
    match source {
        ActorSource::Kernel => "seen in the kernel",
        ActorSource::NetlinkPort => "by the port of its request",
        ActorSource::CniWindow => "its CNI call was in progress",
        ActorSource::Proc => "found in /proc afterwards",
        ActorSource::None => "source unknown",
    }
}

fn target(target: &Target) -> Option<String> {
    let words: Vec<String> = owner(target.container.as_ref(), target.pod.as_ref()).collect();
    match target.join {
        _ if !words.is_empty() => Some(words.join(" · ")),
        _ => target.netns_name.as_ref().map(|name| format!("network namespace {}", Shown(name))),
    }
}

fn owner(container: Option<&Container>, pod: Option<&Pod>) -> impl Iterator<Item = String> {
    pod.map(pod_words).into_iter().chain(container.map(container_words))
}

fn pod_words(pod: &Pod) -> String {
    match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(name)) => format!("pod {}/{}", Shown(namespace), Shown(name)),
        _ => format!("pod {}", Shown(&pod.uid)),
    }
}

fn container_words(container: &Container) -> String {
    // Twelve digits are what runtimes show and take.
    let short: String = container.id.chars().take(12).collect();
    let facts: Vec<String> = [Some(short.as_str()), container.runtime.as_deref(), container.state.as_deref()]
        .into_iter()
        .flatten()
        .map(shown)
        .collect();
    match &container.name {
        Some(name) => format!("container {} ({})", Shown(name), facts.join(", ")),
        None => format!("container {}", facts.join(", ")),
    }
}

fn neighbor_line(neighbor: &Neighbor) -> String {
    let mut line =
        format!("{} {}", neighbor.address, arrow(neighbor.lladdr.as_ref(), neighbor.new_lladdr.as_ref()));
    for words in [
        arrow(neighbor.state.as_ref(), neighbor.new_state.as_ref()),
        format!("cause {}", Shown(&neighbor.cause)),
        neighbor.reason.as_deref().map_or_else(String::new, |reason| format!("gateway {}", Shown(reason))),
        format!("{} ({}) in netns {}", Shown(&neighbor.ifname), neighbor.ifindex, neighbor.netns),
    ] {
        if !words.is_empty() {
            line.push_str(" · ");
            line.push_str(&words);
        }
    }
    line
}

fn arrow(old: Option<&String>, new: Option<&String>) -> String {
    match (old, new) {
        (Some(old), Some(new)) => format!("{} → {}", Shown(old), Shown(new)),
        (Some(one), None) => shown(one),
        (None, Some(new)) => format!("→ {}", Shown(new)),
        (None, None) => String::new(),
    }
}

fn link_line(link: &Link) -> String {
    let mut words = vec![format!("{} ({}) in netns {}", Shown(&link.ifname), link.ifindex, link.netns)];
    words.extend(link.kind.as_deref().map(shown));
    words.extend(link.peer.as_ref().map(|peer| {
        let name = peer.ifname.as_deref().map_or_else(String::new, |name| format!("{} ", Shown(name)));
        let netns = peer.netns.map_or_else(String::new, |netns| format!(" in netns {netns}"));
        format!("peer {name}({}){netns}", peer.ifindex)
    }));
    words.extend(link.mac.as_deref().map(shown));
    words.extend(link.up.map(|up| if up { "up" } else { "down" }.to_owned()));
    words.join(" · ")
}

fn route_line(route: &Route) -> String {
    let via = route.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
    let dev = route.ifindex.map_or_else(String::new, |ifindex| format!(" dev {ifindex}"));
    format!("{}{via}{dev} in netns {}", Shown(&route.destination), route.netns)
}

fn mount_line(mount: &Mount) -> String {
    let mut words = Vec::new();
    match (&mount.fstype, &mount.source) {
        (Some(fstype), Some(source)) => words.push(format!("{} {}", Shown(fstype), Shown(source))),
        (fstype, source) => words.extend(fstype.as_deref().or(source.as_deref()).map(shown)),
    }
    let flags = if mount.flags.is_empty() { String::new() } else { format!("({})", mount.flags.join("|")) };
    let errno = mount.errno.as_deref().map_or_else(String::new, |errno| format!(": {}", Shown(errno)));
    let attempt = mount.attempts.map_or_else(String::new, |attempts| format!(", attempt {attempts}"));
    words.push(format!("{}{}{errno}{attempt}", Shown(&mount.syscall), Shown(&flags)));
    words.join(" · ")
}

fn name(holder: &MountHolder) -> String {
    format!("{} (pid {})", Shown(&holder.comm), holder.pid)
}

fn holder_line(holder: &MountHolder, mountpoint: &str, width: usize) -> String {
    let access = match (holder.access, holder.fd) {
        (Access::Fd, Some(fd)) => format!("fd {fd}"),
        (Access::Fd, None) => "fd".to_owned(),
        (Access::Cwd, _) => "cwd".to_owned(),
        (Access::Root, _) => "root".to_owned(),
        (Access::Exe, _) => "exe".to_owned(),
        (Access::Mmap, _) => "mmap".to_owned(),
        (Access::Mount, _) => "mount".to_owned(),
        (Access::ChildMount, _) => "child".to_owned(),
    };
    let mut line = format!("{:<width$}  {access:<6}", name(holder));
    let owned = match (&holder.container, &holder.pod, &holder.unit) {
        (None, None, Some(unit)) => vec![shown(unit)],
        (container, pod, _) => owner(container.as_ref(), pod.as_ref()).collect(),
    };
    let path = holder.path.as_deref().and_then(|path| below(path, mountpoint));
    let words: Vec<String> = path.into_iter().chain(owned).collect();
    line.push_str(&words.join(" · "));
    line.truncate(line.trim_end().len());
    line
}

/// The mount point is long and stands above already.
fn below(path: &str, mountpoint: &str) -> Option<String> {
    match path.strip_prefix(mountpoint) {
        Some("") => None,
        Some(rest) if rest.starts_with('/') && mountpoint.len() > 1 => Some(format!("…{}", Shown(rest))),
        _ => Some(shown(path)),
    }
}

/// Text from outside, made harmless.
pub(crate) fn shown(text: &str) -> String {
    Shown(text).to_string()
}

/// Text from outside, with everything that would steer a terminal or reorder text written out.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return f.write_str(self.0);
        }
        for c in self.0.chars() {
            match c {
                '\n' => f.write_str("\\n")?,
                '\t' => f.write_str("\\t")?,
                '\r' => f.write_str("\\r")?,
                c if c.is_control() && u32::from(c) <= 0xff => write!(f, "\\x{:02x}", u32::from(c))?,
                // Line separators and the bidirectional controls.
                '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    write!(f, "{}", c.escape_unicode())?;
                }
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
