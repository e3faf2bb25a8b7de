//! An incident that is over: what was wrong, and what was not, is told in the past tense.

use super::Incident;

/// What summaries say in the present tense, and the same in the past tense. The longer phrase stands before a shorter
/// one that it contains.
const TENSES: [(&str, &str); 117] = [
    (
        " the host has lost its default route, which is likely why",
        " the host had lost its default route, which was likely why",
    ),
    ("no process is behind it", "no process was behind it"),
    (
        " the host forwards nothing (net.ipv4.ip_forward is 0)",
        " the host forwarded nothing (net.ipv4.ip_forward was 0)",
    ),
    (" is no longer reserved for ", " was no longer reserved for "),
    (" may give it to another pod", " was free to give it to another pod"),
    (" has reserved address ", " had reserved address "),
    (
        " was asked for on this node, is not mapped by this node's kernel, and was refused ",
        " was asked for on this node, was not mapped by this node's kernel, and was refused ",
    ),
    (", which names the client at ", ", which named the client at "),
    (" is not mapped on this node, though lock ", " was not mapped on this node, though lock "),
    (" and has not been removed here for ", " and had not been removed here for "),
    (" is still mapped as ", " was still mapped as "),
    (", though no pod has used it for ", ", though no pod had used it for "),
    ("; it is mounted in ", "; it was mounted in "),
    (" is still mounted, though ", " was still mounted, though "),
    (" is still on this node, though ", " was still on this node, though "),
    (" is still on this node: ", " was still on this node: "),
    (" of this node both have the address ", " of this node both had the address "),
    (" of this node all have the address ", " of this node all had the address "),
    ("no pod that runs here has it", "no pod that ran here had it"),
    ("its pod is gone", "its pod was gone"),
    (" has another network namespace", " had another network namespace"),
    ("both of its ends are in ", "both of its ends were in "),
    (", its other end is in ", ", its other end was in "),
    ("this node cannot reach ", "this node could not reach "),
    ("this node has no route to ", "this node had no route to "),
    (": no route matches", ": no route matched"),
    (" route discards packets", " route discarded packets"),
    (" route refuses packets", " route refused packets"),
    (": packets take the default route by ", ": packets took the default route by "),
    (" is down", " was down"),
    ("; ARP is off on ", "; ARP was off on "),
    (" is off on its host end ", " was off on its host end "),
    (" in the pod lacks that address", " in the pod lacked that address"),
    (" has run for ", " had run for "),
    ("and why is not known", "and why was not known"),
    (" does not end: ", " did not end: "),
    (" is to end (SIGKILL) and does not", " was to end (SIGKILL) and did not"),
    (", as it waits in the kernel", ", as it waited in the kernel"),
    (", as other threads of it do not", ", as other threads of it did not"),
    (" is left of it, and waits in the kernel", " was left of it, and waited in the kernel"),
    (" is left of it", " was left of it"),
    ("a process is left in its control group", "a process was left in its control group"),
    (" fails again and again", " failed again and again"),
    (") is not empty, though nothing is mounted there", ") was not empty, though nothing was mounted there"),
    (") is mounted", ") was mounted"),
    (" was found that uses it", " was found that used it"),
    (", though the host does not have ", ", though the host did not have "),
    (", though the host has unmounted ", ", though the host had unmounted "),
    (" still has ", " still had "),
    (" stays in use for that", " stayed in use for that"),
    ("; its file server is not told to end", "; its file server was not told to end"),
    (" more that is likely such", " more that was likely such"),
    (" more that are likely such", " more that were likely such"),
    ("; its file system lives on for that", "; its file system lived on for that"),
    (" refuses to remove its directory ", " refused to remove its directory "),
    (" is still there without its sandbox ", " was still there without its sandbox "),
    (
        ", of which there is a checkpoint: with that, a kubelet can start and clean up",
        ", of which there was a checkpoint",
    ),
    (
        " cannot start while it is there, others can; the ",
        " could not start while it was there, others could; the ",
    ),
    (" cannot start while it is there", " could not start while it was there"),
    (" can start all the same", " could start all the same"),
    (", which is not its current sandbox,", ", which was not its current sandbox,"),
    ("; a retry may take the network", "; a retry could have taken the network"),
    (" has lost its gateway ", " had lost its gateway "),
    (" cannot reach its gateway ", " could not reach its gateway "),
    (": nothing answers its ", ": nothing answered its "),
    (" is gone, and nobody was seen removing it", " was gone, and nobody was seen removing it"),
    (" is gone; who removed it was not found out", " was gone; who removed it was not found out"),
    (" is gone together with ", " was gone together with "),
    (" is missing, though ", " was missing, though "),
    (" interface have one", " interface had one"),
    (" points to ", " pointed to "),
    (" is reached by ", " was reached by "),
    (" is no port of it", " was no port of it"),
    (" is no port of ", " was no port of "),
    (", which has the gateway's address", ", which had the gateway's address"),
    ("what held it is not known", "what held it was not known"),
    ("the version of the kubelet is not known", "the version of the kubelet was not known"),
    ("; whether there is one could not be read", "; whether there was one could not be read"),
    (" and is still held by ", " and was still held by "),
    (", and its file system is still mounted in ", ", and its file system was still mounted in "),
    ("what is likely ", "what was likely "),
    (" cannot be unmounted", " could not be unmounted"),
    (" cannot be removed", " could not be removed"),
    (" cannot be renamed", " could not be renamed"),
    (": held by ", ": it was held by "),
    (" could not be removed, and is dead", " could not be removed, and was dead"),
    (": what is in the way was not found", ": what was in the way was not found"),
    (": what was in the way is likely gone", ": what had been in the way was likely gone"),
    (": what was in the way is gone", ": what had been in the way was gone"),
    (" is being removed, and is still there", " was being removed, and was still there"),
    (" has ended and could not be removed", " had ended and could not be removed"),
    (" a file system is mounted there", " a file system was mounted there"),
    (" a file system is mounted on the same directory", " a file system was mounted on the same directory"),
    (", which serves a volume of ", ", which served a volume of "),
    (", which likely serves a volume of ", ", which likely served a volume of "),
    ("another file system is mounted below it", "another file system was mounted below it"),
    ("; possibly it is held by ", "; possibly it was held by "),
    (", whose backing file is ", ", whose backing file was "),
    (": no process was found to hold it, so the kernel or a socket may", ": no process was found to hold it"),
    (
        ": the kernel does, or a pending call, or somebody now and then",
        ": the kernel did, or a pending call, or somebody now and then",
    ),
    (": whoever held it has let go", ": whoever held it had let go"),
    (
        "; no process is in that mount namespace any more, but an open file or a mount keeps it",
        "; no process was in that mount namespace any more, but an open file or a mount kept it",
    ),
    ("; a copy is also mounted in ", "; a copy was also mounted in "),
    (", which alone refuses nothing", ", which alone refused nothing"),
    (" claims to be pod ", " claimed to be pod "),
    (" (claims to be pod ", " (claimed to be pod "),
    (" are created again and again", " were created again and again"),
    ("; the runtime says ", "; the runtime said "),
    ("the kubelet ends again and again ", "the kubelet ended again and again "),
    (": busy", ": it was busy"),
    (" waits in the kernel", " waited in the kernel"),
    (" and has not ended after ", " and had not ended after "),
    (" is stopped", " was stopped"),
    (" is running", " was running"),
    (" processes that may serve it do not run: ", " processes that may have served it did not run: "),
    (" processes that may serve it, ", " processes that may have served it, "),
    (" is held by a tracer", " was held by a tracer"),
];

/// What is added to a summary where an unmount succeeded that may have ended it; the reason follows.
pub(crate) const UNDETERMINED: &str =
    "; an unmount there has succeeded since, and whether it is gone is not known";
const WAS_UNDETERMINED: &str = "; an unmount there had succeeded, and whether it was gone was not known";

/// The same of what was checked and found healthy.
const HEALTHY: [(&str, &str); 19] = [
    (" has it reserved for ", " had it reserved for "),
    ("none of its volumes is mounted", "none of its volumes was mounted"),
    ("no process is in ", "no process was in "),
    ("no container of any runtime is in ", "no container of any runtime was in "),
    ("no container of its pod is in ", "no container of its pod was in "),
    ("neither is in ", "neither was in "),
    (" has the address ", " had the address "),
    ("no other pod of this node has ", "no other pod of this node had "),
    (" has succeeded", " had succeeded"),
    (" is refused for it alone", " was refused for it alone"),
    (" is up", " was up"),
    (" is on for its host end ", " was on for its host end "),
    (" is not stopped", " was not stopped"),
    (" is in place", " was in place"),
    (" are the same", " were the same"),
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
    match summary.split_once(UNDETERMINED) {
        // Why it was not known is told of that moment.
        Some((before, _)) => replaced(before, &TENSES) + WAS_UNDETERMINED,
        None => replaced(summary, &TENSES),
    }
}

/// Replaces phrases, but not within a name: one that looks like a sentence is quoted.
fn replaced(text: &str, phrases: &[(&str, &str)]) -> String {
    let told = |part: &str| {
        phrases.iter().fold(part.to_owned(), |text, (present, past)| text.replace(present, past))
    };
    parts(text).map(|(part, is_quoted)| if is_quoted { part.to_owned() } else { told(part) }).collect()
}

/// What is within quotes, which belong to it, and what is not.
fn parts(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let is_quoted = rest.starts_with('"');
        let mut is_escaped = false;
        let end = rest.char_indices().skip(usize::from(is_quoted)).find(|(_, c)| {
            let is_end = *c == '"' && !is_escaped;
            is_escaped = is_quoted && *c == '\\' && !is_escaped;
            is_end
        });
        let end = end.map_or(rest.len(), |(end, _)| end + usize::from(is_quoted));
        let (part, after) = rest.split_at(end);
        rest = after;
        (!part.is_empty()).then_some((part, is_quoted))
    })
}

/// Words that end as verbs in the present tense do, and are none.
#[cfg(test)]
const NO_VERBS: &[&str] = &[
    "access",
    "address",
    "always",
    "as",
    "attempts",
    "because",
    "containers",
    "copies",
    "descriptors",
    "ends",
    "entries",
    "glusterfs",
    "hashes",
    "holders",
    "hours",
    "images",
    "interfaces",
    "kubelets",
    "its",
    "kubernetes",
    "less",
    "links",
    "looks",
    "means",
    "minutes",
    "mounts",
    "namespaces",
    "others",
    "packets",
    "pods",
    "ports",
    "process",
    "processes",
    "requests",
    "routes",
    "sandboxes",
    "seconds",
    "this",
    "times",
    "unless",
    "users",
    "volumes",
    "was",
];

/// The words of a sentence, outside of quotes, that look like verbs in the present tense.
#[cfg(test)]
pub(crate) fn present(text: &str) -> Vec<&str> {
    const ALWAYS: &[&str] = &["is", "are", "has", "have", "can", "cannot", "may", "do", "does"];
    let words = parts(text).filter(|(_, is_quoted)| !is_quoted).flat_map(|(part, _)| part.split(' '));
    let words = words.map(|word| word.trim_matches(|c: char| ",;:.()".contains(c)));
    let is_verb = |word: &&str| {
        let looks_like_one = word.len() > 2
            && word.ends_with('s')
            && word.chars().all(|c| c.is_ascii_lowercase())
            && !NO_VERBS.contains(word);
        ALWAYS.contains(word) || looks_like_one
    };
    words.filter(is_verb).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::wording::holders_phrase;
    use crate::event::{MountHolder, Serves};
    use crate::observation::{Access, LoopDevice, Verdict};
    use crate::tests::sample;

    #[test]
    fn a_verb_in_the_present_tense_is_noticed() {
        for (text, expected) in [
            ("pod a/b blocks its gateway", &["blocks"][..]),
            ("the entry is gone, and others have one", &["is", "have"]),
            (r#"calico of "what is \" has this" was seen in times of requests"#, &[]),
        ] {
            assert_eq!(present(text), expected, "{text}");
        }
    }

    #[test]
    fn a_name_that_looks_like_a_sentence_is_left_as_it_is() {
        let text =
            r#"namespace "x is up \" has lost its gateway y" has lost its gateway 10.0.0.1: "is gone""#;
        let expected =
            r#"namespace "x is up \" has lost its gateway y" had lost its gateway 10.0.0.1: "is gone""#;
        assert_eq!(past(text), expected);
    }

    #[test]
    fn whatever_is_said_of_holders_has_a_past_tense() {
        let held = sample::busy().holders.unwrap();
        let serves = |holder: &MountHolder| {
            let pod = held.iter().find_map(|holder| holder.pod.clone()).unwrap();
            let mountpoint = "/v".to_owned();
            MountHolder { serves: Some(Serves { mountpoint, pod, confidence: None }), ..holder.clone() }
        };
        let copy = MountHolder { access: Access::Mount, ..held[0].clone() };
        let possible = |access| MountHolder { possible: true, access, path: None, ..held[0].clone() };
        let device = LoopDevice { mounts: vec!["/m".into()], ..sample::loop_device("/dev/loop0") };
        let of_kernel =
            MountHolder { pid: 0, access: Access::Loop, loop_device: Some(device), ..held[0].clone() };
        let all = [
            vec![],
            held.clone(),
            vec![serves(&held[0])],
            vec![copy.clone()],
            vec![copy.clone(), copy],
            vec![possible(Access::InFlight)],
            vec![possible(Access::IoUring)],
            vec![possible(Access::Call)],
            vec![possible(Access::PerfEvent)],
            vec![of_kernel],
        ];
        for verdict in [
            Verdict::Processes,
            Verdict::MountNamespace,
            Verdict::ChildMount,
            Verdict::Kernel,
            Verdict::Transient,
            Verdict::None,
            Verdict::NotAMount,
            Verdict::Skipped,
            Verdict::Incomplete,
        ] {
            for holders in &all {
                let phrase = holders_phrase(holders, verdict);
                let text = past(&format!("volume v of pod a/b cannot be unmounted by kubelet: {phrase}"));
                assert_eq!(present(&text), [""; 0], "{text}");
            }
        }
    }

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
