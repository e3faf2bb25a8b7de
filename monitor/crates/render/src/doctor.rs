//! The report of `doctor`: a line for each part, below it why it is not better, what is lost, how to get it.

use kevtmon_history::query::doctor::{Condition, DoctorReport, Part, Step};

use super::{Pretty, Style, escaped, wrap};

/// Where the second column begins.
const STATE: usize = 18;
/// Where the text begins.
const TEXT: usize = 28;

pub fn text(report: &DoctorReport, pretty: &Pretty) -> String {
    let verdict = match report.works {
        true => "all that is required works",
        false if report.is_starting() => "the daemon is still starting",
        false => "something that is required does not work",
    };
    let head = format!("kevtmon {}: {verdict}", report.version);
    let mut lines = vec![pretty.paint(Style::Bold, &escaped(&head))];
    for part in &report.parts {
        lines.extend(part_lines(part, pretty));
    }
    if !report.self_test.is_empty() {
        lines.push(String::new());
        lines.push(pretty.paint(Style::Bold, "self-test"));
        report.self_test.iter().for_each(|step| lines.extend(step_lines(step, pretty)));
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn part_lines(part: &Part, pretty: &Pretty) -> Vec<String> {
    let attach_mode = part.attach_mode.as_ref().map(|attach_mode| format!("by {attach_mode}"));
    let said: Vec<String> = attach_mode.into_iter().chain(part.found.clone()).collect();
    let said = said.join(", ");
    let mut lines = Vec::new();
    let state = part.state.name();
    let head = format!("{:width$}", wrap::shortened(&escaped(&part.name), STATE - 2), width = STATE);
    let state =
        format!("{}{}", pretty.paint(style(part.state), state), " ".repeat(TEXT - STATE - state.len()));
    let mut text = wrap::lines(&escaped(&said), TEXT, TEXT).into_iter();
    lines.push(format!("{head}{state}{}", text.next().unwrap_or_default()));
    lines.extend(text.map(|line| format!("{:TEXT$}{line}", "")));
    for (label, text) in [("why", &part.reason), ("lost", &part.lost), ("get it", &part.remedy)] {
        let Some(text) = text else { continue };
        let mut label = label;
        for line in wrap::lines(&escaped(text), TEXT, TEXT) {
            lines.push(format!("{:STATE$}{label:width$}{line}", "", width = TEXT - STATE));
            label = "";
        }
    }
    lines
}

fn step_lines(step: &Step, pretty: &Pretty) -> Vec<String> {
    let verdict = match step.passed {
        true => pretty.paint(Style::Dim, "passed"),
        false => pretty.paint(Style::Red, "failed"),
    };
    let took =
        step.ms.filter(|_| step.seq.is_some()).map_or_else(String::new, |ms| format!(", after {ms} ms"));
    let mut lines = vec![format!("  {verdict}  {}{took}", escaped(&step.what))];
    lines.extend(
        wrap::lines(&escaped(&step.outcome), 10, 10).into_iter().map(|line| format!("{:10}{line}", "")),
    );
    lines
}

fn style(state: Condition) -> Style {
    match state {
        Condition::Ok | Condition::Absent => Style::Dim,
        Condition::Unknown => Style::Cyan,
        Condition::Degraded => Style::Yellow,
        Condition::Failed => Style::Red,
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    fn plain() -> Pretty {
        Pretty { colour: false, zone: TimeZone::UTC }
    }

    fn report(parts: Vec<Part>) -> DoctorReport {
        DoctorReport { works: true, version: "1 (a)".into(), daemon: None, parts, self_test: Vec::new() }
    }

    #[test]
    fn a_part_that_works_is_one_line() {
        let part = Part { attach_mode: Some("tp_btf".into()), ..Part::new("hook.neighbor", Condition::Ok) };
        assert_eq!(
            text(&report(vec![part, Part::ok("kernel", "Linux 6.1")]), &plain()),
            "kevtmon 1 (a): all that is required works\n\
             hook.neighbor     ok        by tp_btf\n\
             kernel            ok        Linux 6.1\n"
        );
    }

    #[test]
    fn below_one_that_does_not_is_why_what_is_lost_and_how_to_get_it() {
        let part =
            Part::new("hook.link", Condition::Failed).because("qdisc_reset: EPERM", "names", "CAP_BPF");
        assert_eq!(
            text(&report(vec![part]), &plain()),
            "kevtmon 1 (a): all that is required works\n\
             hook.link         failed\n                  \
             why       qdisc_reset: EPERM\n                  \
             lost      names\n                  \
             get it    CAP_BPF\n"
        );
    }

    #[test]
    fn lines_fit_and_nothing_controls_the_terminal() {
        let long = "a long reason \x1b[31m of a kernel that refuses much ".repeat(6);
        let part = Part::new(format!("docker:/{}", "x".repeat(90)), Condition::Degraded);
        let steps = vec![Step {
            what: "be refused".into(),
            passed: false,
            seq: None,
            named: None,
            ms: Some(3),
            outcome: long.clone(),
        }];
        let report = DoctorReport { self_test: steps, ..report(vec![part.because(&long, &long, &long)]) };
        let text = text(&report, &plain());
        assert!(text.lines().all(|line| line.chars().count() <= wrap::WIDTH), "{text}");
        assert!(!text.contains('\x1b') && text.contains("\\x1b"), "{text}");
        assert!(text.contains("  failed  be refused\n"), "{text}");
    }

    #[test]
    fn a_step_tells_how_long_its_event_took() {
        let step = Step {
            what: "delete".into(),
            passed: true,
            seq: Some(3),
            named: Some(true),
            ms: Some(12),
            outcome: "deleted by x".into(),
        };
        let text = text(&DoctorReport { self_test: vec![step], ..report(Vec::new()) }, &plain());
        assert!(
            text.ends_with("\nself-test\n  passed  delete, after 12 ms\n          deleted by x\n"),
            "{text}"
        );
    }
}
