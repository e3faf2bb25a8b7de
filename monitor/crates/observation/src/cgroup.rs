//! Parses container, pod and systemd unit from a cgroup path.
//!
//! Input: a path from `/proc/PID/cgroup` or the kernel, of any cgroup driver and runtime. Whether the container exists is
//! not checked: only a runtime can confirm that.
//!
//! A name tells something only where root made it. In a path of the sources a doubled slash is where that ends: whoever
//! can write to the directory above, to whom the rest of the tree is delegated, chose the names behind it.

use kevtmon_types::names::names;

/// The names in one cgroup path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupIdentity {
    /// Container id, 64 hex digits: the outermost one, which the node's own runtime created.
    pub container_id: Option<String>,
    /// Pod uid with dashes, or 32 hex digits for a static pod.
    pub pod_uid: Option<String>,
    /// systemd unit: the innermost one outside the container; `user@UID.service` for all units of a user.
    pub unit: Option<String>,
    /// Runtime, if the path names it.
    pub runtime: Option<Runtime>,
    /// The names in the part of the path below the container, below a user's service manager, or where it is delegated.
    /// Container or user can choose these, so they are hints only, used where nothing contradicts them.
    pub nested: Option<Box<Self>>,
}

names! {
    /// A runtime that puts its name into the path. The names are those in `ContainerFacts::runtime`.
    Runtime {
        Docker = "docker",
        /// containerd, by its CRI plugin or nerdctl.
        Containerd = "containerd",
        Crio = "crio",
        Podman = "podman",
    }
}

impl Runtime {
    /// By the prefix of a container id, or the name of the parent cgroup.
    fn from_prefix(word: &str) -> Option<Self> {
        match word {
            "docker" | "moby" => Some(Self::Docker),
            "cri-containerd" | "nerdctl" | "k8s.io" => Some(Self::Containerd),
            "crio" => Some(Self::Crio),
            "libpod" | "libpod_parent" => Some(Self::Podman),
            _ => None,
        }
    }
}

/// Marks where names begin that root did not make; the path is the same with it.
pub const DELEGATED: &str = "//";

/// Puts names, from the root on, into a path. `by_root` tells of each whether root made it.
pub fn path<'a>(names: impl Iterator<Item = (&'a str, bool)>) -> String {
    let mut path = String::new();
    let mut all_by_root = true;
    for (name, by_root) in names {
        path.push_str(if all_by_root && !by_root { DELEGATED } else { "/" });
        all_by_root &= by_root;
        path.push_str(name);
    }
    path
}

/// Whether only root can make something in a directory with this owner and mode.
pub fn is_roots(owner: u32, mode: u32) -> bool {
    /// `S_IWGRP | S_IWOTH`.
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    owner == 0 && mode & WRITABLE_BY_OTHERS == 0
}

/// The part that root made, and the part that is delegated.
fn parts(path: &str) -> (&str, &str) {
    // A search for a pattern costs more to prepare than so short a text to look through.
    let at = path.as_bytes().windows(DELEGATED.len()).position(|pair| pair == DELEGATED.as_bytes());
    at.map_or((path, ""), |at| (&path[..at], &path[at + DELEGATED.len()..]))
}

/// The names in a part of a path.
fn segments(part: &str) -> impl Iterator<Item = &str> {
    part.split('/').filter(|segment| !matches!(*segment, "" | "." | ".."))
}

/// Without what the kernel appends in /proc once the cgroup is removed (v2, zombies).
fn without_mark(path: &str) -> &str {
    path.strip_suffix(" (deleted)").unwrap_or(path)
}

/// Of the paths of one process in several hierarchies, in the order of trust: the first that names a container,
/// else the first that names anything, else the first. With v1 beside v2 any of them may sit at a root or in the
/// service of the runtime, while another names the container.
pub fn most_specific<'a>(paths: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    paths
        .clone()
        .find(|path| container_id(path).is_some())
        .or_else(|| paths.clone().find(|path| *path != "/"))
        .or_else(|| paths.clone().next())
}

/// The container id of [`identify`] alone, which is asked for with every event.
pub fn container_id(path: &str) -> Option<&str> {
    let mut parent = "";
    segments(parts(without_mark(path)).0)
        .map_while(|segment| {
            let above = std::mem::replace(&mut parent, segment);
            (!is_user_manager(segment)).then(|| container(above, segment))
        })
        .find_map(|inner| inner.map(|(id, _)| id))
}

/// Parses the names in a cgroup path; the identity is empty if there are none.
pub fn identify(path: &str) -> CgroupIdentity {
    let (path, delegated) = parts(without_mark(path));
    let nested = |below: &str| {
        let found = Some(below).filter(|below| !below.is_empty()).map(identify);
        found.filter(|found| *found != CgroupIdentity::default()).map(Box::new)
    };
    let mut identity = CgroupIdentity { nested: nested(delegated), ..CgroupIdentity::default() };
    let mut parent = "";
    let mut segments = segments(path);
    while let Some(segment) = segments.next() {
        if let Some(uid) = pod_uid(segment) {
            identity.pod_uid = Some(uid);
        }
        if is_unit(segment) {
            identity.unit = Some(segment.to_owned());
        }
        let inner = container(parent, segment);
        if let Some((id, word)) = inner {
            identity.container_id = Some(id.to_owned());
            identity.runtime = Runtime::from_prefix(if word.is_empty() { parent } else { word });
        }
        if inner.is_some() || is_user_manager(segment) {
            let below: Vec<&str> = segments.chain([delegated]).collect();
            identity.nested = nested(&below.join("/"));
            break;
        }
        parent = segment;
    }
    identity
}

/// The tenant of what a process does, so that nobody uses up what is there for all: its container, its user, else
/// its unit. Whoever can make control groups of his own below that gets no more by it.
pub fn account(path: &str) -> &str {
    let first = || parts(path).0.split('/').find(|segment| !segment.is_empty());
    owner(path).or_else(first).unwrap_or("/")
}

/// The same, where the path tells it.
pub fn owner(path: &str) -> Option<&str> {
    let is_owner = |parent: &str, segment: &str| {
        container(parent, segment).is_some()
            || is_user_slice(segment)
            || is_unit(segment) && !segment.ends_with(".slice")
    };
    let mut parent = "";
    parts(path).0.split('/').find(|segment| is_owner(std::mem::replace(&mut parent, segment), segment))
}

/// Whether it is the slice of one user, with all sessions and services of that user.
fn is_user_slice(segment: &str) -> bool {
    segment.starts_with("user-") && segment.ends_with(".slice")
}

fn is_unit(segment: &str) -> bool {
    [".service", ".scope", ".slice", ".mount"]
        .iter()
        .any(|suffix| segment.strip_suffix(suffix).is_some_and(|stem| !stem.is_empty()))
}

/// Whether it is the service manager of a user, to whom cgroups below it are delegated.
fn is_user_manager(segment: &str) -> bool {
    segment.starts_with("user@") && segment.ends_with(".service")
}

/// The container id of one segment and its prefix: `ID`, `crio-ID`, `docker-ID.scope`, and
/// `X.slice:cri-containerd:ID`, which runc makes of a systemd name when it drives cgroupfs. A bare id right below `libpod_parent`
/// is that of a pod of podman's.
fn container<'s>(parent: &str, segment: &'s str) -> Option<(&'s str, &'s str)> {
    if parent == "libpod_parent" && is_id(segment) {
        return None;
    }
    let stem = segment.strip_suffix(".scope").unwrap_or(segment);
    let (word, id) = match stem.rsplit_once([':', '-']) {
        Some((head, id)) => (head.rsplit_once(':').map_or(head, |(_, word)| word), id),
        None => ("", stem),
    };
    // conmon supervises the container from outside, in a cgroup with the container's id.
    (is_id(id) && !word.split('-').any(|part| part == "conmon")).then_some((id, word))
}

/// Whether it is a full container id.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(is_hex)
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// The pod uid of one segment: `podUID`, or the slice `kubepods[-QOS]-podUID.slice` with its dashes made
/// underscores, because a dash nests slices.
fn pod_uid(segment: &str) -> Option<String> {
    let slice = segment.split_once(':').map_or(segment, |(slice, _)| slice);
    let uid = match slice.strip_suffix(".slice") {
        Some(stem) => {
            let (above, uid) = stem.rsplit_once("-pod")?;
            if !above.split('-').any(|part| part == "kubepods") {
                return None;
            }
            uid.replace('_', "-")
        }
        None => slice.strip_prefix("pod")?.to_owned(),
    };
    is_pod_uid(&uid).then_some(uid)
}

/// Whether it is a UUID, or the 32 hex digits of a static pod, which are the hash of its manifest.
fn is_pod_uid(uid: &str) -> bool {
    let groups: Vec<&str> = uid.split('-').collect();
    uid.bytes().all(|byte| byte == b'-' || is_hex(byte))
        && match *groups {
            [one] => one.len() == 32,
            [a, b, c, d, e] => [a.len(), b.len(), c.len(), d.len(), e.len()] == [8, 4, 4, 4, 12],
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "eebb8e08-a296-49c3-8679-03a110f0de3f";
    const SLICE_UID: &str = "eebb8e08_a296_49c3_8679_03a110f0de3f";
    const STATIC_UID: &str = "0123456789abcdef0123456789abcdef";

    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    /// Fills `{A}`, `{B}` (ids), `{U}` (uid), `{S}` (uid in a slice) and `{T}` (static uid).
    fn fill(text: &str) -> String {
        text.replace("{A}", &id('a'))
            .replace("{B}", &id('b'))
            .replace("{U}", UID)
            .replace("{S}", SLICE_UID)
            .replace("{T}", STATIC_UID)
    }

    /// Path; container, pod, unit and runtime, `-` for none.
    #[rustfmt::skip]
    const FORMS: &[(&str, [&str; 4])] = &[
        // Kubernetes, cgroupfs driver.
        ("/kubepods/pod{U}/{A}", ["{A}", "{U}", "-", "-"]),
        ("/kubepods/burstable/pod{U}/{A}", ["{A}", "{U}", "-", "-"]),
        ("/kubepods/besteffort/pod{T}/{A}", ["{A}", "{T}", "-", "-"]),
        ("/kubepods/besteffort/pod{U}/crio-{A}", ["{A}", "{U}", "-", "crio"]),
        ("/kubepods/besteffort/pod{U}/crio-conmon-{A}", ["-", "{U}", "-", "-"]),
        ("/kubepods/burstable/pod{U}", ["-", "{U}", "-", "-"]),
        // Kubernetes, systemd driver.
        ("/kubepods.slice/kubepods-pod{S}.slice/docker-{A}.scope", ["{A}", "{U}", "docker-{A}.scope", "docker"]),
        ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{S}.slice/cri-containerd-{A}.scope",
            ["{A}", "{U}", "cri-containerd-{A}.scope", "containerd"]),
        ("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{S}.slice/crio-{A}.scope/container",
            ["{A}", "{U}", "crio-{A}.scope", "crio"]),
        ("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{S}.slice/crio-conmon-{A}.scope",
            ["-", "{U}", "crio-conmon-{A}.scope", "-"]),
        ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{T}.slice/docker-{A}.scope",
            ["{A}", "{T}", "docker-{A}.scope", "docker"]),
        ("/kubepods.slice/kubepods-pod{S}.slice", ["-", "{U}", "kubepods-pod{S}.slice", "-"]),
        // A systemd name under the cgroupfs driver of the runtime.
        ("/system.slice/containerd.service/kubepods-burstable-pod{S}.slice:cri-containerd:{A}",
            ["{A}", "{U}", "containerd.service", "containerd"]),
        ("/kubepods-besteffort-pod{T}.slice:cri-containerd:{A}", ["{A}", "{T}", "-", "containerd"]),
        ("/kubepods-pod{S}.slice:crio:{A}", ["{A}", "{U}", "-", "crio"]),
        ("/kubepods-pod{S}.slice:docker:{A}", ["{A}", "{U}", "-", "docker"]),
        ("/system.slice:docker:{A}", ["{A}", "-", "-", "docker"]),
        // Without Kubernetes.
        ("/docker/{A}", ["{A}", "-", "-", "docker"]),
        ("/docker/{A}/init", ["{A}", "-", "-", "docker"]),
        ("/system.slice/docker-{A}.scope", ["{A}", "-", "docker-{A}.scope", "docker"]),
        ("/my-group/{A}", ["{A}", "-", "-", "-"]),
        ("/machine.slice/libpod-{A}.scope/container", ["{A}", "-", "libpod-{A}.scope", "podman"]),
        ("/machine.slice/libpod-conmon-{A}.scope", ["-", "-", "libpod-conmon-{A}.scope", "-"]),
        ("/libpod_parent/libpod-{A}", ["{A}", "-", "-", "podman"]),
        ("/libpod_parent/{B}/libpod-{A}", ["{A}", "-", "-", "podman"]),
        ("/libpod_parent/{B}", ["-", "-", "-", "-"]),
        ("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{A}.scope",
            ["-", "-", "user@1000.service", "-"]),
        ("/system.slice/nerdctl-{A}.scope", ["{A}", "-", "nerdctl-{A}.scope", "containerd"]),
        ("/k8s.io/{A}", ["{A}", "-", "-", "containerd"]),
        // Prefixes: a kubelet with --cgroup-root, kind, a reader in a cgroup namespace.
        ("/kubelet/kubepods/burstable/pod{U}/{A}", ["{A}", "{U}", "-", "-"]),
        ("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{S}.slice/cri-containerd-{A}.scope",
            ["{A}", "{U}", "cri-containerd-{A}.scope", "containerd"]),
        ("/../../kubepods/pod{U}/{A}", ["{A}", "{U}", "-", "-"]),
        ("/../cri-containerd-{A}.scope", ["{A}", "-", "cri-containerd-{A}.scope", "containerd"]),
        ("/docker/{A} (deleted)", ["{A}", "-", "-", "docker"]),
        // Units.
        ("/system.slice/kubelet.service", ["-", "-", "kubelet.service", "-"]),
        ("/system.slice/run-r0123456789abcdef0123456789abcdef.scope",
            ["-", "-", "run-r0123456789abcdef0123456789abcdef.scope", "-"]),
        ("/user.slice/user-0.slice/session-3.scope", ["-", "-", "session-3.scope", "-"]),
        ("/system.slice/system-getty.slice/getty@tty1.service", ["-", "-", "getty@tty1.service", "-"]),
        ("/system.slice/a.service/child", ["-", "-", "a.service", "-"]),
        // Nothing, or nearly something.
        ("/", ["-", "-", "-", "-"]),
        ("", ["-", "-", "-", "-"]),
        ("/.service/.slice", ["-", "-", "-", "-"]),
        ("/docker/0123", ["-", "-", "-", "-"]),
        ("/docker/{A}a", ["-", "-", "-", "-"]),
        ("/podium/podcast.slice", ["-", "-", "podcast.slice", "-"]),
        ("/system.slice/my-pod{S}.slice", ["-", "-", "my-pod{S}.slice", "-"]),
        ("/pod-eebb8e08a29649c386790-3a110f0de3f", ["-", "-", "-", "-"]),
        ("/kubepods/podé", ["-", "-", "-", "-"]),
    ];

    #[test]
    fn every_known_form_of_a_path_gives_its_names() {
        for (path, expected) in FORMS {
            let seen = identify(&fill(path));
            let seen = [
                seen.container_id.as_deref().unwrap_or("-"),
                seen.pod_uid.as_deref().unwrap_or("-"),
                seen.unit.as_deref().unwrap_or("-"),
                seen.runtime.map_or("-", Runtime::name),
            ];
            assert_eq!(seen, expected.map(fill), "{path}");
            assert_eq!(container_id(&fill(path)).unwrap_or("-"), fill(expected[0]), "{path}");
        }
    }

    #[test]
    fn a_user_is_charged_for_all_of_his_sessions_and_a_container_for_what_is_in_it() {
        for (path, tenants) in [
            ("/user.slice/user-1000.slice/session-3.scope", "user-1000.slice"),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope/y", "user-1000.slice"),
            ("/system.slice/docker-{A}.scope/made/here", "docker-{A}.scope"),
            ("/kubepods/burstable/pod{U}/{A}", "{A}"),
            ("/system.slice/kubelet.service", "kubelet.service"),
            ("/system.slice/a.service/child", "a.service"),
            ("/group/below", "group"),
            ("/", "/"),
        ] {
            assert_eq!(account(&fill(path)), fill(tenants), "{path}");
        }
    }

    #[test]
    fn a_container_cannot_impersonate_another_by_cgroups_below_its_own() {
        let path = fill("/docker/{A}/kubepods.slice/kubepods-pod{S}.slice/kubelet.service/docker-{B}.scope");
        let identity = identify(&path);
        assert_eq!(identity.container_id, Some(id('a')));
        assert_eq!((identity.pod_uid, identity.unit), (None, None));
        assert_eq!(identity.runtime, Some(Runtime::Docker));
        let nested = identity.nested.unwrap();
        assert_eq!(nested.container_id, Some(id('b')));
        assert_eq!(nested.pod_uid.as_deref(), Some(UID));
    }

    #[test]
    fn a_user_cannot_impersonate_a_container() {
        let path =
            fill("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{A}.scope/container");
        let identity = identify(&path);
        assert_eq!((identity.container_id, identity.unit.as_deref()), (None, Some("user@1000.service")));
        assert_eq!(container_id(&path), None);
        let nested = identity.nested.unwrap();
        assert_eq!((nested.container_id, nested.runtime), (Some(id('a')), Some(Runtime::Podman)));
    }

    #[test]
    fn whoever_a_part_of_the_tree_is_delegated_to_gives_no_names_to_others() {
        let path = fill("/lxc.payload.x//kubepods.slice/kubepods-pod{S}.slice/a.service/docker-{A}.scope/b");
        let identity = identify(&path);
        assert_eq!((&identity.container_id, &identity.pod_uid, &identity.unit), (&None, &None, &None));
        let nested = identity.nested.unwrap();
        assert_eq!((nested.container_id, nested.pod_uid.as_deref()), (Some(id('a')), Some(UID)));
        assert_eq!((owner(&path), account(&path)), (None, "lxc.payload.x"));
        // A container to which its own group is delegated is itself, and so is a service.
        let own = identify(&fill("/docker/{A}//init.scope"));
        assert_eq!((own.container_id, own.nested.unwrap().unit), (Some(id('a')), Some("init.scope".into())));
        assert_eq!(account("/system.slice/build.service//kubelet.service"), "build.service");
        let forged = fill("//docker/{A}");
        assert_eq!(most_specific(["/", forged.as_str()].into_iter()), Some(forged.as_str()));
        assert_eq!((identify(&forged).container_id, account(&forged)), (None, "/"));
        assert_eq!(container_id(&forged), None);
    }

    #[test]
    fn a_path_tells_where_the_names_of_root_end() {
        let made = |names: &[(&'static str, bool)]| path(names.iter().copied());
        assert_eq!(made(&[]), "");
        assert_eq!(made(&[("a", true), ("b", true)]), "/a/b");
        assert_eq!(made(&[("a", true), ("b", false), ("c", true), ("d", false)]), "/a//b/c/d");
        assert!(is_roots(0, 0o755) && !is_roots(1000, 0o755) && !is_roots(0, 0o775) && !is_roots(0, 0o757));
    }

    #[test]
    fn containers_of_a_node_that_is_itself_a_container_are_nested() {
        let identity = identify(&fill("/docker/{A}/kubelet/kubepods/pod{U}/{B}"));
        assert_eq!(identity.container_id, Some(id('a')));
        let nested = identity.nested.unwrap();
        assert_eq!((nested.container_id, nested.pod_uid.as_deref()), (Some(id('b')), Some(UID)));
        assert_eq!(
            identify(&fill("/docker/{A}/system.slice/x.service")).nested.unwrap().unit.as_deref(),
            Some("x.service")
        );
    }
}
