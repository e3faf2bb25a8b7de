//! What is known of the node, what of it a user looks at, and its screen.

use std::cmp::Reverse;
use std::time::Instant;

use jiff::Timestamp;
use kevtmon_event::wording::pod_label;
use kevtmon_event::{Event, Severity};
use kevtmon_history::query::doctor::DaemonReport;
use kevtmon_history::query::history::IncidentView;
use kevtmon_history::query::record::{Record, timestamp};
use kevtmon_history::query::why::Outcome;
use kevtmon_render::time::Clock;
use kevtmon_render::{Pretty, escaped, incident, story};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, List, ListState, Paragraph, Wrap};

use super::feed::Answer;
use super::rates::Rates;

/// What a user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    Up(u16),
    Down(u16),
    /// Show the story of the selected incident.
    Why,
    /// Leave the story.
    Back,
    Quit,
}

/// The story of an incident, as `why` prints it.
struct Story {
    id: String,
    text: String,
    /// The first line that is shown.
    first: u16,
}

/// The node, and what a user looks at.
pub(super) struct View {
    clock: Clock,
    started: Instant,
    report: Option<DaemonReport>,
    /// The worst first, and of those the newest.
    incidents: Vec<IncidentView>,
    selected: ListState,
    story: Option<Story>,
    kinds: Rates,
    pods: Rates,
    /// Since when the daemon does not answer, and why.
    fault: Option<(Timestamp, String)>,
}

impl View {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            started: Instant::now(),
            report: None,
            incidents: Vec::new(),
            selected: ListState::default(),
            story: None,
            kinds: Rates::default(),
            pods: Rates::default(),
            fault: None,
        }
    }

    pub(super) fn tick(&mut self, now: Timestamp) {
        self.clock.now = now;
        let second = self.started.elapsed().as_secs();
        self.kinds.advance(second);
        self.pods.advance(second);
    }

    /// Takes what the daemon sent; returns whether it means that the incidents changed.
    pub(super) fn update(&mut self, answer: Answer) -> bool {
        match answer {
            Answer::Event(record) => return self.count(*record),
            Answer::State(Ok((incidents, report))) => {
                self.fault = None;
                self.report = Some(report);
                self.set_incidents(incidents);
            }
            Answer::State(Err(reason)) => {
                let since = self.fault.take().map_or(self.clock.now, |(since, _)| since);
                self.fault = Some((since, reason));
            }
            Answer::Why(id, answer) => {
                // Another one may be shown by now.
                if self.story.as_ref().is_some_and(|story| story.id == id) {
                    self.set_story(match answer {
                        Ok(Outcome::Story(story)) => {
                            let plain = Pretty { colour: false, zone: self.clock.zone.clone() };
                            story::text(&story, &plain, &self.clock)
                        }
                        Ok(Outcome::Ambiguous(_) | Outcome::Unknown(_)) => {
                            format!("nothing is known of incident {}", escaped(&id))
                        }
                        Err(reason) => escaped(&reason),
                    });
                }
            }
        }
        false
    }

    fn count(&mut self, record: Record) -> bool {
        let second = self.started.elapsed().as_secs();
        if let Some(pod) = pod(&record.event) {
            self.pods.count(second, pod);
        }
        let changes = record.kind.starts_with("incident.") || record.kind.starts_with("daemon.");
        self.kinds.count(second, record.kind);
        changes
    }

    /// Of all open incidents. The selected one stays selected.
    fn set_incidents(&mut self, mut incidents: Vec<IncidentView>) {
        let selected = self.selected().map(IncidentView::episode);
        incidents.sort_by_cached_key(|view| {
            let opened = timestamp(&view.incident.opened);
            (Reverse(view.incident.severity), Reverse(opened), view.incident.id.clone())
        });
        let same = incidents.iter().position(|view| Some(view.episode()) == selected);
        let nearest = self.selected.selected().unwrap_or_default().min(incidents.len().saturating_sub(1));
        self.selected.select((!incidents.is_empty()).then_some(same.unwrap_or(nearest)));
        self.incidents = incidents;
    }

    fn selected(&self) -> Option<&IncidentView> {
        self.incidents.get(self.selected.selected()?)
    }

    /// Shows this in place of what is shown of the story.
    pub(super) fn set_story(&mut self, text: String) {
        if let Some(story) = &mut self.story {
            story.text = text;
        }
    }

    /// What a key does; returns the incident that is to be queried.
    pub(super) fn press(&mut self, input: Input) -> Option<String> {
        let last = self.incidents.len().saturating_sub(1);
        match (input, &mut self.story) {
            (Input::Up(lines), Some(story)) => story.first = story.first.saturating_sub(lines),
            (Input::Down(lines), Some(story)) => {
                let last = u16::try_from(story.text.lines().count()).unwrap_or(u16::MAX).saturating_sub(1);
                story.first = story.first.saturating_add(lines).min(last);
            }
            (Input::Up(lines), None) => self.selected.scroll_up_by(lines),
            (Input::Down(lines), None) => {
                let at = self.selected.selected().unwrap_or_default() + usize::from(lines);
                self.selected.select((!self.incidents.is_empty()).then_some(at.min(last)));
            }
            (Input::Why, None) => {
                let id = self.selected()?.incident.id.clone();
                let text = format!("querying incident {} …", escaped(&id));
                self.story = Some(Story { id: id.clone(), text, first: 0 });
                return Some(id);
            }
            (Input::Back, _) => self.story = None,
            (Input::Why, Some(_)) | (Input::Quit, _) => {}
        }
        None
    }

    /// Draws the screen.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [body, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(self.foot(), foot);
        if let Some(story) = &self.story {
            frame.render_widget(Paragraph::new(story.text.as_str()).scroll((story.first, 0)), body);
            return;
        }
        let [head, incidents, detail, below] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(4),
            Constraint::Length(5),
            Constraint::Length(6),
        ])
        .spacing(1)
        .areas(body);
        let [kinds, pods, sources] = Layout::horizontal([Constraint::Fill(1); 3]).spacing(2).areas(below);
        frame.render_widget(self.head(), head);
        self.draw_incidents(frame, incidents);
        frame.render_widget(self.detail(), detail);
        for (title, rates, area) in [("Events/min", &self.kinds, kinds), ("By pod", &self.pods, pods)] {
            let width = usize::from(area.width);
            let lines = rates.top(usize::from(area.height)).into_iter().map(|(name, count)| {
                let count = count.to_string();
                let name: String =
                    escaped(name).chars().take(width.saturating_sub(count.len() + 1)).collect();
                Line::raw(format!("{name:<0$}{count}", width.saturating_sub(count.len())))
            });
            frame.render_widget(Paragraph::new(Text::from_iter(lines)).block(titled(title.to_owned())), area);
        }
        frame.render_widget(self.sources(), sources);
    }

    fn head(&self) -> Line<'static> {
        let Some(report) = &self.report else { return Line::raw("kevtmon") };
        let rest = format!(
            " at {}, kevtmon {}{}",
            self.clock.local(self.clock.now),
            escaped(&report.version),
            if report.ready { "" } else { ", not ready yet" }
        );
        Line::from(vec![format!("node {}", escaped(&report.node)).bold(), Span::raw(rest)])
    }

    fn draw_incidents(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let past = if self.fault.is_some() { ", as of the last answer" } else { "" };
        let title = match (&self.report, self.incidents.len()) {
            (None, _) => String::new(),
            (_, 0) => format!("No open incidents{past}"),
            (_, open) => format!("Open incidents ({open}){past}"),
        };
        let lines = self.incidents.iter().map(|view| {
            let incident = &view.incident;
            Line::from(vec![
                Span::styled(format!("{:<8} ", incident.severity.name()), colour(incident.severity)),
                format!("{:<10} ", kevtmon_render::time::age(timestamp(&incident.opened), self.clock.now))
                    .dim(),
                Span::raw(incident::headline(view.status(), &incident.summary)),
            ])
        });
        let list = List::new(lines).block(titled(title)).highlight_symbol("> ");
        frame.render_stateful_widget(list, area, &mut self.selected);
    }

    /// The sentence of the selected incident, and the first step.
    fn detail(&self) -> Paragraph<'static> {
        let Some(view) = self.selected() else { return Paragraph::default() };
        let mut text = Text::raw(incident::headline(view.status(), &view.incident.summary));
        if let Some(advice) = view.incident.advice.first() {
            text.push_line(Line::from(vec!["next: ".bold(), Span::raw(escaped(&advice.command))]));
        }
        let title =
            format!("{}, {}", escaped(&view.incident.kind), incident::confidence(view.incident.confidence));
        Paragraph::new(text).wrap(Wrap { trim: true }).block(titled(title))
    }

    /// How many sources work, and those that do not.
    fn sources(&self) -> Paragraph<'static> {
        let sources = self.report.iter().flat_map(|report| &report.sources);
        let present = sources.filter(|source| source.up || !(source.absent || source.vacant));
        let (up, down): (Vec<_>, Vec<_>) = present.partition(|source| source.up);
        let failed = down.iter().map(|source| (*source, Color::Red));
        let degraded =
            up.iter().filter(|source| source.reason.is_some()).map(|source| (*source, Color::Yellow));
        let lines = failed.chain(degraded).map(|(source, colour)| {
            let reason = source.reason.as_deref().unwrap_or("down");
            Line::styled(format!("{}: {}", escaped(&source.source), escaped(reason)), colour)
        });
        let title = format!("Sources: {} up, {} down", up.len(), down.len());
        Paragraph::new(Text::from_iter(lines)).block(titled(title))
    }

    fn foot(&self) -> Line<'static> {
        match &self.fault {
            Some((since, reason)) => {
                let since = self.clock.local(*since);
                Line::raw(format!("no answer since {since}: {}", escaped(reason))).red().bold()
            }
            None if self.story.is_some() => Line::raw("Esc back  ↑↓ scroll  q quit").dim(),
            None => Line::raw("↑↓ select  Enter why  q quit").dim(),
        }
    }
}

fn titled(title: String) -> Block<'static> {
    Block::new().title_top(Line::raw(title).bold()).title_style(Modifier::BOLD)
}

fn colour(severity: Severity) -> Style {
    match severity {
        Severity::Debug | Severity::Info => Style::new().dim(),
        Severity::Notice => Style::new().cyan(),
        Severity::Warning => Style::new().yellow(),
        Severity::Critical => Style::new().red().bold(),
    }
}

/// The pod that an event is about, else that of who did it.
fn pod(event: &Event) -> Option<String> {
    let target = event.target.as_ref().and_then(|target| target.pod.as_ref());
    let pod = target.or_else(|| event.actor.as_ref().and_then(|actor| actor.pod.as_ref()))?;
    Some(if pod.claimed { format!("{} (claimed)", pod_label(pod)) } else { pod_label(pod) })
}

#[cfg(test)]
mod tests;
