//! The package for Debian and Ubuntu: what `deploy/debian` describes, built by `dpkg-deb`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::Release;
use crate::reference::{BASH, COMPLETIONS, CONFIGURATION, FISH, PAGES, ZSH};
use crate::tool::run;
use crate::tree::{PLAIN, PROGRAM, Tree, compress, files};

/// Where the control files are in the checkout.
const CONTROL: &str = "deploy/debian";
/// Control files that are scripts.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
/// Where the package has its documentation.
const DOCUMENTATION: &str = "usr/share/doc/kevtmon";
/// The only file that is its administrator's.
const CONFFILE: &str = "etc/kevtmon/kevtmon.toml";
/// Where the unit expects the program, as it is installed by hand, and where a package has it.
const PROGRAMS: [&str; 2] = ["/usr/local/bin/kevtmon", "/usr/bin/kevtmon"];

/// Builds it in a directory; returns the file.
pub fn pack(release: &Release, into: &Path) -> Result<PathBuf> {
    let name = format!("kevtmon_{}_{}", release.version, release.architecture.debian);
    let tree = Tree::new(into.join(format!("{name}.work")))?;
    programs(release, &tree)?;
    documentation(release, &tree)?;
    control(release, &tree)?;
    let package = into.join(format!("{name}.deb"));
    let mut build = Command::new("dpkg-deb");
    // gzip: the same bytes by any number of threads, and every dpkg reads it.
    build.args(["-Zgzip", "-z9", "--root-owner-group", "--build"]).arg(tree.root()).arg(&package);
    run(build.env("SOURCE_DATE_EPOCH", release.time.to_string()))?;
    tree.remove()?;
    Ok(package)
}

fn programs(release: &Release, tree: &Tree) -> Result<()> {
    tree.copy(&release.daemon, "usr/bin/kevtmon", PROGRAM)?;
    tree.write("lib/systemd/system/kevtmon.service", unit(release)?, PLAIN)?;
    let catalog = release.root.join("deploy/systemd/kevtmon.catalog");
    tree.copy(&catalog, "usr/lib/systemd/catalog/kevtmon.catalog", PLAIN)?;
    tree.copy(&release.reference.join(CONFIGURATION), CONFFILE, PLAIN)?;
    let completions = release.reference.join(COMPLETIONS);
    for (file, place) in [
        (BASH, "usr/share/bash-completion/completions/kevtmon"),
        (ZSH, "usr/share/zsh/vendor-completions/_kevtmon"),
        (FISH, "usr/share/fish/vendor_completions.d/kevtmon.fish"),
    ] {
        tree.copy(&completions.join(file), place, PLAIN)?;
    }
    Ok(())
}

/// The unit, with the program where the package has it.
fn unit(release: &Release) -> Result<String> {
    let text = read(&release.root.join("deploy/systemd/kevtmon.service"))?;
    let [by_hand, packaged] = PROGRAMS;
    if !text.contains(by_hand) {
        bail!("the unit does not start {by_hand}");
    }
    Ok(text.replace(by_hand, packaged))
}

fn documentation(release: &Release, tree: &Tree) -> Result<()> {
    for (name, path) in files(&release.reference.join(PAGES))? {
        let place = format!("usr/share/man/man1/{name}");
        tree.copy(&path, &place, PLAIN)?;
        compress(&tree.root().join(place))?;
    }
    for name in ["README.md", "SECURITY.md"] {
        tree.copy(&release.root.join(name), &format!("{DOCUMENTATION}/{name}"), PLAIN)?;
    }
    tree.copy_all(&release.root.join("docs"), &format!("{DOCUMENTATION}/docs"))?;
    let control = release.root.join(CONTROL);
    tree.copy(&control.join("copyright"), &format!("{DOCUMENTATION}/copyright"), PLAIN)?;
    tree.copy(&control.join("lintian-overrides"), "usr/share/lintian/overrides/kevtmon", PLAIN)?;
    let changelog = format!("{DOCUMENTATION}/changelog");
    tree.write(&changelog, self::changelog(release)?, PLAIN)?;
    compress(&tree.root().join(changelog)).map(drop)
}

/// There is one entry: what changed is told by the history of the repository.
fn changelog(release: &Release) -> Result<String> {
    let control = read(&release.root.join(CONTROL).join("control"))?;
    let maintainer = control.lines().find_map(|line| line.strip_prefix("Maintainer: "));
    let maintainer = maintainer.context("the control file names no maintainer")?;
    let time = format!("--date=@{}", release.time);
    let date = run(Command::new("date").args(["--utc", "--rfc-email", &time]).env("LC_ALL", "C"))?;
    let (version, date) = (&release.version, String::from_utf8_lossy(&date));
    Ok(format!(
        "kevtmon ({version}) stable; urgency=medium\n\n  * Release {version}.\n\n -- {maintainer}  {}\n",
        date.trim()
    ))
}

fn control(release: &Release, tree: &Tree) -> Result<()> {
    let directory = release.root.join(CONTROL);
    let (sums, size) = contents(tree.root())?;
    let text = read(&directory.join("control"))?
        .replace("@VERSION@", &release.version)
        .replace("@ARCHITECTURE@", release.architecture.debian)
        .replace("@INSTALLED-SIZE@", &size.to_string());
    tree.write("DEBIAN/control", text, PLAIN)?;
    tree.write("DEBIAN/conffiles", format!("/{CONFFILE}\n"), PLAIN)?;
    tree.write("DEBIAN/md5sums", sums, PLAIN)?;
    for script in SCRIPTS {
        tree.copy(&directory.join(script), &format!("DEBIAN/{script}"), PROGRAM)?;
    }
    Ok(())
}

/// The sums of the files, which `dpkg --verify` compares, and how many KiB all take.
fn contents(root: &Path) -> Result<(Vec<u8>, u64)> {
    let listed = run(Command::new("find").args([".", "-printf", "%P\\n"]).current_dir(root))?;
    let mut names: Vec<&str> =
        std::str::from_utf8(&listed).context("a name that is no text")?.lines().collect();
    names.sort_unstable();
    let (mut sum, mut size) = (Command::new("md5sum"), 0);
    sum.arg("--").current_dir(root);
    for name in names {
        let path = root.join(name);
        let metadata =
            fs::symlink_metadata(&path).with_context(|| format!("cannot see {}", path.display()))?;
        if metadata.is_file() {
            size += metadata.size().div_ceil(1024);
            if name != CONFFILE {
                sum.arg(name);
            }
        } else {
            size += 1;
        }
    }
    Ok((run(&mut sum)?, size))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
