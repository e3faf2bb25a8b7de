//! What lines of logs mean on this node. Pure.
//!
//! ```text
//! lines ─► message ─► forms (which line it is, and what it speaks of) ─► Known (incidents of that) ─► explanations
//! ```
//!
//! A line is quoted, and is no fact: an incident is found by the fields that name the same pod, container, path, address, interface
//! or image, never by its sentences. What no form has is not guessed at.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use kevtmon_event::{Event, Kind, Role, Shared, volume};
use kevtmon_types::escape::quoted;
use serde::Serialize;

use self::forms::{Form, Otherwise};
use self::subject::Subject;
use super::filter::IncidentFilter;
use super::history::{History, HistoryError, IncidentView};
use super::key::{Key, keys};
use super::why::numbered;

mod forms;
mod message;
mod subject;

/// What is read of a line, bytes: the known words are behind a time and the name of a program.
const LINE: usize = 16 << 10;
/// What is quoted of a line, characters; of that before its known words, bytes.
const QUOTED: usize = 320;
const BEFORE: usize = 80;
/// Different lines of a page that are explained, and of those that are harmless.
const EXPLAINED: usize = 64;
const HARMLESS: usize = 16;
/// Incidents that concern a pod though they happened to another one of its name or address.
const OF_SEVERAL: [&str; 5] =
    ["stale-cni-del", "cni-teardown-failing", "duplicate-pod-ip", "ipam-drift", "orphan-veth"];
/// Incidents that are looked through: the open ones first, then the newest.
const INCIDENTS: usize = 500;

/// The lines of a page.
#[derive(Debug, Default)]
pub struct Page {
    /// Those that are known, each once.
    pub lines: Vec<Line>,
    /// How many lines no form has.
    pub unknown: usize,
    /// How many are known and left out, since there are too many different ones.
    pub omitted: usize,
}

/// A line that is known.
#[derive(Debug)]
pub struct Line {
    /// Its number on the page, from 1.
    number: usize,
    /// How many lines have the same form and subjects.
    count: usize,
    form: &'static Form,
    text: String,
    subjects: Vec<Subject>,
}

/// Reads pasted lines; blank ones do not count.
pub fn read(text: &str) -> Page {
    let mut page = Page::default();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let message = message::of_line(&line[..line.floor_char_boundary(LINE)]);
        let Some((form, found)) = forms::recognise(&message) else {
            page.unknown += 1;
            continue;
        };
        let subjects: Vec<Subject> = form.subjects.iter().filter_map(|extract| extract(&found)).collect();
        let is_same = |known: &&mut Line| known.form.name == form.name && known.subjects == subjects;
        if let Some(known) = page.lines.iter_mut().find(is_same) {
            known.count += 1;
        } else if page.has_room(form) {
            let text = quote(&message.text, found.begin);
            page.lines.push(Line { number: index + 1, count: 1, form, text, subjects });
        } else {
            page.omitted += 1;
        }
    }
    page
}

/// A part of a message: a little before the known words, which begin there, from a word on; and what follows.
fn quote(message: &str, known: usize) -> String {
    let cut = message.floor_char_boundary(known.saturating_sub(BEFORE));
    let word = message[..cut].rfind(' ').map_or(0, |blank| blank + 1);
    // A path is quoted whole, if it is no longer than that.
    let begin = match cut - word <= 2 * BEFORE {
        true => word,
        false => cut + message[cut..known].find(' ').map_or(0, |blank| blank + 1),
    };
    let (text, sign) = (message[begin..].trim_end(), if begin == 0 { "" } else { "…" });
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{sign}{}…", &text[..end]),
        None => format!("{sign}{text}"),
    }
}

impl Page {
    /// Harmless lines, of which a log is full, leave room for others.
    fn has_room(&self, form: &Form) -> bool {
        let most = if form.is_harmless() { HARMLESS } else { EXPLAINED };
        self.lines.iter().filter(|line| line.form.is_harmless() == form.is_harmless()).count() < most
    }

    /// The incidents that can explain a line of it.
    pub fn incidents(&self) -> IncidentFilter {
        let kinds: BTreeSet<&str> = self.lines.iter().flat_map(|line| line.form.kinds).copied().collect();
        let kinds = kinds.into_iter().map(str::to_owned).collect();
        IncidentFilter { all: true, kinds, ..IncidentFilter::default() }
    }
}

/// What a line means.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// Number of the first such line, from 1.
    pub line: usize,
    /// How many lines have the same form and subjects.
    pub count: usize,
    /// Which of the lines that kevtmon knows it is.
    pub form: &'static str,
    /// The program that writes such a line.
    pub program: &'static str,
    /// A part of the line, with its known words.
    pub text: String,
    /// What it speaks of, from what tells most.
    pub about: Vec<About>,
    pub meaning: &'static str,
    /// Why it is harmless, unless an open incident says otherwise.
    pub harmless: Option<&'static str>,
    /// What the cause can be where no open incident has it.
    pub possible: Option<&'static str>,
    /// Kinds of the incidents by which kevtmon reports such a fault.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reported_as: Vec<&'static str>,
    /// The incident that explains it, open or closed.
    pub incident: Option<IncidentView>,
    /// Commands that show more; they only read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

/// Something that a line speaks of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct About {
    /// `pod`, `uid`, `container`, `path`, `interface`, `address`, `netns`, `image`, `task` or `server`.
    pub kind: &'static str,
    pub name: String,
}

/// Incidents that can explain lines.
#[derive(Debug)]
pub struct Known {
    candidates: Vec<Candidate>,
}

/// An incident, with its newest event.
#[derive(Debug)]
struct Candidate {
    view: IncidentView,
    event: Event,
    keys: BTreeSet<(Key, Role)>,
}

impl Known {
    /// Takes incidents, and reads their newest events: those have what the incidents are about.
    pub fn read(history: &dyn History, mut views: Vec<IncidentView>) -> Result<Self, HistoryError> {
        views.sort_by_key(|view| Reverse((view.is_open(), view.last_seen())));
        views.truncate(INCIDENTS);
        let mut wanted: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        for view in &views {
            wanted.entry(&view.boot_id).or_default().insert(view.seq);
        }
        let events = numbered(history, wanted)?.into_iter().map(|record| record.event);
        let mut events: BTreeMap<(String, u64), Event> =
            events.map(|event| ((event.boot_id.clone(), event.seq), event)).collect();
        let candidate = |view: IncidentView| {
            let event = events.remove(&(view.boot_id.clone(), view.seq)).unwrap_or_else(|| of_view(&view));
            let keys = keys(&event);
            Candidate { view, event, keys }
        };
        Ok(Self { candidates: views.into_iter().map(candidate).collect() })
    }

    /// What a line means here.
    pub fn explain(&self, line: &Line) -> Explanation {
        let incident = self.of_line(line);
        // Of one that nobody watches any more the advice is gone.
        let is_open = incident.is_some_and(|view| view.is_open() && view.stale.is_none());
        let (harmless, possible) = match line.form.otherwise {
            _ if is_open => (None, None),
            Otherwise::Harmless(text) => (Some(text), None),
            Otherwise::Possible(text) => (None, Some(text)),
        };
        let word = match incident {
            Some(view) => Some(view.incident.id.clone()),
            None => line.subjects.iter().find_map(Subject::word),
        };
        let why = word.filter(|_| harmless.is_none() || incident.is_some());
        let mut commands: Vec<String> =
            why.map(|word| format!("kevtmon why {}", quoted(&word))).into_iter().collect();
        if !is_open {
            commands.extend(line.form.commands.iter().filter_map(|command| filled(command, &line.subjects)));
        }
        let named = line.subjects.iter().filter(|subject| **subject != Subject::Node);
        Explanation {
            line: line.number,
            count: line.count,
            form: line.form.name,
            program: line.form.program,
            text: line.text.clone(),
            about: named.map(|subject| About { kind: subject.kind(), name: subject.name() }).collect(),
            meaning: line.form.meaning,
            harmless,
            possible,
            reported_as: line.form.kinds.to_vec(),
            incident: incident.cloned(),
            commands,
        }
    }

    /// The incident that explains a line: an open one, of the most direct kind; else the newest that is closed.
    fn of_line(&self, line: &Line) -> Option<&IncidentView> {
        let rank = |candidate: &&Candidate| {
            line.form.kinds.iter().position(|kind| **kind == candidate.view.incident.kind)
        };
        let of_subject = |subject: &Subject, is_open: bool| {
            // That the node had one once explains nothing that it says now.
            let is_of_time =
                |view: &IncidentView| view.is_open() == is_open && (is_open || *subject != Subject::Node);
            let concerned = self.candidates.iter().filter(|candidate| {
                is_of_time(&candidate.view) && rank(candidate).is_some() && candidate.concerns(subject, line)
            });
            let order = |candidate: &&Candidate| {
                let rank = is_open.then(|| Reverse(rank(candidate)));
                (rank, candidate.view.last_seen())
            };
            concerned.max_by_key(order).map(|candidate| &candidate.view)
        };
        let of_any = |is_open| line.subjects.iter().find_map(|subject| of_subject(subject, is_open));
        of_any(true).or_else(|| of_any(false))
    }
}

impl Candidate {
    /// Whether the incident happened to a subject of a line, and to nothing else that the line names.
    fn concerns(&self, subject: &Subject, line: &Line) -> bool {
        subject.is_affected(&self.view.incident.kind, &self.event, &self.keys)
            && !line.subjects.iter().any(|named| self.is_about_another(named))
    }

    /// Whether it happened to another volume or container of the same pod, or to another pod of the same name or address.
    fn is_about_another(&self, named: &Subject) -> bool {
        let kind = self.view.incident.kind.as_str();
        let is_of_container = kind == "container-undeletable";
        let target = self.event.target.as_deref();
        let pod = target.and_then(|target| target.confirmed_pod()).filter(|_| !OF_SEVERAL.contains(&kind));
        match named {
            Subject::Path(path) => {
                let Some(named) = volume::of_path(path) else { return false };
                let own = self.event.mount.as_deref().and_then(|mount| mount.volume.as_ref());
                is_of_container || own.is_some_and(|own| own.name != named.name)
            }
            Subject::Container(id) => {
                let own = target.and_then(|target| target.container.as_ref());
                is_of_container && own.is_some_and(|own| !own.id.starts_with(id.as_str()))
            }
            // That of a static pod is a hash, which its mirror in the API server has not.
            Subject::Uid(uid) => pod.is_some_and(|pod| pod.uid.contains('-') && pod.uid != *uid),
            Subject::Pod(name) => {
                let own = pod.and_then(|pod| pod.namespace.as_ref().zip(pod.name.as_ref()));
                own.is_some_and(|(namespace, own)| format!("{namespace}/{own}") != *name)
            }
            _ => false,
        }
    }
}

/// What an incident itself tells of what it is about, where its event is no longer kept.
fn of_view(view: &IncidentView) -> Event {
    Event {
        target: view.target.clone().map(Shared::new),
        leaks: view.leaks.clone(),
        ..Event::new(Kind::Unknown, view.incident.severity, String::new())
    }
}

/// A command with the name of a subject, if it takes one and there is such a one.
fn filled(command: &str, subjects: &[Subject]) -> Option<String> {
    let Some((before, rest)) = command.split_once('{') else { return Some(command.to_owned()) };
    let (kind, behind) = rest.split_once('}')?;
    let subject = subjects.iter().find(|subject| subject.kind() == kind)?;
    Some(format!("{before}{}{behind}", quoted(&subject.name())))
}

#[cfg(test)]
mod tests;
