//! An incident that is over: what was wrong, and what was not, is told in the past tense.

use super::Incident;

/// What summaries say in the present tense, and the same in the past tense. The longer phrase stands before a shorter
/// one that it contains.
const TENSES: [(&str, &str); 18] = [
    (" has lost its gateway ", " had lost its gateway "),
    (" cannot reach its gateway ", " could not reach its gateway "),
    (": nothing answers its ", ": nothing answered its "),
    (" is gone, and nobody was seen removing it", " was gone, and nobody was seen removing it"),
    (" is missing, though ", " was missing, though "),
    (" interface have one", " interface had one"),
    (" points to ", " pointed to "),
    (" is reached by ", " was reached by "),
    (" is no port of it", " was no port of it"),
    (" is no port of ", " was no port of "),
    (" cannot be unmounted", " could not be unmounted"),
    (": held by ", ": it was held by "),
    (", which serves a volume of ", ", which served a volume of "),
    (", which likely serves a volume of ", ", which likely served a volume of "),
    (": another file system is mounted below it", ": another file system was mounted below it"),
    (": no process was found to hold it, so the kernel or a socket may", ": no process was found to hold it"),
    (" claims to be pod ", " claimed to be pod "),
    (": busy", ": it was busy"),
];

/// The same of what was checked and found healthy.
const HEALTHY: [(&str, &str); 6] = [
    (" is up", " was up"),
    (" is in place", " was in place"),
    (" still has the MAC address ", " still had the MAC address "),
    ("nothing is mounted below it", "nothing was mounted below it"),
    ("no other mount namespace has a copy of it", "no other mount namespace had a copy of it"),
    ("no process has a file, directory", "no process had a file, directory"),
];

/// Tells an incident in the past tense, without advice: what was to be done about it was for the state that has ended.
pub(crate) fn end(incident: &mut Incident) {
    incident.advice.clear();
    incident.summary = past(&incident.summary);
    for healthy in &mut incident.ruled_out {
        *healthy = replaced(healthy, &HEALTHY);
    }
}

/// A summary in the past tense.
pub(crate) fn past(summary: &str) -> String {
    replaced(summary, &TENSES)
}

fn replaced(text: &str, phrases: &[(&str, &str)]) -> String {
    phrases.iter().fold(text.to_owned(), |text, (present, past)| text.replace(present, past))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_wrong_is_told_in_the_past_tense_once() {
        for (present, expected) in [
            (
                "pod a/b has lost its gateway 10.0.0.1: its static ARP entry on eth0 was deleted by ip (pid 7)",
                "pod a/b had lost its gateway 10.0.0.1: its static ARP entry on eth0 was deleted by ip (pid 7)",
            ),
            (
                "pod a/b cannot reach its gateway fe80::1: nothing answers its neighbor requests on eth0",
                "pod a/b could not reach its gateway fe80::1: nothing answered its neighbor requests on eth0",
            ),
            (
                "volume v (p) of pod a/b cannot be unmounted by kubelet: held by etcd (pid 7) with an open file, \
                 which serves a volume of pod c/d",
                "volume v (p) of pod a/b could not be unmounted by kubelet: it was held by etcd (pid 7) with an open \
                 file, which served a volume of pod c/d",
            ),
        ] {
            assert_eq!(past(present), expected);
            assert_eq!(past(expected), expected);
        }
    }

    #[test]
    fn what_was_found_healthy_is_told_in_the_past_tense_too() {
        let mut incident = Incident {
            ruled_out: [
                "eth0 is up",
                "the default route via 10.0.0.1 is in place",
                "its host end cali1 is up",
                "cali1 still has the MAC address ee:ee:ee:ee:ee:ee of the entry",
                "nothing is mounted below it",
                "no other mount namespace has a copy of it",
                "no process has a file, directory or program of it open",
            ]
            .map(str::to_owned)
            .into(),
            ..crate::tests::history::incident("a", 1)
        };
        end(&mut incident);
        let once = incident.ruled_out.clone();
        assert!(once.iter().all(|text| text.contains(" was ") || text.contains(" had ")), "{once:?}");
        assert!(!once.iter().any(|text| text.contains(" is ") || text.contains(" has ")), "{once:?}");
        end(&mut incident);
        assert_eq!(incident.ruled_out, once);
    }
}
