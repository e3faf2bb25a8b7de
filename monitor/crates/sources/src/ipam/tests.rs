use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use kevtmon_observation::{CniDevice, IpamFile, IpamRecord};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::*;

const ID: &str = "291716a39be9291716a39be9291716a39be9291716a39be9291716a39be92917";

struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(tree.network("cbr0")).unwrap();
        tree.write("cbr0", "lock", b"");
        tree.write("cbr0", "last_reserved_ip.0", b"10.88.0.5");
        tree
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn network(&self, name: &str) -> PathBuf {
        self.path().join("networks").join(name)
    }

    fn write(&self, network: &str, file: &str, text: &[u8]) {
        fs::write(self.network(network).join(file), text).unwrap();
    }

    fn reserve(&self, network: &str, address: &str) {
        self.write(network, address, format!("{ID}\r\neth0").as_bytes());
    }

    fn look(&self) -> (Found, Option<OwnedFd>) {
        files::look(Path::new("/"), self.path())
    }

    /// `ADDRESS NETWORK`, and what is not the usual.
    fn found(&self) -> (Vec<String>, bool) {
        let found = self.look().0;
        let text = |record: &IpamRecord| {
            let of = record.container.as_deref();
            let of = if of == Some(ID) { String::new() } else { format!(" for {of:?}") };
            let by = if record.file == IpamFile::Result { " by a result" } else { "" };
            format!("{} {}{of}{by}", record.address, record.network)
        };
        (found.records.iter().map(text).collect(), found.complete)
    }

    fn problems(&self) -> Vec<String> {
        let name = |problem: &Problem| problem.path.rsplit('/').next().unwrap_or_default().to_owned();
        self.look().0.problems.iter().map(name).collect()
    }
}

#[test]
fn reservations_are_read_of_all_networks_and_of_both_families() {
    let tree = Tree::new();
    fs::create_dir_all(tree.network("storage")).unwrap();
    for (network, address) in [("cbr0", "10.88.0.5"), ("cbr0", "fd00::5"), ("storage", "10.88.0.5")] {
        tree.reserve(network, address);
    }
    // As versions before 0.8 write it.
    tree.write("cbr0", "10.88.0.6", ID.as_bytes());
    let expected = ["10.88.0.5 cbr0", "10.88.0.5 storage", "10.88.0.6 cbr0", "fd00::5 cbr0"];
    assert_eq!(tree.found(), (expected.map(str::to_owned).to_vec(), true));
    assert_eq!(tree.problems(), [""; 0]);
}

#[test]
fn a_node_without_host_local_has_no_reservations_and_that_is_known() {
    let nothing = tempfile::tempdir().unwrap();
    for directory in [nothing.path().to_owned(), nothing.path().join("none")] {
        let found = files::look(Path::new("/"), &directory).0;
        assert_eq!(found, Found { complete: true, ..Found::default() }, "{}", directory.display());
    }
}

#[test]
fn a_file_that_tells_no_sandbox_keeps_its_address_reserved() {
    let tree = Tree::new();
    let huge = vec![b'a'; 1 << 20];
    for (address, text) in [
        ("10.88.0.1", &b""[..]),
        ("10.88.0.2", b"\xff\xfe"),
        ("10.88.0.3", b"a b\r\neth0"),
        ("10.88.0.4", &huge),
        ("10.88.0.5", b"\r\neth0"),
    ] {
        tree.write("cbr0", address, text);
    }
    symlink("/dev/zero", tree.network("cbr0").join("10.88.0.6")).unwrap();
    mkfifo(&tree.network("cbr0").join("10.88.0.7"), Mode::S_IRWXU).unwrap();
    fs::create_dir(tree.network("cbr0").join("10.88.0.8")).unwrap();
    let expected: Vec<String> = (1..=8).map(|number| format!("10.88.0.{number} cbr0 for None")).collect();
    assert_eq!(tree.found(), (expected, true));
    assert_eq!(tree.problems(), ["10.88.0.4", "10.88.0.6", "10.88.0.7", "10.88.0.8"]);
    // What has no address for a name is none.
    for name in ["x", "10.88.0", "10.88.0.300", "10.88.0.9.tmp", ".10.88.0.9"] {
        tree.write("cbr0", name, ID.as_bytes());
    }
    assert_eq!(tree.found().0.len(), 8);
}

#[test]
fn what_cannot_be_listed_is_not_taken_for_empty() {
    let tree = Tree::new();
    tree.reserve("cbr0", "10.88.0.5");
    for number in 0..8200 {
        fs::File::create(tree.network("cbr0").join(number.to_string())).unwrap();
    }
    assert_eq!((tree.found(), tree.problems()), ((vec![], false), vec!["cbr0".to_owned()]));
    let tree = Tree::new();
    fs::remove_dir_all(tree.path().join("networks")).unwrap();
    fs::write(tree.path().join("networks"), "").unwrap();
    assert_eq!((tree.found(), tree.problems()), ((vec![], false), vec!["networks".to_owned()]));
}

#[test]
fn the_results_of_calls_tell_to_whom_host_local_gave_an_address() {
    let tree = Tree::new();
    let config = base64(&format!(
        r#"{{"plugins":[{{"type":"ptp","ipam":{{"type":"host-local","dataDir":"{}"}}}}]}}"#,
        tree.path().join("networks").display()
    ));
    let result = format!(
        r#"{{"kind":"cniCacheV1","containerId":"{ID}","config":"{config}","ifName":"eth0","networkName":"cbr0","result":{{"ips":[{{"address":"10.88.0.5/16"}}]}}}}"#
    );
    for directory in ["results", "cache/results"] {
        let directory = tree.path().join(directory);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("cbr0-{ID}-eth0")), &result).unwrap();
        assert_eq!(tree.found(), (vec!["10.88.0.5 cbr0 by a result".to_owned()], true));
        fs::write(directory.join("cut"), &result[..200]).unwrap();
        mkfifo(&directory.join("fifo"), Mode::S_IRWXU).unwrap();
        fs::write(directory.join("huge"), vec![b'['; 1 << 20]).unwrap();
        assert_eq!((tree.found().0.len(), tree.problems()), (1, vec!["fifo".to_owned(), "huge".to_owned()]));
        fs::remove_dir_all(&directory).unwrap();
    }
}

#[test]
fn the_results_of_calls_tell_devices_whoever_gave_the_addresses_until_they_are_removed() {
    let tree = Tree::new();
    let directory = tree.path().join("results");
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join(format!("k8s-pod-network-{ID}-eth0"));
    let result = format!(
        r#"{{"kind":"cniCacheV1","containerId":"{ID}","config":"{{}}","ifName":"eth0","networkName":"k8s-pod-network","cniArgs":[["K8S_POD_NAMESPACE","lijiaob"],["K8S_POD_NAME","etcd1-0"]],"result":{{"interfaces":[{{"name":"cali9118ebbb10b"}}],"ips":[{{"address":"10.88.0.5/32"}}]}}}}"#
    );
    fs::write(&file, result).unwrap();
    let device = CniDevice {
        ifname: "cali9118ebbb10b".into(),
        container: ID.into(),
        namespace: "lijiaob".into(),
        pod: "etcd1-0".into(),
    };
    let mut told = LastLook::default();
    let files = told.differences(tree.look().0, 1).0.unwrap();
    assert_eq!((files.devices_added, files.added), (vec![device.clone()], Vec::new()));
    fs::remove_file(&file).unwrap();
    let files = told.differences(tree.look().0, 2).0.unwrap();
    assert_eq!((files.devices_added, files.devices_removed), (Vec::new(), vec![device]));
}

/// By another program than what reads it.
fn base64(text: &str) -> String {
    let command = format!("printf %s '{text}' | base64 --wrap=0");
    let output = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_kernel_tells_what_changes_in_any_of_the_directories_and_nothing_else() {
    let is_told = |watch: &OwnedFd, wait: PollTimeout| {
        use std::os::fd::AsFd as _;
        poll(&mut [PollFd::new(watch.as_fd(), PollFlags::POLLIN)], wait).unwrap() > 0
    };
    let tree = Tree::new();
    fs::create_dir_all(tree.path().join("results")).unwrap();
    tree.reserve("cbr0", "10.88.0.5");
    let changes: [&dyn Fn(); 6] = [
        &|| tree.reserve("cbr0", "10.88.0.6"),
        &|| fs::remove_file(tree.network("cbr0").join("10.88.0.6")).unwrap(),
        &|| tree.write("cbr0", "10.88.0.5", b"other"),
        &|| fs::create_dir(tree.network("new")).unwrap(),
        &|| fs::write(tree.path().join("results/x"), "").unwrap(),
        &|| fs::remove_dir_all(tree.path().join("networks")).unwrap(),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let watch = tree.look().1.unwrap();
        fs::read(tree.network("cbr0").join("lock")).unwrap();
        assert!(!is_told(&watch, PollTimeout::ZERO), "{index}: reading is no change");
        change();
        assert!(is_told(&watch, PollTimeout::NONE), "{index}");
    }
    // It is made again.
    let watch = tree.look().1.unwrap();
    fs::create_dir_all(tree.network("cbr0")).unwrap();
    assert!(is_told(&watch, PollTimeout::NONE));
    assert!(files::look(Path::new("/"), &tree.path().join("none")).1.is_none());
}

fn record(address: &str) -> IpamRecord {
    IpamRecord {
        address: address.parse().unwrap(),
        network: "cbr0".into(),
        container: Some(ID.into()),
        file: IpamFile::Reservation,
    }
}

fn found(addresses: &[&str], complete: bool) -> Found {
    let records = addresses.iter().map(|address| record(address)).collect();
    Found { records, complete, ..Found::default() }
}

#[test]
fn all_is_told_first_and_then_what_differs() {
    let mut told = LastLook::default();
    let files = |since, added: &[&str], removed: &[&str], complete| {
        let [added, removed] =
            [added, removed].map(|all| all.iter().map(|address| record(address)).collect());
        Some(IpamFiles { since, added, removed, complete, ..IpamFiles::default() })
    };
    let (a, b) = ("10.88.0.1", "10.88.0.2");
    assert_eq!(told.differences(found(&[a], true), 1).0, files(None, &[a], &[], true));
    assert_eq!(told.differences(found(&[a], true), 2).0, None);
    assert_eq!(told.differences(found(&[b], true), 3).0, files(Some(3), &[b], &[a], true));
    assert_eq!(told.differences(found(&[b], false), 4).0, files(Some(4), &[], &[], false));
    assert!(told.forget() && !told.forget());
    assert_eq!(told.differences(found(&[a], true), 5).0, files(None, &[a], &[], true));
}

#[test]
fn what_is_wrong_is_told_once_for_as_long_as_it_lasts() {
    let mut told = LastLook::default();
    let problem = Problem { path: "/x".into(), text: "is too long".into() };
    let wrong = || Found { problems: BTreeSet::from([problem.clone()]), ..found(&[], true) };
    let mut new = |found| told.differences(found, 1).1.len();
    assert_eq!([new(wrong()), new(wrong()), new(found(&[], true)), new(wrong())], [1, 0, 0, 1]);
}

#[test]
fn the_directory_is_at_an_absolute_path() {
    assert_eq!(serde_json::from_str::<Directory>("\"/run/cni\"").unwrap(), Directory("/run/cni".into()));
    for path in ["\"cni\"", "\"/\"", "\"/run/../cni\""] {
        assert!(serde_json::from_str::<Directory>(path).is_err(), "{path}");
    }
}
