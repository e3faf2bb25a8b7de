//! What is packed of a daemon that is a script.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::tool::run;

const TIME: u64 = 1_700_000_000;

const DAEMON: &str = r##"#!/bin/sh
case "$*" in
manual\ *) mkdir -p "$2" && echo ".TH kevtmon 1 $SOURCE_DATE_EPOCH" >"$2/kevtmon.1" ;;
completions\ *) echo "# $2" ;;
"config default") echo "# cmdline = \"host\"" ;;
*) exit 64 ;;
esac
"##;

/// A release of this checkout, in a directory of its own.
fn release(directory: &Path) -> Release {
    let (daemon, reference) = (directory.join("daemon"), directory.join("reference"));
    // By another process: one that a parallel test forks would inherit a descriptor to write it with.
    let write = format!("cat >'{0}' <<'END' && chmod 755 '{0}'\n{DAEMON}END\n", daemon.display());
    run(Command::new("sh").args(["-c", &write])).expect("a script can be written");
    reference::write(&daemon, &reference, TIME).expect("the daemon prints it");
    Release {
        root: Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a workspace").to_owned(),
        version: "1.2.3".to_owned(),
        architecture: ARCHITECTURES[0],
        time: TIME,
        daemon,
        reference,
    }
}

/// Unpacks an archive; its files, by their paths.
fn unpacked(archive: &Path, into: &Path) -> Vec<String> {
    fs::create_dir(into).expect("a directory can be made");
    run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(into)).expect("it can be unpacked");
    let listed = run(Command::new("find").args([".", "-type", "f", "-printf", "%P\n"]).current_dir(into));
    let mut files: Vec<String> =
        String::from_utf8(listed.expect("listed")).expect("text").lines().map(str::to_owned).collect();
    files.sort();
    files
}

#[test]
fn the_tarball_has_one_directory_with_all_that_is_installed_by_hand() {
    let directory = tempfile::tempdir().expect("a directory");
    let release = release(directory.path());
    let archive = tarball::pack(&release, directory.path()).expect("it is packed");
    assert!(archive.ends_with("kevtmon-1.2.3-x86_64-linux.tar.gz"), "{}", archive.display());
    let root = directory.path().join("unpacked");
    let files = unpacked(&archive, &root);
    for expected in [
        "kevtmon", "kevtmon.service", "kevtmon.catalog", "kevtmon.toml", "man/kevtmon.1",
        "completions/kevtmon.bash", "completions/_kevtmon", "completions/kevtmon.fish", "README.md",
        "LICENSE-MIT", "LICENSE-APACHE", "docs/bare-metal.md", "docs/attribution.md",
    ] {
        assert!(files.contains(&format!("kevtmon-1.2.3-x86_64-linux/{expected}")), "{expected} in {files:?}");
    }
    let root = root.join("kevtmon-1.2.3-x86_64-linux");
    let mode = |name: &str| fs::metadata(root.join(name)).expect("a file").permissions().mode() & 0o7777;
    assert_eq!((mode("kevtmon"), mode("kevtmon.toml"), mode("man")), (0o755, 0o644, 0o755));
    let page = fs::read_to_string(root.join("man/kevtmon.1")).expect("a page");
    assert_eq!(page, format!(".TH kevtmon 1 {TIME}\n"));
    let left = fs::read_dir(directory.path()).expect("a directory").count();
    assert_eq!(left, 4, "daemon, reference, the tarball, what was unpacked");
}

#[test]
fn the_same_input_makes_the_same_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let release = release(directory.path());
    for pack in [tarball::pack, image::pack] {
        let made = [1, 2].map(|number| {
            let into = directory.path().join(format!("made-{number}"));
            fs::create_dir_all(&into).expect("a directory can be made");
            fs::read(pack(&release, &into).expect("it is packed")).expect("it can be read")
        });
        assert!(made[0] == made[1], "two archives of one release differ");
    }
}

#[test]
fn the_image_is_whole_by_its_own_sums_and_says_what_the_dockerfile_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let release = release(directory.path());
    let archive = image::pack(&release, directory.path()).expect("it is packed");
    let root = directory.path().join("unpacked");
    let files = unpacked(&archive, &root);
    let json = |file: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(root.join(file)).expect("a file")).expect("JSON")
    };
    for blob in files.iter().filter_map(|file| file.strip_prefix("blobs/sha256/")) {
        assert_eq!(checksums::of(&root.join("blobs/sha256").join(blob)).expect("a sum"), blob);
    }
    let docker = &json("manifest.json")[0];
    assert_eq!(docker["RepoTags"], serde_json::json!(["kevtmon:1.2.3"]));
    let file_of =
        |digest: &serde_json::Value| digest.as_str().expect("a digest").replace("sha256:", "blobs/sha256/");
    let manifest = json(&file_of(&json("index.json")["manifests"][0]["digest"]));
    let (config, layer) = (file_of(&manifest["config"]["digest"]), file_of(&manifest["layers"][0]["digest"]));
    assert_eq!((&docker["Config"], &docker["Layers"][0]), (&config.clone().into(), &layer.clone().into()));
    let config = json(&config);
    assert_eq!(config["architecture"], "amd64");
    assert_eq!(file_of(&config["rootfs"]["diff_ids"][0]), layer);
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/usr/bin/kevtmon"]));
    let listed = run(Command::new("tar").arg("-tf").arg(root.join(layer))).expect("it is an archive");
    assert_eq!(String::from_utf8_lossy(&listed), "usr/\nusr/bin/\nusr/bin/kevtmon\n");
}

#[test]
fn the_sums_are_those_of_all_other_files_and_are_accepted() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, content) in [("b", "two"), ("a", "one")] {
        fs::write(directory.path().join(name), content).expect("a file can be written");
    }
    for _ in 0..2 {
        let sums = checksums::write(directory.path()).expect("sums are written");
        assert_eq!(fs::read_to_string(&sums).expect("text").lines().count(), 2);
        run(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&directory))
            .expect("they are right");
    }
    fs::write(directory.path().join("a"), "changed").expect("a file can be written");
    let check = run(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&directory));
    assert!(check.unwrap_err().to_string().contains("failed"));
}

#[test]
fn an_architecture_is_known_by_the_target() {
    let debian = |target| Architecture::of_target(target).map(|known| known.debian);
    assert_eq!(debian("x86_64-unknown-linux-gnu"), Some("amd64"));
    assert_eq!(debian("aarch64-unknown-linux-gnu"), Some("arm64"));
    assert_eq!(debian("riscv64gc-unknown-linux-gnu"), None);
}
