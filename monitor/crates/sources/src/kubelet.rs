//! Where the kubelets of this node keep the directories of pods: what is configured, the default, and `--root-dir` of
//! the kubelets that run.
//!
//! A process is taken for a kubelet if the kernel says that it is root of the node (all user ids 0 and `CAP_SYS_ADMIN`
//! in the initial user namespace, and the initial process namespace), and if it runs a program of that name which only
//! root can have put there (`programs.rs`).
//!
//! Files of any process in /proc may hang, so a lookup is made by a [reader](super::procfs::readers).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kevtmon_observation::{Fact, KubeletFacts, KubeletNamespace, NsInum};
use kevtmon_types::lock::lock;
use kevtmon_types::settings::{Valid, settings};
use serde::{Deserialize, Deserializer, Serialize};

use super::procfs::Proc;
use super::procfs::readers::{Job, Readers, reading_none};
use super::programs::{Buffers, Program, flag};
use super::{Sender, tell};

settings! { "kubelet":
    /// Root directories of kubelets (`--root-dir`), besides /var/lib/kubelet and those of the kubelets that run. A path
    /// below one of them is believed to be a pod's, so nobody but root may write there.
    ROOTS: Roots = "roots", default Roots::default();
    /// Keys of the labels of pods that are shown with them, 16 at most. Others do not leave the answers of the runtimes.
    POD_LABELS: PodLabels = "pod_labels", default PodLabels::default();
    /// Socket of the Pods API of the kubelet, which names pods where no runtime is watched, and tells which are deleted; empty for
    /// none. It is `pods-api/pods-api.sock` below the root directory.
    PODS_API: String = "pods_api", default String::new(),
        valid Valid::Text("an absolute path, or an empty text", is_plain_or_none);
}

/// The default of `--root-dir`.
const DEFAULT_ROOT: &str = "/var/lib/kubelet";
/// Programs that are a kubelet, or contain one and show its arguments; k3s and MicroK8s hide them.
const PROGRAMS: [&str; 2] = ["kubelet", "hyperkube"];
/// As the kernel (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;
/// Root directories that are kept of kubelets that have ended; their mounts stay.
const FORMER_MAX: usize = 8;
/// Longest name in the key of a label, and longest value (apimachinery's validation).
const LABEL_MAX: usize = 63;
const INIT: u32 = 1;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Roots(pub Vec<PathBuf>);

impl<'de> Deserialize<'de> for Roots {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        plain_paths(from, "/data/kubelet").map(Self)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PodLabels(pub Vec<String>);

impl PodLabels {
    /// As many as an event of each pod can bear.
    const MAX: usize = 16;
    /// A prefix that is the name of a domain, a slash, and a name.
    const KEY_MAX: usize = 253 + 1 + LABEL_MAX;

    /// Those of a pod's labels that are to be kept; a value that the API server would not take is none.
    #[expect(clippy::box_collection, reason = "most pods have none: a place for them is to be small")]
    pub(super) fn of(&self, labels: &HashMap<String, String>) -> Option<Box<BTreeMap<String, String>>> {
        let kept = self.0.iter().filter_map(|key| {
            let value = labels.get(key).filter(|value| value.len() <= LABEL_MAX && is_label(value))?;
            Some((key.clone(), value.clone()))
        });
        let kept: BTreeMap<String, String> = kept.collect();
        (!kept.is_empty()).then(|| Box::new(kept))
    }
}

fn is_label(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

impl<'de> Deserialize<'de> for PodLabels {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let keys = Vec::<String>::deserialize(from)?;
        let is_key = |key: &&String| {
            !key.is_empty()
                && key.len() <= Self::KEY_MAX
                && key.splitn(2, '/').all(|part| !part.is_empty() && is_label(part))
        };
        if let Some(key) = keys.iter().find(|key| !is_key(key)) {
            return Err(serde::de::Error::custom(format!(
                "{key:?} is not valid: expected the key of a label such as app.kubernetes.io/name"
            )));
        }
        match keys.len() {
            0..=Self::MAX => Ok(Self(keys)),
            number => {
                Err(serde::de::Error::custom(format!("{number} keys are too many: {} at most", Self::MAX)))
            }
        }
    }
}

#[derive(Debug, Clone)]
pub struct KubeletFinder {
    configured: Vec<String>,
    lookup: Arc<Mutex<Lookup>>,
}

#[derive(Debug, Default)]
struct Lookup {
    stage: Stage,
    /// Root directories in the host's mount namespace of kubelets that were found once.
    former: VecDeque<String>,
    facts: Option<KubeletFacts>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Idle,
    Looking,
    /// What is being found may be older than the last question.
    LookAgain,
}

#[derive(Debug, PartialEq, Eq)]
struct Kubelet {
    tgid: u32,
    mntns: NsInum,
    root: Option<String>,
}

impl Stage {
    /// Whether whoever asks now is to begin a look.
    fn ask(&mut self) -> bool {
        let is_first = *self == Self::Idle;
        *self = if is_first { Self::Looking } else { Self::LookAgain };
        is_first
    }

    /// After a look: whether it answers all that was asked, so that it needs no other one.
    fn is_done(&mut self) -> bool {
        let is_done = *self == Self::Looking;
        *self = if is_done { Self::Idle } else { Self::Looking };
        is_done
    }
}

impl KubeletFinder {
    /// One that takes these root directories for a kubelet's, too.
    pub fn new(roots: &Roots) -> Self {
        let configured = roots.0.iter().filter_map(|root| root.to_str().map(str::to_owned));
        let configured = configured.chain([DEFAULT_ROOT.to_owned()]).collect();
        Self { configured, lookup: Arc::default() }
    }

    /// What is known without looking at others: the configured and the default root directories in the daemon's mount
    /// namespace, with links as they are.
    pub fn configured(&self) -> KubeletFacts {
        let own = Proc::default().ns(std::process::id(), "mnt");
        let namespace =
            |mntns| KubeletNamespace { mntns, roots: self.configured.clone(), of_kubelet: false, pid: None };
        KubeletFacts { namespaces: own.into_iter().map(namespace).collect() }
    }

    /// What the last look found, else what is known without one.
    pub fn known(&self) -> KubeletFacts {
        lock(&self.lookup).facts.clone().unwrap_or_else(|| self.configured())
    }

    /// Has a reader of /proc look, and sends what it finds: one look at a time, and no answer that was begun before the
    /// last question.
    pub fn look_and_send(&self, readers: &Readers, tx: &Sender) {
        if !lock(&self.lookup).stage.ask() {
            return;
        }
        let (finder, readers, tx) = (self.clone(), readers.clone(), tx.clone());
        tokio::spawn(async move {
            if let Some(facts) = finder.look(&readers).await {
                tell(&tx, Fact::Kubelet(facts)).await;
            }
        });
    }

    /// Has a reader of /proc look once, for whoever runs for a moment only; its own mount namespace, which may be anybody's, is
    /// none of the host's by that.
    pub async fn look_once(&self, readers: &Readers, patience: Duration) -> Option<KubeletFacts> {
        let job = Look { configured: self.configured.clone(), former: VecDeque::new(), daemon: INIT };
        Some(readers.ask(job, patience).await.ok()?.facts)
    }

    /// What the last look that was asked for found.
    async fn look(&self, readers: &Readers) -> Option<KubeletFacts> {
        loop {
            let former = lock(&self.lookup).former.clone();
            let job = Look { configured: self.configured.clone(), former, daemon: std::process::id() };
            let found = readers.ask(job, PATIENCE).await;
            let mut lookup = lock(&self.lookup);
            let is_last = lookup.stage.is_done();
            let facts = match found {
                Ok(Found { facts, former }) => {
                    lookup.former = former;
                    lookup.facts = Some(facts.clone());
                    Some(facts)
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot look for kubelets");
                    None
                }
            };
            if is_last {
                return facts;
            }
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Look {
    configured: Vec<String>,
    former: VecDeque<String>,
    daemon: u32,
}

/// What was found, and the root directories to remember.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Found {
    facts: KubeletFacts,
    former: VecDeque<String>,
}

impl Job for Look {
    const NAME: &'static str = "kubelets";
    type Reply = Found;
    const WAITS_FOR_DISK: bool = true;

    fn run(&self, proc: &Proc) -> Found {
        let kubelets = kubelets(proc);
        let hosts = host_namespaces(proc, self.daemon);
        let is_host = |mntns| hosts.iter().any(|(host, _)| *host == mntns);
        let mut former = self.former.clone();
        for root in kubelets.iter().filter(|kubelet| is_host(kubelet.mntns)).filter_map(|k| k.root.as_ref()) {
            if !former.contains(root) {
                former.push_front(root.clone());
                former.truncate(FORMER_MAX);
            }
        }
        let of_host = |(mntns, top): &(NsInum, PathBuf)| KubeletNamespace {
            mntns: *mntns,
            roots: with_resolved(top, self.configured.iter().chain(former.iter())),
            of_kubelet: false,
            pid: None,
        };
        let mut namespaces: Vec<KubeletNamespace> = hosts.iter().map(of_host).collect();
        for kubelet in kubelets.iter().filter(|kubelet| !is_host(kubelet.mntns)) {
            let top = proc.path(kubelet.tgid, "root");
            namespaces.push(KubeletNamespace {
                mntns: kubelet.mntns,
                roots: with_resolved(&top, self.configured.iter().chain(&kubelet.root)),
                of_kubelet: true,
                pid: Some(kubelet.tgid),
            });
        }
        Found { facts: KubeletFacts { namespaces }, former }
    }
}

/// The mount namespaces of pid 1, of the first kernel thread and of the daemon, which only root of the node started there,
/// and their roots. Pid 1 may be out of reach even for root.
pub(super) fn host_namespaces(proc: &Proc, daemon: u32) -> Vec<(NsInum, PathBuf)> {
    let init = proc.init_mntns().map(|mntns| (mntns, proc.init_root()));
    let first = proc.first_mntns().map(|mntns| (mntns, proc.first_root()));
    let own = proc.ns(daemon, "mnt").map(|mntns| (mntns, PathBuf::from("/")));
    let mut all: Vec<(NsInum, PathBuf)> = Vec::new();
    for (mntns, root) in own.into_iter().chain(init).chain(first) {
        if !all.iter().any(|(known, _)| *known == mntns) {
            all.push((mntns, root));
        }
    }
    all
}

/// The root directories of the kubelets that run in another mount namespace than the host's: in a container.
pub(super) fn roots_of_running(proc: &Proc) -> Vec<PathBuf> {
    let host = proc.host_mntns();
    let elsewhere = kubelets(proc).into_iter().filter(|kubelet| Some(kubelet.mntns) != host);
    elsewhere.map(|kubelet| proc.path(kubelet.tgid, "root")).collect()
}

fn kubelets(proc: &Proc) -> Vec<Kubelet> {
    let mut buffers = Buffers::default();
    let pids = proc.pids().unwrap_or_default();
    pids.into_iter().filter_map(|tgid| kubelet(proc, tgid, &mut buffers)).collect()
}

fn kubelet(proc: &Proc, tgid: u32, buffers: &mut Buffers) -> Option<Kubelet> {
    let Program { name, mntns, arguments, dir, .. } = Program::of(proc, tgid, &PROGRAMS, buffers)?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root_dir(name, &arguments)?.map(str::to_owned);
    // The handle is of one process: what was read by its number is of the same if that is still there.
    dir.is_there(&mut Vec::new()).then_some(Kubelet { tgid, mntns, root })
}

/// `--root-dir` of a kubelet, if it is given; `None` if the program is not run as one.
fn root_dir<'a>(program: &str, arguments: &[&'a str]) -> Option<Option<&'a str>> {
    if program != "kubelet" && arguments.get(1) != Some(&"kubelet") {
        return None;
    }
    Some(flag(arguments, &["--root-dir"]).filter(|root| is_plain(root)))
}

/// The socket of the runtime that a kubelet is told to use instead of dockershim; empty where that is no path.
pub(super) fn remote_runtime(arguments: &[String]) -> Option<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    flag(&arguments, &["--container-runtime"]).filter(|runtime| *runtime == "remote")?;
    let endpoint = flag(&arguments, &["--container-runtime-endpoint"]).unwrap_or_default();
    let path =
        endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    Some(if is_plain(path) { path.to_owned() } else { String::new() })
}

/// Whether it is an absolute path without `.` and `..`, and not the root of everything.
pub(super) fn is_plain(path: &str) -> bool {
    let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
    path.starts_with('/') && names.peek().is_some() && !names.any(|name| matches!(name, "." | ".."))
}

fn is_plain_or_none(path: &str) -> bool {
    path.is_empty() || is_plain(path)
}

/// A path of the configuration.
pub(super) fn plain_path<'de, D: Deserializer<'de>>(from: D, example: &str) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(from)?;
    check_plain(&path, example).map(|()| path)
}

/// Paths of the configuration.
pub(super) fn plain_paths<'de, D: Deserializer<'de>>(
    from: D,
    example: &str,
) -> Result<Vec<PathBuf>, D::Error> {
    let paths = Vec::<PathBuf>::deserialize(from)?;
    let checked = paths.iter().try_for_each(|path| check_plain(path, example));
    checked.map(|()| paths)
}

fn check_plain<E: serde::de::Error>(path: &Path, example: &str) -> Result<(), E> {
    if is_plain(path.to_str().unwrap_or_default()) {
        return Ok(());
    }
    Err(E::custom(format!("{path:?} is not valid: expected an absolute path such as {example}")))
}

/// Each root directory as it is given, and as symbolic links lead to it below `top`.
fn with_resolved<'a>(top: &Path, roots: impl Iterator<Item = &'a String>) -> Vec<String> {
    reading_none();
    let mut all = Vec::new();
    for root in roots {
        for path in [Some(root.clone()), resolved(top, root)].into_iter().flatten() {
            if !all.contains(&path) {
                all.push(path);
            }
        }
    }
    all
}

/// Where an absolute path of the tree below `top` is: links lead within that tree.
pub(super) fn below(top: &Path, path: &str) -> PathBuf {
    let found = resolved(top, path);
    top.join(found.as_deref().unwrap_or(path).trim_start_matches('/'))
}

/// The path that an absolute path leads to through symbolic links, in the tree below `top`; as far as it exists.
fn resolved(top: &Path, path: &str) -> Option<String> {
    let mut way: Vec<String> = Vec::new();
    let mut names: VecDeque<String> = path.split('/').map(str::to_owned).collect();
    let mut links = 0;
    while let Some(name) = names.pop_front() {
        match name.as_str() {
            "" | "." => continue,
            ".." => {
                way.pop();
                continue;
            }
            _ => way.push(name),
        }
        let Ok(target) = fs::read_link(top.join(way.join("/"))) else { continue };
        links += 1;
        if links > LINKS_MAX {
            return None;
        }
        way.pop();
        let target = target.to_str()?;
        if target.starts_with('/') {
            way.clear();
        }
        target.split('/').rev().for_each(|name| names.push_front(name.to_owned()));
    }
    let resolved = format!("/{}", way.join("/"));
    is_plain(&resolved).then_some(resolved)
}

#[cfg(test)]
mod tests;
