//! What a line of a log means, as text.

use kevtmon_event::Incident;
use kevtmon_history::query::explain::Explanation;
use kevtmon_history::query::history::IncidentView;
use kevtmon_types::escape::name;

use super::incident::{confidence, course, headline};
use super::paragraph::Paragraphs;
use super::time::Clock;
use super::{Pretty, Style, escaped, severity_style};

/// The line, what it speaks of, what it means, and the incident behind it or what to do next.
pub fn text(explanation: &Explanation, pretty: &Pretty, clock: &Clock) -> String {
    let mut page = Paragraphs::new(pretty);
    let Explanation { line, count, form, program, meaning, .. } = explanation;
    let times = if *count > 1 { format!(", {count} times") } else { String::new() };
    page.line(&pretty.paint(Style::Bold, &format!("line {line}{times}: {form} ({program})")));
    page.put_behind(2, "> ", "> ", Some(Style::Dim), &escaped(&explanation.text));
    for about in &explanation.about {
        let label = format!("{:<9} ", about.kind);
        page.put_behind(2, &label, &pretty.paint(Style::Dim, &label), None, &name(&about.name));
    }
    page.put(2, None, meaning);
    match &explanation.incident {
        Some(view) => incident(&mut page, view, clock),
        None if explanation.about.is_empty() => {}
        None => page.put(2, None, "No incident is known of what it names."),
    }
    if let Some(harmless) = explanation.harmless {
        page.put(2, None, &format!("Harmless: {harmless}"));
    }
    if let Some(possible) = explanation.possible {
        page.put(2, None, possible);
        if !explanation.reported_as.is_empty() {
            page.put(2, None, &format!("kevtmon reports it as {}.", explanation.reported_as.join(", ")));
        }
    }
    explanation.commands.iter().for_each(|command| page.command(2, command));
    page.text
}

fn incident(page: &mut Paragraphs<'_>, view: &IncidentView, clock: &Clock) {
    let Incident { id, kind, severity, opened, closed, close_reason, summary, advice, .. } = &view.incident;
    let pretty = page.pretty;
    let (kind, sure) = (pretty.paint(Style::Bold, &escaped(kind)), confidence(view.incident.confidence));
    let severity = pretty.paint(severity_style(*severity), severity.name());
    page.line(&format!("  {kind}  {severity}, {sure}  [{}]", escaped(id)));
    let (closed, well_since) = (closed.as_deref(), view.well_since.as_deref());
    let set = view.incident.clock_set_ms;
    let course = course(opened, closed, *close_reason, well_since, view.stale.as_ref(), set, clock);
    page.put(4, Some(Style::Dim), &course);
    page.put(4, None, &headline(view.status(), summary));
    // The command that tells its story follows anyway.
    if let Some(step) = advice.iter().find(|step| !step.command.starts_with("kevtmon why ")) {
        page.advice(4, step);
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use kevtmon_history::query::explain::{Known, read};
    use kevtmon_history::query::history::History;

    use super::*;
    use crate::test_support::memory::{Memory, incident, time};

    fn shown(line: &str, memory: &Memory) -> String {
        let clock = Clock { now: "2026-01-02T03:05:00Z".parse().unwrap(), zone: TimeZone::UTC };
        let page = read(line);
        let known = Known::read(memory, memory.incidents(&page.incidents()).unwrap()).unwrap();
        let pretty = Pretty { colour: false, zone: TimeZone::UTC };
        page.lines.iter().map(|line| text(&known.explain(line), &pretty, &clock)).collect()
    }

    #[test]
    fn a_line_reads_well_with_an_incident_and_without() {
        let line = "[12345.678901] neighbour: arp_cache: neighbor table overflow!\n";
        let mut full = incident("full", 30);
        full.kind = "neighbor-table-full".into();
        full.summary = "the IPv4 table is full: scan\u{1b}[2J (pid 7) fills it".into();
        let with = shown(&line.repeat(2), &Memory::default().with_incident(full.clone()));
        assert_eq!(
            with,
            "line 1, 2 times: neighbor-table-overflow (kernel)\n  \
             > [12345.678901] neighbour: arp_cache: neighbor table overflow!\n  \
             The kernel has no room for a neighbor entry, so addresses are not resolved.\n  \
             neighbor-table-full  critical, certain  [full]\n    \
             open since 03:00:30 (4 min ago)\n    \
             the IPv4 table is full: scan\\x1b[2J (pid 7) fills it\n  \
             kevtmon why full\n"
        );
        full.closed = Some(time(60));
        let over = shown(line, &Memory::default().with_incident(full));
        let all = "  kevtmon incidents --all --kind neighbor-table-full\n";
        assert!(!over.contains("closed 03:01:00") && over.ends_with(all), "{over}");
        let without = shown("umount: /mnt/\u{202e}a: target is busy", &Memory::default());
        for words in
            ["path      \"/mnt/\\u{202e}a\"", "No incident is known", "kevtmon reports it as volume-busy, "]
        {
            assert!(without.contains(words), "{words}: {without}");
        }
        assert!(without.ends_with("  kevtmon holders $'/mnt/\\xe2\\x80\\xaea'\n"), "{without}");
        assert!(without.lines().all(|line| line.chars().count() <= 80), "{without}");
    }
}
