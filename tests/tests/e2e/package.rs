//! What is delivered: the Debian package in a fresh Debian, the image in a Docker, the manual pages.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kevtmon_packaging::{Architecture, Release, deb, image, reference};
use kevtmon_tests::daemon::program;
use kevtmon_tests::daemon_set;
use kevtmon_tests::debian::Debian;
use kevtmon_tests::delivered::path;
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::image::installed;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::process::attempt;
use serde_json::Value;

const TIME: u64 = 1_700_000_000;
const CONFIGURATION: &str = "/etc/kevtmon/kevtmon.toml";
const WANTED: &str = "/etc/systemd/system/multi-user.target.wants/kevtmon.service";
const UNIT: &str = "/lib/systemd/system/kevtmon.service";

/// A release of the program under test, without its symbols, which take long to pack; made once.
pub(crate) fn release(version: &str) -> Release {
    static MADE: OnceLock<(Scratch, Release)> = OnceLock::new();
    let (_, made) = MADE.get_or_init(|| {
        let scratch = Scratch::without_mounts();
        let (daemon, reference) = (scratch.path().join("kevtmon"), scratch.path().join("reference"));
        let strip = ["strip".as_ref(), "-o".as_ref(), daemon.as_os_str()];
        let _ = attempt(&[&strip[..], &[program().as_os_str()]].concat()).succeeded("strip");
        reference::write(&daemon, &reference, TIME).expect("the daemon prints it");
        let architecture = Architecture::of_this_machine().expect("an architecture that is packed for");
        let version = env!("CARGO_PKG_VERSION").to_owned();
        (scratch, Release { root: path(""), version, architecture, time: TIME, daemon, reference })
    });
    Release { version: version.to_owned(), ..made.clone() }
}

/// Builds a package in a Debian; its path there.
fn package(debian: &Debian, release: &Release) -> String {
    let built = deb::pack(release, debian.root()).expect("dpkg-deb builds it");
    format!("/{}", built.file_name().expect("a name").display())
}

/// A package of an earlier version, with another default configuration.
fn older_package(debian: &Debian) -> String {
    let (scratch, mut release) = (Scratch::without_mounts(), release("0.0.9"));
    let reference = scratch.path().join("reference");
    let copy = ["cp".as_ref(), "-r".as_ref(), release.reference.as_os_str(), reference.as_os_str()];
    let _ = attempt(&copy).succeeded("cp");
    append(&reference.join("kevtmon.toml"), "# Older.\n");
    release.reference = reference;
    package(debian, &release)
}

#[test]
fn the_package_comes_is_updated_and_goes_without_a_trace() {
    let Some(debian) = Debian::unpack() else {
        eprintln!("skipped: `cargo xtask test e2e` makes the Debian that this takes");
        return;
    };
    let (newer, older) = (package(&debian, &release("0.1.0")), older_package(&debian));
    let before = debian.files();
    let dpkg = |words: &[&str]| {
        let words = [&["dpkg", "--force-unsafe-io"], words].concat();
        let ran = debian.run(&words).succeeded(&words.join(" "));
        assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    };
    let text = |place: &str| std::fs::read_to_string(debian.path(place)).expect("a file");
    let is_there = |place: &str| debian.path(place).symlink_metadata().is_ok();
    let catalog = || debian.run(&["journalctl", "--list-catalog"]).stdout.contains("kevtmon");

    dpkg(&["--install", &older]);
    assert_eq!(
        debian.systemctl_calls(),
        ["--system daemon-reload", "--quiet --system start kevtmon.service"],
        "a service that is installed runs"
    );
    assert!(is_there(WANTED) && catalog());
    assert!(text(UNIT).contains("ExecStart=/usr/bin/kevtmon run"));
    let verified = debian.run(&["dpkg", "--verify", "kevtmon"]).succeeded("dpkg --verify");
    assert_eq!(verified.stdout, "");
    for command in [&["kevtmon", "--version"][..], &["kevtmon", "config", "check"]] {
        let _ = debian.run(command).succeeded(&command.join(" "));
    }

    std::fs::create_dir(debian.path("/var/lib/kevtmon")).expect("a directory can be made");
    std::fs::write(debian.path("/var/lib/kevtmon/events.db"), "events").expect("a file can be written");
    dpkg(&["--install", &newer]);
    assert_eq!(
        debian.systemctl_calls(),
        ["--system daemon-reload", "--quiet --system restart kevtmon.service"],
        "until then the old one runs on"
    );
    assert!(!text(CONFIGURATION).contains("# Older."), "a default that nobody changed is the new one");

    append(&debian.path(CONFIGURATION), "# The administrator's.\n");
    let _ = debian
        .run(&["env", "SYSTEMD_OFFLINE=1", "systemctl.real", "disable", "kevtmon.service"])
        .succeeded("systemctl disable");
    dpkg(&["--install", &newer]);
    assert_eq!(debian.systemctl_calls(), ["--system daemon-reload"], "a service that was disabled stays so");
    assert!(!is_there(WANTED));
    assert!(text(CONFIGURATION).contains("# The administrator's."));

    dpkg(&["--remove", "kevtmon"]);
    assert_eq!(debian.systemctl_calls(), ["stop kevtmon.service", "--system daemon-reload"]);
    assert!(!is_there(UNIT) && !is_there("/usr/bin/kevtmon") && !catalog());
    assert!(is_there(CONFIGURATION) && is_there("/var/lib/kevtmon/events.db"), "it may come back");

    dpkg(&["--purge", "kevtmon"]);
    assert_eq!(debian.systemctl_calls(), [""; 0]);
    let after = debian.files();
    let left: Vec<&String> = after.difference(&before).collect();
    let gone: Vec<&String> = before.difference(&after).collect();
    assert!(left.is_empty() && gone.is_empty(), "left: {left:?}, gone: {gone:?}");
}

fn append(file: &Path, text: &str) {
    let file = std::fs::File::options().append(true).open(file);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("a file can be written");
}

#[test]
fn the_package_breaks_no_rule_of_debian() {
    if installed("lintian").is_none() {
        eprintln!("skipped: lintian is not installed");
        return;
    }
    let work = Scratch::without_mounts();
    let release = release("0.1.0");
    let package = deb::pack(&release, work.path()).expect("dpkg-deb builds it");
    let package = package.to_string_lossy().into_owned();
    let mut lintian = vec!["lintian", "--allow-root", "--fail-on", "error,warning"];
    if attempt(&["ldd".as_ref(), release.daemon.as_os_str()]).stdout.contains("=>") {
        // Only a static daemon is delivered; one that is not misses what it loads.
        lintian.extend(["--suppress-tags", "undeclared-elf-prerequisites"]);
    }
    lintian.push(&package);
    let ran = attempt(&lintian);
    assert!(ran.status.success(), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn the_image_that_is_packed_is_the_one_that_docker_builds() {
    let (dockerd, work) = (Dockerd::shared(), Scratch::without_mounts());
    let version = format!("0.0.{}", std::process::id());
    let release = release(&version);
    let built = daemon_set::build(dockerd, &release.daemon);
    let packed = image::pack(&release, work.path()).expect("it is packed");
    dockerd.docker(&["load", "--input", &packed.to_string_lossy()]);
    let inspected = |name: &str| -> Value {
        let printed = dockerd.attempt(&["image", "inspect", name]).succeeded("docker image inspect").stdout;
        serde_json::from_str::<Value>(&printed).expect("JSON")[0].take()
    };
    let (packed, built) = (inspected(&format!("kevtmon:{version}")), inspected(&built));
    for member in ["Architecture", "Os"] {
        assert_eq!(packed[member], built[member]);
    }
    for member in ["Cmd", "Entrypoint", "Env", "Labels", "User", "Volumes", "WorkingDir", "ExposedPorts"] {
        // Docker writes what is not set in one of several ways.
        let set = |image: &Value| {
            Some(image["Config"][member].clone()).filter(|value| *value != "" && !value.is_null())
        };
        assert_eq!(set(&packed), set(&built), "{member}");
    }
    let layers = |image: &Value| image["RootFS"]["Layers"].as_array().map(Vec::len);
    assert_eq!((layers(&packed), layers(&built)), (Some(1), Some(1)));
}

#[test]
fn mandoc_has_no_complaint_about_the_manual_pages() {
    let release = release("0.1.0");
    let pages: Vec<PathBuf> = std::fs::read_dir(release.reference.join("man"))
        .expect("a directory")
        .map(|page| page.expect("an entry").path())
        .collect();
    assert!(pages.len() > 10, "{pages:?}");
    for page in pages {
        let page = page.to_string_lossy().into_owned();
        let ran = attempt(&["mandoc", "-T", "lint", "-W", "warning", &page]);
        assert!(ran.status.success(), "{}{}", ran.stdout, ran.stderr);
    }
}
