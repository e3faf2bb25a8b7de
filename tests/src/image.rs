//! The image of all test containers: a static busybox, and the host's `ip` with its libraries.
//!
//! There is no registry: the file system is packed and imported. Busybox has no `ip neigh del`, so the real one
//! comes along; `/bin/ip` must be called by path where busybox would prefer its own applet.

use std::path::{Path, PathBuf};

use crate::mount::Scratch;
use crate::process::{attempt, run};

/// Applets that scenarios use.
const APPLETS: [&str; 8] = ["sh", "sleep", "nsenter", "ping", "cat", "echo", "true", "arp"];

/// Packs the file system into a tar archive inside `scratch`.
#[must_use]
pub fn archive(scratch: &Scratch) -> PathBuf {
    let root = scratch.path().join("image");
    let bin = root.join("bin");
    for directory in ["bin", "data", "tmp", "proc", "sys"] {
        std::fs::create_dir_all(root.join(directory)).expect("the image has directories");
    }
    std::fs::copy(find("busybox"), bin.join("busybox")).expect("busybox (package busybox-static)");
    for applet in APPLETS {
        std::os::unix::fs::symlink("busybox", bin.join(applet)).expect("an applet is a link");
    }
    let ip = std::fs::canonicalize(find("ip")).expect("ip (package iproute2)");
    std::fs::copy(&ip, bin.join("ip")).expect("ip (package iproute2)");
    for library in libraries(&ip) {
        let inside = root.join(library.strip_prefix("/").expect("libraries have absolute paths"));
        std::fs::create_dir_all(inside.parent().expect("a file has a directory")).expect("a directory");
        std::fs::copy(&library, inside).expect("a library can be copied");
    }
    let archive = scratch.path().join("image.tar");
    run(&format!("tar -C {} -cf {} .", root.display(), archive.display()));
    archive
}

/// The same as `docker save` writes it, with a command that does nothing.
#[must_use]
pub fn saved(scratch: &Scratch, name: &str) -> PathBuf {
    let layer = archive(scratch);
    let directory = scratch.path();
    let digest = run(&format!("sha256sum {}", layer.display())).stdout;
    let digest = digest.split_whitespace().next().expect("a digest");
    let config = serde_json::json!({
        "architecture": match std::env::consts::ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other },
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "1000000"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let manifest =
        serde_json::json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["image.tar"]}]);
    for (file, text) in [("config.json", config), ("manifest.json", manifest)] {
        std::fs::write(directory.join(file), text.to_string()).expect("a file can be written");
    }
    let saved = directory.join("saved.tar");
    run(&format!(
        "tar -C {} -cf {} manifest.json config.json image.tar",
        directory.display(),
        saved.display()
    ));
    saved
}

/// The libraries of a program, as its loader finds them.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = attempt(&[std::ffi::OsStr::new("ldd"), program.as_os_str()]).succeeded("ldd").stdout;
    listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// Looks a program up on the path.
#[must_use]
pub fn find(program: &str) -> PathBuf {
    installed(program).unwrap_or_else(|| panic!("{program} is not installed"))
}

/// A program on the path, if it is installed.
#[must_use]
pub fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin:/usr/bin:/bin";
    let mut candidates = path.split(':').map(|directory| Path::new(directory).join(program));
    candidates.find(|file| file.is_file())
}
