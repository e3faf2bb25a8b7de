use kevtmon_ebpf::exec::{ARGUMENTS_CAPACITY, KIND_RBD};
use zerocopy::{FromZeros as _, IntoBytes as _};

use super::*;
use crate::Decoder;

fn record(arguments: &[u8]) -> CommandRecord {
    let mut record = CommandRecord::new_zeroed();
    record.header.kind = KIND_RBD;
    record.header.boot_ns = 77;
    (record.task.tgid, record.task.start_ns) = (7, 5);
    record.arguments_len = arguments.len() as u64;
    let len = arguments.len().min(ARGUMENTS_CAPACITY);
    record.arguments[..len].copy_from_slice(&arguments[..len]);
    record.len = u32::try_from(len).unwrap();
    record
}

fn decoded(record: &CommandRecord) -> Option<Fact> {
    let observed = Decoder::new(1).record(record.as_bytes()).unwrap()?;
    assert_eq!(observed.at, 77);
    Some(observed.fact)
}

fn arguments(line: &str) -> Vec<u8> {
    line.split(' ').flat_map(|word| format!("{word}\0").into_bytes()).collect()
}

/// What a command line asks for, as `COMMAND POOL/NAMESPACE/IMAGE@SNAPSHOT LOCK`; `-` if it is another one, `?` if it is not
/// understood.
fn shown(line: &str) -> String {
    match decoded(&record(&arguments(line))) {
        None => "-".to_owned(),
        Some(Fact::RbdExec(exec)) => {
            assert_eq!((exec.actor.key.tgid, exec.actor.key.start_ns), (7, 5));
            let part = |name: &Option<String>, before: &str, after: &str| {
                name.as_ref().map_or_else(String::new, |name| format!("{before}{name}{after}"))
            };
            if let Some(number) = exec.device {
                assert_eq!((exec.pool.as_str(), exec.image.as_str()), ("", ""));
                return format!("{} device {number}", exec.command.name());
            }
            let shared = if exec.shared { " shared" } else { "" };
            let shared = if exec.nbd { " by nbd" } else { shared };
            format!(
                "{} {}/{}{}{}{}{shared}",
                exec.command.name(),
                exec.pool,
                part(&exec.namespace, "", "/"),
                exec.image,
                part(&exec.snapshot, "@", ""),
                part(&exec.lock, " ", "")
            )
        }
        Some(fact) => {
            assert_eq!(fact, Fact::Malformed { source: "hook.exec".into(), count: 1 });
            "?".to_owned()
        }
    }
}

#[test]
fn an_image_is_found_in_every_form_of_a_command_line() {
    for (line, expected) in [
        ("rbd map kube/index", "map kube/index"),
        ("/usr/bin/rbd device map kube/team-a/index@nightly", "map kube/team-a/index@nightly"),
        ("rbd map index", "map rbd/index"),
        // The plugin in the kubelet.
        (
            "rbd map index --pool kube --id admin -m 10.1.1.1:6789,10.1.1.2:6789 --key=AQBs3cr3t",
            "map kube/index",
        ),
        ("rbd map index --pool kube --id admin -m 10.1.1.1:6789 -k /etc/ceph/keyring", "map kube/index"),
        (
            "rbd lock add index kubelet_lock_magic_slave-197 --pool kube --id admin -m 10.1.1.1:6789 --key=AQBs3cr3t",
            "lock-add kube/index kubelet_lock_magic_slave-197",
        ),
        (
            "rbd lock remove index kubelet_lock_magic_slave-197 client.24128 --pool kube --key=AQBs3cr3t",
            "lock-remove kube/index kubelet_lock_magic_slave-197",
        ),
        ("rbd lock rm kube/index a client.1", "lock-remove kube/index a"),
        ("rbd lock add --shared blue kube/index a", "lock-add kube/index a shared"),
        // Drivers.
        (
            "rbd --id csi-rbd-node -m 10.1.1.1:6789 --keyfile=/tmp/csi/keys/keyfile-1 map kube/csi-vol-1 --device-type krbd \
             --options noudev",
            "map kube/csi-vol-1",
        ),
        ("rbd -p kube --image index map", "map kube/index"),
        ("rbd -pkube map --image=other/index", "map other/index"),
        (
            "rbd --pool=kube --namespace team-a device map index --snap nightly",
            "map kube/team-a/index@nightly",
        ),
        ("rbd lock add --image kube/index a", "lock-add kube/index a"),
        ("rbd --mon_host 10.1.1.1 -K key map --read-only -- kube/index", "map kube/index"),
        ("rbd map kube/index --rbd-cache=false --debug-rbd=20", "map kube/index"),
        ("rbd map kube/index --some-switch", "map kube/index"),
        // Ceph CSI with `mounter: rbd-nbd`, and before Ceph 13.
        (
            "rbd --id csi-rbd-node -m 10.1.1.1:6789 --keyfile=/tmp/key map kube/csi-vol-1 --device-type nbd --options \
             try-netlink,reattach-timeout=300,io-timeout=0",
            "map kube/csi-vol-1 by nbd",
        ),
        ("rbd nbd map kube/index", "map kube/index by nbd"),
        // Scripts.
        ("/bin/sh /opt/rbd map kube/index", "map kube/index"),
        ("/bin/bash -e /opt/rbd map kube/index", "map kube/index"),
        ("something map kube/index", "map kube/index"),
    ] {
        assert_eq!(shown(line), expected, "{line}");
    }
}

#[test]
fn whoever_looks_who_has_an_image_open_neither_maps_nor_locks_it() {
    for (line, expected) in [
        ("rbd status kube/index", "status kube/index"),
        ("rbd status index --pool kube -m 10.1.1.1 --id admin --key=AQ==", "status kube/index"),
        ("rbd --pool kube status --image index", "status kube/index"),
    ] {
        assert_eq!(shown(line), expected, "{line}");
        let Some(Fact::RbdExec(exec)) = decoded(&record(&arguments(line))) else { panic!("{line}") };
        assert!(exec.asks() && !exec.wants(), "{line}");
    }
}

#[test]
fn an_image_is_unmapped_by_its_name_or_by_that_of_its_device() {
    for (line, expected) in [
        ("rbd unmap kube/index", "unmap kube/index"),
        ("rbd device unmap -p kube --image index@nightly -o force", "unmap kube/index@nightly"),
        ("rbd unmap /dev/rbd12", "unmap device rbd12"),
        ("rbd device unmap /dev/rbd0 --options force --id csi", "unmap device rbd0"),
        ("rbd device unmap -t nbd /dev/nbd0", "unmap device nbd0"),
        ("rbd nbd unmap /dev/nbd7", "unmap device nbd7"),
        ("rbd device unmap /dev/nbd0", "?"),
        ("rbd device unmap -t nbd /dev/rbd0", "?"),
        ("rbd unmap /dev/rbd/kube/index", "unmap kube/index"),
        ("rbd unmap /dev/rbd/kube/team-a/index@nightly", "unmap kube/team-a/index@nightly"),
        ("rbd unmap /dev/rbd0p1", "?"),
        ("rbd unmap /dev/vdb", "?"),
        ("rbd unmap", "?"),
        ("rbd map /dev/rbd0", "?"),
    ] {
        assert_eq!(shown(line), expected, "{line}");
        if let Some(Fact::RbdExec(exec)) = decoded(&record(&arguments(line))) {
            assert!(!exec.asks() && !exec.wants(), "{line}");
        }
    }
}

#[test]
fn a_command_that_maps_and_locks_nothing_is_none() {
    for line in [
        "rbd",
        "rbd ls",
        "rbd lock ls kube/index",
        "rbd lock list index --pool kube",
        "rbd help map",
        "rbd map --help",
        "rbd --version",
        "rbd nbd list",
        "rbd device map kube/index --device-type=ggate",
        "rbd create map",
    ] {
        assert_eq!(shown(line), "-", "{line}");
    }
}

#[test]
fn what_is_not_understood_is_counted_and_is_no_call() {
    let long = "x".repeat(256);
    for line in [
        "rbd map".to_owned(),
        "rbd map kube/index other".to_owned(),
        "rbd map /index".to_owned(),
        "rbd map kube/".to_owned(),
        "rbd map a/b/c/d".to_owned(),
        "rbd map kube/index@".to_owned(),
        "rbd map kube/index@a@b".to_owned(),
        "rbd map kube/index --pool".to_owned(),
        "rbd map --unheard-of kube/index".to_owned(),
        "rbd map --snap-id 7 kube/index".to_owned(),
        "rbd --unheard-of map kube/index".to_owned(),
        "rbd lock add kube/index".to_owned(),
        "rbd lock add kube/index a b".to_owned(),
        "rbd lock remove kube/index a".to_owned(),
        "rbd lock remove kube/index a b".to_owned(),
        "rbd map kube/a\nb".to_owned(),
        "rbd map kube/a\u{1b}[2J".to_owned(),
        format!("rbd map kube/{long}"),
        format!("rbd lock add kube/index {long}"),
    ] {
        assert_eq!(shown(&line), "?", "{line}");
    }
    assert_eq!(shown(&format!("rbd map kube/{}", &long[1..])), format!("map kube/{}", &long[1..]));
}

#[test]
fn what_was_cut_or_could_not_be_read_is_no_call() {
    let unclear = Some(Fact::Malformed { source: "hook.exec".into(), count: 1 });
    let long = format!("rbd map kube/index --key={} --image other", "x".repeat(ARGUMENTS_CAPACITY));
    assert_eq!(decoded(&record(&arguments(&long))), unclear);
    assert_eq!(decoded(&CommandRecord { len: 0, ..record(&arguments("rbd map kube/index")) }), unclear);
    assert_eq!(
        decoded(&CommandRecord { len: u32::MAX, ..record(&arguments("rbd map kube/index")) }),
        unclear
    );
    assert_eq!(decoded(&record(b"rbd\0map\0kube/\xff\0")), unclear);
    assert_eq!(decoded(&record(b"")), unclear);
    let nobody = record(b"rbd\0map\0a\0");
    let nobody = CommandRecord { task: kevtmon_ebpf::task::TaskId { tgid: 0, ..nobody.task }, ..nobody };
    assert!(Decoder::new(1).record(nobody.as_bytes()).is_err());
    assert!(Decoder::new(1).record(&record(b"rbd\0").as_bytes()[..100]).is_err());
}

#[test]
fn any_bytes_are_read_without_harm() {
    let words: [&[u8]; 12] = [
        b"rbd", b"map", b"lock", b"add", b"-", b"--", b"-p", b"--pool=", b"a/b@c", b"\xff\xfe", b"",
        b"-\xc3\xa9x",
    ];
    let mut number = 1_u64;
    for _ in 0..20_000 {
        let mut line = Vec::new();
        for _ in 0..number % 7 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            line.extend_from_slice(words[usize::try_from(number >> 33).unwrap() % words.len()]);
            line.push(0);
        }
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if number >> 60 == 0 {
            line.pop();
        }
        if let Some(Fact::RbdExec(exec)) = decoded(&record(&line)) {
            assert!(!exec.image.is_empty() && !exec.pool.is_empty(), "{exec:?}");
        }
    }
}

#[test]
fn nothing_of_a_secret_is_kept() {
    let line = "rbd --key s3cr3t1 --keyring=s3cr3t2 --keyfile s3cr3t3 -K s3cr3t4 -m s3cr3t5 map kube/index -o secret=s3cr3t6 \
                --some-token=s3cr3t7";
    let fact = decoded(&record(&arguments(line))).unwrap();
    assert!(matches!(fact, Fact::RbdExec(_)), "{fact:?}");
    assert!(!serde_json::to_string(&fact).unwrap().contains("s3cr3t"));
    let unclear = decoded(&record(&arguments("rbd map --key s3cr3t --unheard-of s3cr3t")));
    assert!(!serde_json::to_string(&unclear).unwrap().contains("s3cr3t"));
}
