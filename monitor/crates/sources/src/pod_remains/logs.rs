//! The name of a pod by the directory of its logs, `/var/log/pods/NAMESPACE_NAME_UID`: known even where the daemon has seen
//! no container of it. The kubelet makes it as root; where others may make directories there, it tells nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kevtmon_observation::PodRemains;
use kevtmon_observation::cgroup::is_roots;

use crate::kubelet::below;

const DIRECTORY: &str = "/var/log/pods";
const ENTRIES_MAX: usize = 8192;

/// Names these pods by the directories of the tree below `top`.
pub(super) fn name<'p>(top: &Path, pods: impl Iterator<Item = &'p mut PodRemains>) {
    let names = names(&below(top, DIRECTORY));
    for pod in pods {
        pod.name = names.get(pod.uid.as_str()).cloned().flatten();
    }
}

/// Namespace and name by uid; none of a uid that two directories name differently.
fn names(directory: &Path) -> BTreeMap<String, Option<(String, String)>> {
    let mut names = BTreeMap::new();
    let is_kubelets =
        fs::symlink_metadata(directory).is_ok_and(|it| it.is_dir() && is_roots(it.uid(), it.mode()));
    let entries = is_kubelets.then(|| fs::read_dir(directory).ok()).flatten();
    for entry in entries.into_iter().flatten().flatten().take(ENTRIES_MAX) {
        let text = entry.file_name();
        // No name in Kubernetes has an underscore.
        let parts: Vec<&str> = text.to_str().unwrap_or_default().split('_').collect();
        if let [namespace, name, uid] = parts[..] {
            let found = Some((namespace.to_owned(), name.to_owned()));
            names
                .entry(uid.to_owned())
                .and_modify(|known| {
                    if *known != found {
                        *known = None;
                    }
                })
                .or_insert(found);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_pod_is_named_only_by_directories_that_nobody_but_root_can_make() {
        let logs = tempfile::tempdir().unwrap();
        for name in ["cam_cam1-78b_u1", "web_web-0_u2", "x_y_u2", "no-pod", "a_b_c_d"] {
            fs::create_dir(logs.path().join(name)).unwrap();
        }
        let of = |uid: &str| names(logs.path()).get(uid).cloned().flatten();
        // Its owner is not root where the tests are not run by root.
        if fs::metadata(logs.path()).unwrap().uid() == 0 {
            assert_eq!(of("u1"), Some(("cam".into(), "cam1-78b".into())));
        }
        assert_eq!(of("u2"), None, "two names");
        assert_eq!(of("d"), None);
        fs::set_permissions(logs.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(of("u1"), None);
    }
}
