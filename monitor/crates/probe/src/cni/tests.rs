use kevtmon_ebpf::exec::{KIND_ENVIRONMENT, KIND_EXEC};
use zerocopy::{FromZeros as _, IntoBytes as _};

use super::*;

const ID: &str = "94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94fe";
const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=lijiaob;K8S_POD_NAME=etcd1-0";

fn exec(len: usize) -> ExecRecord {
    let mut record = ExecRecord::new_zeroed();
    record.header.kind = KIND_EXEC;
    record.header.boot_ns = 77;
    (record.task.tgid, record.task.start_ns) = (7, 5);
    record.environment_len = len as u64;
    record.filename[..19].copy_from_slice(b"/opt/cni/bin/calico");
    record
}

/// The parts of an environment, as the programs send them.
fn parts(environment: &[u8]) -> Vec<EnvironmentRecord> {
    let chunks: Vec<&[u8]> = match environment {
        [] => vec![&[]],
        all => all.chunks(PART_CAPACITY).take(PARTS_MAX).collect(),
    };
    let part = |(index, chunk): (usize, &&[u8])| {
        let mut record = EnvironmentRecord::new_zeroed();
        record.header.kind = KIND_ENVIRONMENT;
        (record.tgid, record.start_ns) = (7, 5);
        record.offset = u32::try_from(index * PART_CAPACITY).unwrap();
        record.len = u32::try_from(chunk.len()).unwrap();
        record.is_last = u32::from(index + 1 == chunks.len());
        record.bytes[..chunk.len()].copy_from_slice(chunk);
        record
    };
    chunks.iter().enumerate().map(part).collect()
}

fn read(environment: &[u8]) -> Option<Fact> {
    let mut calls = PartialCalls::default();
    calls.begin(exec(environment.len()).as_bytes()).unwrap();
    let mut read: Vec<_> =
        parts(environment).iter().map(|part| calls.part(part.as_bytes()).unwrap()).collect();
    let last = read.pop().flatten();
    assert!(read.iter().all(Option::is_none) && calls.calls.is_empty());
    last.map(|(at, fact)| {
        assert_eq!(at, 77);
        fact
    })
}

fn environment(pairs: &[(&str, &str)]) -> Vec<u8> {
    pairs.iter().flat_map(|(name, value)| format!("{name}={value}\0").into_bytes()).collect()
}

fn call_of(pairs: &[(&str, &str)]) -> Option<CniExec> {
    match read(&environment(pairs)) {
        Some(Fact::CniExec(exec)) => Some(*exec),
        _ => None,
    }
}

#[test]
fn a_call_is_read_wherever_its_parts_are_cut_and_nothing_else_is_kept() {
    let filler = "s3cr3t".repeat(200);
    for before in 4000..4200 {
        let padding = "x".repeat(before);
        let pairs = [
            ("CNI_ARGS_TOKEN", filler.as_str()),
            ("PADDING", &padding),
            ("CNI_COMMAND", "DEL"),
            ("CNI_ARGS", ARGS),
            ("CNI", "s3cr3t"),
            ("CNI_CONTAINERID", ID),
            ("CNI_NETNS", ""),
            ("CNI_IFNAME", "eth0"),
            ("CNI_COMMAND", "ADD"),
        ];
        let exec = call_of(&pairs).unwrap();
        assert_eq!((exec.plugin.as_str(), exec.command), ("/opt/cni/bin/calico", CniCommand::Del));
        assert_eq!((exec.container_id.as_deref(), exec.netns.as_deref()), (Some(ID), None));
        assert_eq!(exec.ifname.as_deref(), Some("eth0"));
        let pod = CniPod { namespace: "lijiaob".into(), name: "etcd1-0".into(), uid: None };
        assert_eq!((exec.pod.clone(), exec.truncated), (Some(pod), false));
        assert!(!serde_json::to_string(&exec).unwrap().contains("s3cr3t"));
    }
}

#[test]
fn what_is_not_wanted_is_never_copied() {
    let mut environment = Environment::default();
    environment.read(b"TOKEN=s3cr3t\0CNI_ARGS_TOKEN=s3cr3t\0CNI_COMMANDO=s3cr3t\0CNI=s3cr3t\0CNI_NETN");
    environment.read(b"OTHER=s3cr3t");
    assert_eq!(environment.open.capacity(), VARIABLE_MAX, "only the beginning of a name");
    assert!(!environment.values.values().any(|value| value.contains("s3cr3t")));
    let mut environment = Environment::default();
    environment.read(b"CNI_ARGS_TOKEN=s3cr3t\0CNI_COMMANDO=s3cr3t\0CNI=s3cr3t\0API_TOKEN=s3cr3t");
    assert_eq!(environment.open.capacity(), 0, "nothing was copied");
    let mut environment = Environment::default();
    environment.read(b"TOKEN=s3cr3t\0CNI_ARGS=K8S_POD_NAME=a;TOKEN=s3c");
    assert_eq!(environment.open, b"CNI_ARGS=K8S_POD_NAME=a;TOKEN=s3c");
    environment.read(b"r3t\0CNI_COMMANDO=s3cr3t\0API");
    assert_eq!(environment.values.len(), 1);
    assert_eq!(environment.open, b"", "it can be none that is wanted");
    environment.read(b"_TOKEN_WITHOUT_END=s3cr3t");
    assert_eq!(environment.open, b"", "no byte of another variable's value");
    let mut secret = b"s3cr3t".to_vec();
    wipe(&mut secret);
    assert!(secret.is_empty());
}

#[test]
fn a_call_that_is_none_is_malformed_and_one_about_the_plugin_is_not_observed() {
    let good = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", ID), ("CNI_ARGS", ARGS)];
    let with = |name: &'static str, value: &'static str| {
        good.map(|(known, old)| if known == name { (name, value) } else { (known, old) })
    };
    assert!(call_of(&good).is_some());
    let long = format!("K8S_POD_NAMESPACE=a;K8S_POD_NAME={}", "b".repeat(254));
    let long: &'static str = Box::leak(long.into_boxed_str());
    for wrong in [
        with("CNI_COMMAND", ""),
        with("CNI_COMMAND", "REMOVE"),
        with("CNI_CONTAINERID", ""),
        with("CNI_CONTAINERID", "94feeebc95fb"),
        with("CNI_CONTAINERID", "ZZfeeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94fe"),
        with("CNI_ARGS", "IgnoreUnknown"),
        with("CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b/c"),
        with("CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_INFRA_CONTAINER_ID=c"),
        with("CNI_ARGS", long),
    ] {
        let fact = read(&environment(&wrong));
        assert!(matches!(&fact, Some(Fact::Malformed { source, count: 1 }) if source == SOURCE), "{wrong:?}");
    }
    assert!(matches!(read(b""), Some(Fact::Malformed { .. })));
    for about in ["VERSION", "STATUS"] {
        assert_eq!(read(&environment(&[("CNI_COMMAND", about), ("CNI_CONTAINERID", "")])), None);
    }
    assert_eq!(call_of(&[("CNI_COMMAND", "GC")]).unwrap().container_id, None);
    assert_eq!(call_of(&with("CNI_ARGS", "IgnoreUnknown=1;")).unwrap().pod, None);
}

#[test]
fn what_is_too_long_is_marked_and_a_lost_part_loses_the_call() {
    let padding = "x".repeat(PARTS_MAX * PART_CAPACITY);
    let first = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", ID)];
    let long = call_of(&[first[0], first[1], ("P", padding.as_str())]).unwrap();
    assert!(long.truncated);
    for order in [[first[0], ("P", &padding), first[1]], [("P", &padding), first[0], first[1]]] {
        let lost = read(&environment(&order));
        assert!(
            matches!(&lost, Some(Fact::Lost(loss)) if loss.reason == CUT),
            "{:?}",
            order.map(|(name, _)| name)
        );
    }
    let wrong = read(&environment(&[("CNI_COMMAND", "REMOVE"), first[1], ("P", &padding)]));
    assert!(matches!(wrong, Some(Fact::Malformed { .. })), "what it asks is there, and wrong");
    let mut calls = PartialCalls::default();
    let all = environment(&[first[0], ("P", &padding[..9000]), first[1]]);
    calls.begin(exec(all.len()).as_bytes()).unwrap();
    for (index, part) in parts(&all).iter().enumerate().filter(|(index, _)| *index != 1) {
        assert_eq!(calls.part(part.as_bytes()).unwrap(), None, "{index}");
    }
    assert!(calls.calls.is_empty());
}

#[test]
fn environments_that_do_not_end_are_bounded_and_what_is_dropped_of_them_is_lost() {
    let mut calls = PartialCalls::default();
    let mut begin = |tgid: u32, at: BootNs| {
        let mut record = exec(9000);
        (record.task.tgid, record.header.boot_ns) = (tgid, at);
        let lost = calls.begin(record.as_bytes()).unwrap();
        (calls.calls.len(), lost)
    };
    for tgid in 1..=64 {
        assert_eq!(begin(tgid, tgid.into()), (tgid as usize, None));
    }
    let lost = Fact::Lost(Loss { source: "bpf".into(), reason: TOO_MANY.into(), count: Some(1) });
    assert_eq!(begin(65, 65), (PARTIAL_MAX, Some((1, lost))));
    // The kernel has counted why those of long ago did not come to their end.
    assert_eq!(begin(66, 66 + PARTS_NS), (1, None));
}

#[test]
fn what_is_cut_off_or_follows_what_cannot_be_read_is_no_value() {
    let first = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", ID)];
    let filler =
        |to: usize, start: &str| "x".repeat(to - environment(&first).len() - "P=\0".len() - start.len());
    let padding = filler(PARTS_MAX * PART_CAPACITY, "CNI_ARGS=K8S_POD_NAMESPACE=a;K8S_POD_NAME=etcd");
    let args = ("CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=etcd1-0");
    let cut = call_of(&[first[0], first[1], ("P", &padding), args]).unwrap();
    assert!(cut.truncated && cut.pod.is_none(), "{cut:?}");
    let padding = filler(PART_CAPACITY, "CNI_NETNS=/proc/7");
    let netns = format!("/proc/7{}s3cr3t", "x".repeat(PART_CAPACITY));
    let all =
        environment(&[first[0], first[1], ("P", &padding), ("CNI_NETNS", &netns), ("CNI_IFNAME", "eth0")]);
    let (mut records, mut calls) = (parts(&all), PartialCalls::default());
    records[1].len = 0;
    calls.begin(exec(all.len()).as_bytes()).unwrap();
    let last = records.iter().filter_map(|part| calls.part(part.as_bytes()).unwrap()).last();
    let Some((_, Fact::CniExec(call))) = last else { panic!("{last:?}") };
    assert_eq!((call.netns.as_deref(), call.ifname.as_deref(), call.truncated), (None, Some("eth0"), true));
}
