//! An event as text: one line with its message; below it, indented, the actor, the target and the objects.

use std::collections::VecDeque;

use jiff::Timestamp;
use kevtmon_event::wording::{
    HELD_BY_KERNEL, NO_HOLDER_YET, RELEASED, SCAN_INCOMPLETE, kernel_label, short_id, users,
};
use kevtmon_event::{
    Actor, ActorSource, Confidence, Container, Details, Event, Kind, MountHolder, Object, Pod, Target,
    Unreadable,
};
use kevtmon_observation::{Access, Verdict};
use kevtmon_types::escape;

use super::{Escaped, Pretty, Style, escaped, severity_style, wrap};

/// Longest list of holders; the rest is counted.
const MAX_HOLDERS: usize = 20;

/// Sections that are remembered: of an event, and of a few incidents that follow it.
const ABOVE: usize = 32;

/// Longest command that an actor has run, in columns of a terminal.
const RUN_MAX: usize = 4 * wrap::WIDTH;

/// A label of a detail and the blanks around it.
const DETAIL: usize = 7;
/// Time and severity are this wide.
const BELOW_KIND: &str = "                      ";

impl Pretty {
    /// The event as one paragraph that ends in a newline.
    pub fn text(&self, event: &Event) -> String {
        let head = self.head(event, event.kind.name(), &self.clock(&event.time), &event.message);
        head + &self.sections(event).concat()
    }

    fn head(&self, event: &Event, kind: &str, when: &str, message: &str) -> String {
        let severity = format!("{:<8}", event.severity.name());
        let kind = format!("{:<17}", escaped(kind));
        let (when, severity) =
            (self.paint(Style::Dim, when), self.paint(severity_style(event.severity), &severity));
        format!("{when} {severity} {} {}\n", self.paint(Style::Bold, &kind), Escaped(message))
    }

    /// What stands below the message: the lines of the actor, of the target, of each object, and of the holders.
    fn sections(&self, event: &Event) -> Vec<String> {
        let mut sections = Vec::new();
        sections.extend(event.actor.as_ref().map(|actor| self.actor(actor)));
        sections.extend(event.target.as_deref().and_then(target).map(|line| self.detail("of", &line)));
        sections.extend(event.objects().map(|object| self.object(object)));
        sections.push(self.holders(event));
        sections
    }

    fn object(&self, object: &dyn Object) -> String {
        let mut out = String::new();
        object.describe(&mut Lines { pretty: self, out: &mut out });
        out
    }

    /// A time of the schema as time of day.
    pub fn clock(&self, time: &str) -> String {
        match time.parse::<Timestamp>() {
            Ok(timestamp) => timestamp.to_zoned(self.zone.clone()).strftime("%H:%M:%S%.3f").to_string(),
            Err(_) => Escaped(time).to_string(),
        }
    }

    /// Details stand below the kind, behind a label.
    fn detail(&self, label: &str, text: &str) -> String {
        let label = format!("{label:<6}");
        format!("{BELOW_KIND}{} {text}\n", self.paint(Style::Dim, &label))
    }

    fn actor(&self, actor: &Actor) -> String {
        let mut words = vec![format!("{} (pid {})", escape::name(&actor.comm), actor.pid)];
        words.extend(actor.exe.as_deref().map(escaped));
        match (&actor.container, &actor.pod, &actor.unit) {
            (None, None, Some(unit)) => words.push(escaped(unit)),
            (container, pod, _) => words.extend(owner(container.as_ref(), pod.as_ref())),
        }
        words.extend(actor.uid.filter(|uid| *uid != 0).map(|uid| format!("uid {uid}")));
        words.extend(actor.userns.map(|_| "in another user namespace".to_owned()));
        if actor.confidence != Confidence::Certain {
            let sure = match actor.confidence {
                Confidence::Guess => "a guess",
                Confidence::Likely | Confidence::Certain => "likely",
            };
            words.push(format!("{sure}, {}", learned(actor.source)));
        }
        let mut out = self.detail("by", &words.join(" · "));
        if let Some(cmdline) = actor.cmdline.as_deref().filter(|line| Some(*line) != actor.exe.as_deref()) {
            out.push_str(&self.detail("", &format!("$ {}", Escaped(cmdline))));
        }
        if !actor.ancestors.is_empty() {
            let chain: Vec<String> = actor
                .ancestors
                .iter()
                .map(|ancestor| format!("← {}({})", escape::name(&ancestor.comm), ancestor.pid))
                .collect();
            out.push_str(&self.detail("", &self.paint(Style::Dim, &chain.join(" "))));
        }
        out
    }

    fn holders(&self, event: &Event) -> String {
        let mut out = String::new();
        let holders = event.holders.as_deref().unwrap_or_default();
        let mountpoint = event.mount.as_ref().map_or("", |mount| &mount.path);
        let (listed, rest) = holders.split_at(holders.len().min(MAX_HOLDERS));
        let width = listed.iter().map(|holder| name(holder).chars().count()).max().unwrap_or(0);
        let mut above = None;
        for holder in listed {
            let label = match (holder.access, holder.possible) {
                (Access::Mount, _) if event.kind != Kind::MountRefused => "copy",
                (_, true) => "may",
                (_, false) => "held",
            };
            let shown = if above == Some(label) { "" } else { label };
            out.push_str(&self.detail(shown, &holder_line(holder, mountpoint, width)));
            above = Some(label);
        }
        if !rest.is_empty() {
            out.push_str(&self.detail("", &format!("… and {} more", rest.len())));
        }
        let verdict = match event.holders_verdict {
            // The message tells what uses the device.
            _ if event.kind == Kind::MountRefused => return out,
            Some(Verdict::MountNamespace) => "only copies in other mount namespaces are left",
            Some(Verdict::ChildMount) if event.mount.as_ref().is_some_and(|mount| !mount.is_umount()) => {
                "a mount on that directory refuses it"
            }
            Some(Verdict::ChildMount) => "only mounts below it hold it",
            Some(Verdict::Kernel) if users(holders).next().is_some() => return out,
            Some(Verdict::Kernel) => HELD_BY_KERNEL,
            Some(Verdict::Transient) => RELEASED,
            Some(Verdict::None) => NO_HOLDER_YET,
            Some(Verdict::NotAMount) => "nothing is mounted there",
            Some(Verdict::Skipped) => "holders not scanned again",
            Some(Verdict::Incomplete) if holders.iter().any(|holder| holder.possible) => {
                "no holder found for certain"
            }
            Some(Verdict::Incomplete) => SCAN_INCOMPLETE,
            Some(Verdict::Processes) if event.holders_complete == Some(false) => {
                "there may be more: scan incomplete"
            }
            Some(Verdict::Processes) | None => return out,
        };
        out.push_str(&self.detail(if users(holders).next().is_none() { "held" } else { "" }, verdict));
        for unreadable in event.holders_unreadable.iter().take(MAX_HOLDERS) {
            out.push_str(&self.detail("", &format!("not seen: {}", not_read(unreadable))));
        }
        out
    }
}

/// What a scan for holders could not read, and why.
pub(super) fn not_read(Unreadable { pid, comm, reason }: &Unreadable) -> String {
    let process = match (pid, comm) {
        (Some(pid), Some(comm)) => format!("{} (pid {pid}): ", escape::name(comm)),
        (Some(pid), None) => format!("pid {pid}: "),
        (None, _) => String::new(),
    };
    escaped(&format!("{process}{reason}"))
}

/// Events one below the other, as a terminal shows them: an incident does not repeat what stands right above it, below the
/// event that it follows.
#[derive(Debug, Clone)]
pub struct Transcript {
    pretty: Pretty,
    /// Whether lines are broken to the width of a terminal.
    is_wrapped: bool,
    /// The sections of the event before.
    above: Vec<String>,
    /// What was last shown of incidents, the latest at the end.
    incidents: VecDeque<String>,
}

impl Transcript {
    /// One that begins here.
    pub fn new(pretty: Pretty) -> Self {
        Self { pretty, is_wrapped: false, above: Vec::new(), incidents: VecDeque::new() }
    }

    /// The same with lines that fit a terminal, but for commands.
    pub fn wrapped(self) -> Self {
        Self { is_wrapped: true, ..self }
    }

    fn shown(&self, text: String) -> String {
        if self.is_wrapped { wrapped(&text) } else { text }
    }

    /// The next event, with the time of day.
    pub fn text(&mut self, event: &Event) -> String {
        let when = self.pretty.clock(&event.time);
        self.paragraph(event, event.kind.name(), &when)
    }

    /// So many events like one before, of which this is the last.
    pub fn counted(&mut self, last: &Event, kind: &str, when: &str, count: u64) -> String {
        let message = format!("… {count} more like it, the last: {}", last.message);
        let out = self.pretty.head(last, kind, when, &message);
        self.above.clear();
        self.shown(out)
    }

    /// The next event, with the name of its kind and its time in other words.
    pub fn paragraph(&mut self, event: &Event, kind: &str, when: &str) -> String {
        let mut out = self.pretty.head(event, kind, when, &event.message);
        let sections = self.pretty.sections(event);
        let is_incident = event.incident.is_some();
        let own = event.incident.as_deref().map(|incident| self.pretty.object(incident));
        for section in sections.iter().filter(|section| !is_incident || !self.above.contains(section)) {
            // An update with the same advice needs no more than the id, which stands first.
            let is_known = own.as_ref() == Some(section) && self.incidents.contains(section);
            let lines = if is_known { 1 } else { usize::MAX };
            out.extend(section.split_inclusive('\n').take(lines));
        }
        if let Some(own) = own.filter(|own| !self.incidents.contains(own)) {
            self.incidents.push_back(own);
            if self.incidents.len() > ABOVE {
                self.incidents.pop_front();
            }
        }
        // Several incidents can follow one event.
        if !is_incident || self.above.len() > ABOVE {
            self.above.clear();
        }
        self.above.extend(sections);
        self.shown(out)
    }
}

/// Lines that fit a terminal. Commands stay whole, so that they can be pasted; of what somebody has run, which may be 4 KiB of
/// anything, the middle is left out.
fn wrapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let plain = wrap::plain(line);
        let detail = plain.strip_prefix(BELOW_KIND).unwrap_or_default();
        let (is_step, is_run) = (detail.starts_with("do "), detail.trim_start().starts_with("$ "));
        if is_run && plain.chars().count() > RUN_MAX {
            out.extend([&*wrap::shortened(&plain, RUN_MAX), "\n"]);
            continue;
        }
        if is_step || is_run || plain.chars().count() <= wrap::WIDTH {
            out.extend([line, "\n"]);
            continue;
        }
        for line in wrap::broken(line, BELOW_KIND.len() + DETAIL) {
            out.push_str(&line);
            out.push('\n');
        }
    }
    out
}

/// Writes the lines of objects.
struct Lines<'a> {
    pretty: &'a Pretty,
    out: &'a mut String,
}

impl Details for Lines<'_> {
    fn line(&mut self, label: &str, text: &str) {
        self.out.push_str(&self.pretty.detail(label, &escaped(text)));
    }

    fn clock(&self, time: &str) -> String {
        self.pretty.clock(time)
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
        _ => namespace(target),
    }
}

fn namespace(target: &Target) -> Option<String> {
    let name = target.netns_name.as_ref().map(|name| format!("network namespace {}", Escaped(name)));
    let process = target.process.as_ref().map(|process| {
        let group = target.unit.as_ref().or(target.cgroup.as_ref().filter(|path| *path != "/"));
        let group = group.map(|group| format!(" · {}", Escaped(group)));
        format!("{} (pid {}){}", escape::name(&process.comm), process.pid, group.unwrap_or_default())
    });
    match (name, process) {
        (Some(name), Some(process)) => Some(format!("{name} · {process}")),
        (None, Some(process)) => Some(format!("network namespace of {process}")),
        (name, None) => name,
    }
}

fn owner(container: Option<&Container>, pod: Option<&Pod>) -> impl Iterator<Item = String> {
    pod.map(pod_words).into_iter().chain(container.map(container_words))
}

fn pod_words(pod: &Pod) -> String {
    let claims = if pod.claimed { "claims to be " } else { "" };
    match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(name)) => format!("{claims}pod {}/{}", Escaped(namespace), Escaped(name)),
        _ => format!("{claims}pod {}", Escaped(&pod.uid)),
    }
}

fn container_words(container: &Container) -> String {
    let facts: Vec<String> =
        [Some(short_id(&container.id)), container.runtime.as_deref(), container.state.as_deref()]
            .into_iter()
            .flatten()
            .map(escaped)
            .collect();
    match &container.name {
        Some(own) => format!("container {} ({})", escape::name(own), facts.join(", ")),
        None => format!("container {}", facts.join(", ")),
    }
}

fn name(holder: &MountHolder) -> String {
    if holder.pid == 0 {
        return kernel_label(holder);
    }
    format!("{} (pid {})", escape::name(&holder.comm), holder.pid)
}

fn holder_line(holder: &MountHolder, mountpoint: &str, width: usize) -> String {
    let access = match (holder.access, holder.fd) {
        (Access::Fd, Some(fd)) => format!("fd {fd}"),
        (Access::ChildMount, _) => "child".to_owned(),
        (Access::Netns, _) => "inside".to_owned(),
        (Access::IoUring, _) => "io_uring".to_owned(),
        (access, _) => access.name().replace('-', " "),
    };
    let mut line = format!("{:<width$}  {access:<5} ", name(holder));
    let owned = match (&holder.container, &holder.pod, &holder.unit) {
        (None, None, Some(unit)) => vec![escaped(unit)],
        (container, pod, _) => owner(container.as_ref(), pod.as_ref()).collect(),
    };
    let path = holder.path.as_deref().filter(|_| holder.pid != 0);
    let path = path.and_then(|path| below(path, mountpoint));
    let words: Vec<String> = path.into_iter().chain(owned).collect();
    line.push_str(&words.join(" · "));
    line.truncate(line.trim_end().len());
    line
}

/// The mount point is long and stands above already.
fn below(path: &str, mountpoint: &str) -> Option<String> {
    match path.strip_prefix(mountpoint) {
        Some("") => None,
        Some(rest) if rest.starts_with('/') && mountpoint.len() > 1 => Some(format!("…{}", Escaped(rest))),
        _ => Some(escaped(path)),
    }
}

#[cfg(test)]
mod tests;
