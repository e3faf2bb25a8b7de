//! Kubernetes of the generation that has dockershim, for the end-to-end tests and for `cargo xtask cluster`.
//!
//! In: Debian's source package. Out: the programs, kept in the user's cache for all checkouts. The kubelet is built by
//! itself: it runs static pods, so most tests need nothing else. Nothing here changes the machine but the installation of
//! missing programs: apt reads a list of sources of its own.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::packages::Apt;
use crate::prerequisites::{self, Prerequisite, program};
use crate::setup::{self, Privilege};
use crate::workspace;

/// The last release in Debian with the kubelet; it has dockershim and the volume plugins in its tree.
const VERSION: &str = "1.20.2";
/// Debian's release of that package.
pub(crate) const SUITE: &str = "bookworm";
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const MIRROR: &str = "http://deb.debian.org/debian";

const PREREQUISITES: [Prerequisite; 5] = [
    program("go", "golang-go", "compiles it"),
    program("make", "make", "generates a part of its API server"),
    program("rsync", "rsync", "puts the generators where make looks for them"),
    program("dpkg-source", "dpkg-dev", "unpacks its source package"),
    program(KEYRING, "debian-archive-keyring", "proves that it is Debian's"),
];

/// Programs that are built together.
struct Product {
    /// Of its directory in the cache.
    name: &'static str,
    programs: &'static [&'static str],
    /// What the package's own Makefile has to generate first.
    generated: Option<&'static str>,
    /// Build tags.
    tags: &'static str,
    takes: &'static str,
    /// Other ones of these programs, of a changed source.
    variants: &'static [Variant],
    /// Changed with what the programs are built from or how, so that they are built again.
    recipe: u32,
}

/// A program of a source with one change in it, built after the others: only what the change concerns is compiled again.
struct Variant {
    /// Of its directory, in that of the product: the program keeps its name.
    name: &'static str,
    program: &'static str,
    /// Of the version, after a plus.
    build: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

const KUBELET: Product = Product {
    name: "kubelet",
    programs: &["kubelet"],
    generated: None,
    tags: "",
    takes: "some minutes",
    variants: &[WHOLE_STRUCT],
    recipe: 2,
};

/// A kubelet that computes other hashes of the same containers, as before 1.16: of the whole structure, in which fields
/// without a value count, instead of its JSON. Kubelets across which a node was upgraded differed in this way.
const WHOLE_STRUCT: Variant = Variant {
    name: "other-hash",
    program: "kubelet",
    build: "other-hash",
    file: "pkg/kubelet/container/helpers.go",
    from: "hashutil.DeepHashObject(hash, containerJSON)",
    to: "_ = containerJSON\n\thashutil.DeepHashObject(hash, *container)",
};

const CONTROL_PLANE: Product = Product {
    name: "control-plane",
    programs: &["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"],
    generated: Some("gen_openapi"),
    // The clients of the clouds are half of the code.
    tags: "providerless",
    takes: "a quarter of an hour",
    variants: &[],
    recipe: 1,
};

/// Whether this machine can get the sources at all.
pub(crate) fn is_possible() -> bool {
    Apt::of_this_machine().is_some()
}

/// The kubelet; built, unless it was before.
pub(crate) fn kubelet(privilege: Privilege) -> Result<PathBuf> {
    Ok(fetch(&KUBELET, privilege)?.join("kubelet"))
}

/// A kubelet whose hashes of containers are other ones; built with [`kubelet`].
pub(crate) fn other_kubelet(privilege: Privilege) -> Result<PathBuf> {
    Ok(fetch(&KUBELET, privilege)?.join(WHOLE_STRUCT.name).join(WHOLE_STRUCT.program))
}

/// The directory of what a cluster has besides kubelets, and of `kubectl`; built, unless they were before.
pub(crate) fn control_plane(privilege: Privilege) -> Result<PathBuf> {
    fetch(&CONTROL_PLANE, privilege)
}

fn fetch(product: &Product, privilege: Privilege) -> Result<PathBuf> {
    let cache = cache()?;
    let directory =
        cache.join(format!("{}-{VERSION}-{}-{}", product.name, env::consts::ARCH, product.recipe));
    // Another checkout may build it now.
    let _lock = setup::lock(&cache, &format!("{}.lock", product.name))?;
    if directory.is_dir() {
        return Ok(directory);
    }
    if !is_possible() {
        bail!("Kubernetes is built from Debian's source package, and there is no apt here");
    }
    prerequisites::ensure("the builds of Kubernetes", &PREREQUISITES, privilege)?;
    let work = tempfile::tempdir_in(&cache).context("cannot create a directory")?;
    let sources = work.path().join("go/src/k8s.io/kubernetes");
    unpack(work.path(), &sources)?;
    eprintln!("xtask: compiling {} {VERSION}, once: {}", product.programs.join(", "), product.takes);
    if let Some(target) = product.generated {
        let mut make = Command::new("nice");
        make.args(["make", target]).current_dir(&sources).env("HOME", work.path()).env("GOFLAGS", "");
        workspace::check(&mut make)?;
    }
    let built = work.path().join("bin");
    fs::create_dir(&built).context("cannot create a directory")?;
    for program in product.programs {
        workspace::check(&mut compile(work.path(), &sources, &built, program, product.tags, VERSION))?;
    }
    for variant in product.variants {
        let version = format!("{VERSION}+{}", variant.build);
        let into = built.join(variant.name);
        fs::create_dir(&into).context("cannot create a directory")?;
        variant.apply(&sources)?;
        workspace::check(&mut compile(
            work.path(),
            &sources,
            &into,
            variant.program,
            product.tags,
            &version,
        ))?;
    }
    fs::rename(&built, &directory).with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory)
}

impl Variant {
    fn apply(&self, sources: &Path) -> Result<()> {
        let path = sources.join(self.file);
        let source = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if source.matches(self.from).count() != 1 {
            bail!("{} is not what it was: no single `{}` is in it", self.file, self.from);
        }
        fs::write(&path, source.replace(self.from, self.to))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Downloads the source package and unpacks it with Debian's patches.
fn unpack(work: &Path, into: &Path) -> Result<()> {
    let list = work.join("sources.list");
    let line = format!("deb-src [signed-by={KEYRING}] {} {SUITE} main\n", mirror());
    fs::write(&list, line).with_context(|| format!("cannot write {}", list.display()))?;
    for directory in ["lists/partial", "archives/partial", "source"] {
        fs::create_dir_all(work.join(directory)).context("cannot create a directory")?;
    }
    workspace::check(apt(work).args(["update", "-q"]))?;
    let source = work.join("source");
    workspace::check(apt(work).args(["source", "-q", "--download-only", "kubernetes"]).current_dir(&source))?;
    let entries = fs::read_dir(&source).context("cannot list what was downloaded")?;
    let mut files = entries.flatten().map(|entry| entry.path());
    let description = files.find(|path| path.extension().is_some_and(|end| end == "dsc"));
    let description = description.context("the source package has no description")?;
    fs::create_dir_all(into.parent().unwrap_or(work)).context("cannot create a directory")?;
    // Its signature was checked with the lists that name its hash.
    workspace::check(Command::new("dpkg-source").args(["--no-check", "-x"]).args([&description, into]))
}

/// apt with lists and sources of its own.
fn apt(work: &Path) -> Command {
    let mut apt = Command::new("apt-get");
    for (option, file) in [
        ("Dir::Etc::SourceList", work.join("sources.list")),
        ("Dir::Etc::SourceParts", PathBuf::from("/dev/null")),
        ("Dir::State::Lists", work.join("lists")),
        ("Dir::Cache", work.to_owned()),
    ] {
        apt.arg("-o").arg(format!("{option}={}", file.display()));
    }
    // It would give the download to a user who cannot write here.
    apt.args(["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3"]);
    apt
}

/// The mirror from which this machine has its packages, if they are Debian's.
pub(crate) fn mirror() -> String {
    let format = ["indextargets", "--format", "$(REPO_URI)", "Label: Debian", "Created-By: Packages"];
    let asked = Command::new("apt-get").args(format).output();
    let printed = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let first = printed.ok().and_then(|printed| printed.lines().next().map(str::to_owned));
    first.filter(|uri| uri.starts_with("http")).unwrap_or_else(|| MIRROR.to_owned())
}

/// Compiles with what the package itself has of other projects, and with the least priority: it runs beside tests.
fn compile(work: &Path, sources: &Path, into: &Path, program: &str, tags: &str, version: &str) -> Command {
    // As the release is built (hack/lib/version.sh).
    let variable = |key: &str, value: &str| {
        format!("-X k8s.io/kubernetes/vendor/k8s.io/component-base/version.{key}={value}")
    };
    let flags = [
        "-s -w".to_owned(),
        variable("gitVersion", &format!("v{version}")),
        variable("gitMajor", "1"),
        variable("gitMinor", "20"),
    ];
    let mut go = Command::new("nice");
    go.args(["go", "build", "-tags", tags, "-ldflags", &flags.join(" "), "-o"])
        .arg(into.join(program))
        .arg(format!("./cmd/{program}"));
    go.current_dir(sources).env("GOPATH", work.join("go")).env("GOCACHE", work.join("cache"));
    for (name, value) in [
        ("GO111MODULE", "off"),
        ("GOFLAGS", ""),
        ("GOPROXY", "off"),
        ("GOTOOLCHAIN", "local"),
        ("CGO_ENABLED", "0"),
    ] {
        go.env(name, value);
    }
    go
}

/// What outlives a checkout.
pub(crate) fn cache() -> Result<PathBuf> {
    let of_user = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let of_home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = of_user.or_else(of_home).unwrap_or_else(workspace::target).join("kevtmon");
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    Ok(cache)
}
