//! Where a kubelet or runtime has its CNI plugins, by its command line and by its configuration files.
//!
//! In: the arguments of a process that is root of the node, and its root directory. Out: absolute paths, as the process
//! itself puts them before the name of a plugin. What cannot be read or parsed names none.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io::Read as _;
use std::path::Path;

use kevtmon_types::regular_file;
use toml::{Table, Value};

use crate::kubelet::{below, is_plain};
use crate::procfs::readers::reading_none;
use crate::programs::flag;

const DIRECTORIES_MAX: usize = 16;
const FILES_MAX: usize = 64;
/// Real ones have some kilobytes.
const FILE_MAX: u64 = 1 << 20;
/// Those of all programs: a runtime that has its plugins there makes none of the other programs a plugin.
const GENERAL: [&str; 6] = ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
/// What the table of containerd's CRI plugin is called: in version 3 of its configuration, in 2, and in 1.
const CRI: [&str; 3] = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"];

pub(super) fn of(name: &str, arguments: &[String], top: &Path) -> BTreeSet<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let given = |names: &[&str]| flag(&arguments, names).map(str::to_owned);
    let listed = |names: &[&str]| -> Vec<String> {
        given(names).iter().flat_map(|list| list.split(',')).map(str::to_owned).collect()
    };
    // Only files of the node from here on.
    reading_none();
    let files = Files { top };
    let found = match name {
        "kubelet" | "cri-dockerd" => listed(&["--cni-bin-dir"]),
        "containerd" => {
            let main = given(&["--config", "-c"]).unwrap_or_else(|| "/etc/containerd/config.toml".to_owned());
            files.of_containerd(main)
        }
        "crio" => {
            let main = given(&["--config", "-c"]).unwrap_or_else(|| "/etc/crio/crio.conf".to_owned());
            let more = given(&["--config-dir", "-d"]).unwrap_or_else(|| "/etc/crio/crio.conf.d".to_owned());
            let mut found = files.of_crio(&main, &more);
            found.extend(listed(&["--cni-plugin-dir"]));
            found
        }
        _ => Vec::new(),
    };
    let found = found.iter().filter_map(|directory| cleaned(directory));
    found.filter(|directory| !GENERAL.contains(&directory.as_str())).take(DIRECTORIES_MAX).collect()
}

/// As Go joins paths.
fn cleaned(directory: &str) -> Option<String> {
    let names: Vec<&str> = directory.split('/').filter(|name| !name.is_empty()).collect();
    is_plain(directory).then(|| format!("/{}", names.join("/")))
}

struct Files<'a> {
    top: &'a Path,
}

impl Files<'_> {
    fn read(&self, path: &str) -> Option<Table> {
        let mut text = String::new();
        let file = regular_file::open(&below(self.top, path)).ok()?;
        file.take(FILE_MAX).read_to_string(&mut text).ok()?;
        text.parse().ok()
    }

    fn list(&self, directory: &str, start: &str, end: &str) -> Vec<String> {
        let entries = fs::read_dir(below(self.top, directory)).into_iter().flatten().take(4 * FILES_MAX);
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let is_meant = |name: &String| {
            name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)) && !name.starts_with('.')
        };
        let mut files: Vec<String> =
            names.filter(is_meant).map(|name| format!("{directory}/{name}")).collect();
        files.sort_unstable();
        files
    }

    /// What an import of containerd's names: a path, or a pattern of names in one directory.
    fn imported(&self, by: &str, import: &str) -> Vec<String> {
        let directory = by.rsplit_once('/').map_or("", |(directory, _)| directory);
        let path = if import.starts_with('/') { import.to_owned() } else { format!("{directory}/{import}") };
        match path.rsplit_once('/').map(|(directory, name)| (directory, name.split_once('*'))) {
            Some((directory, Some((start, end)))) => self.list(directory, start, end),
            _ => vec![path],
        }
    }

    fn of_containerd(&self, main: String) -> Vec<String> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        // Since 2.1 these are read where the file itself imports nothing.
        let mut files: VecDeque<String> = VecDeque::from([main]);
        files.extend(self.list("/etc/containerd/conf.d", "", ".toml"));
        while let Some(file) = files.pop_front() {
            if seen.len() >= FILES_MAX || !seen.insert(file.clone()) {
                continue;
            }
            let Some(table) = self.read(&file) else { continue };
            for name in CRI {
                let cni = at(&table, &["plugins", name, "cni"]).and_then(Value::as_table);
                found.extend(cni.into_iter().flat_map(|cni| texts(cni.get("bin_dir"))));
                found.extend(cni.into_iter().flat_map(|cni| texts(cni.get("bin_dirs"))));
            }
            files.extend(texts(table.get("imports")).flat_map(|import| self.imported(&file, &import)));
        }
        found
    }

    fn of_crio(&self, main: &str, more: &str) -> Vec<String> {
        let files = std::iter::once(main.to_owned()).chain(self.list(more, "", ""));
        let mut found = Vec::new();
        for table in files.take(FILES_MAX).filter_map(|file| self.read(&file)) {
            for name in ["plugin_dirs", "plugin_dir"] {
                found.extend(texts(at(&table, &["crio", "network", name])));
            }
        }
        found
    }
}

fn at<'t>(table: &'t Table, names: &[&str]) -> Option<&'t Value> {
    let (last, above) = names.split_last()?;
    above.iter().try_fold(table, |table, name| table.get(*name)?.as_table())?.get(*last)
}

fn texts(value: Option<&Value>) -> impl Iterator<Item = String> {
    let list = value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let all = value.into_iter().chain(list);
    all.filter_map(|value| value.as_str().map(str::to_owned)).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directories(name: &str, arguments: &[&str], files: &[(&str, &str)]) -> Vec<String> {
        let top = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = top.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix("-> ") {
                Some(target) => std::os::unix::fs::symlink(target, &path).unwrap(),
                None => fs::write(&path, text).unwrap(),
            }
        }
        let arguments: Vec<String> =
            std::iter::once(name).chain(arguments.iter().copied()).map(Into::into).collect();
        of(name, &arguments, top.path()).into_iter().collect()
    }

    #[test]
    fn a_kubelet_names_them_on_its_command_line() {
        let of = |arguments: &[&str]| directories("kubelet", arguments, &[]);
        assert_eq!(of(&["--cni-bin-dir=/data/cni/bin/"]), ["/data/cni/bin"]);
        assert_eq!(of(&["--v", "2", "--cni-bin-dir", "/a//b,/opt/cni/bin"]), ["/a/b", "/opt/cni/bin"]);
        assert_eq!(of(&["--cni-bin-dir=/a", "--cni-bin-dir=/b"]), ["/b"]);
        for none in
            [&["--cni-bin-dirs=/a"][..], &["--cni-bin-dir"], &["--cni-bin-dir=a,../b,/a/../b,/,"], &[]]
        {
            assert_eq!(of(none), Vec::<String>::new(), "{none:?}");
        }
        assert_eq!(of(&["--cni-bin-dir=/usr/bin,/sbin/,/c"]), ["/c"], "not every program there is a plugin");
        assert_eq!(directories("cri-dockerd", &["--cni-bin-dir=/d"], &[]), ["/d"]);
        assert_eq!(directories("dockerd", &["--cni-bin-dir=/d"], &[]), Vec::<String>::new());
    }

    #[test]
    fn containerd_has_them_in_any_version_of_its_configuration_and_in_what_that_imports() {
        let version =
            |table: &str| format!("[plugins.{table}.cni]\nbin_dir = '/data/bin'\nconf_dir = '/etc/cni'\n");
        for table in ["cri", "\"io.containerd.grpc.v1.cri\"", "'io.containerd.cri.v1.runtime'"] {
            let of = directories("containerd", &[], &[("etc/containerd/config.toml", &version(table))]);
            assert_eq!(of, ["/data/bin"], "{table}");
            for flag in [&["--config=/k/c.toml"][..], &["-c", "/k/c.toml", "-a", "/run/k.sock"]] {
                assert_eq!(directories("containerd", flag, &[("k/c.toml", &version(table))]), ["/data/bin"]);
            }
        }
        let of = directories(
            "containerd",
            &[],
            &[
                ("etc/containerd/config.toml", "imports = ['conf/*.toml', '/more.toml', 'config.toml']\n"),
                ("etc/containerd/conf/a.toml", "[plugins.cri.cni]\nbin_dirs = ['/a', '/b']\n"),
                ("etc/containerd/conf/b.txt", "[plugins.cri.cni]\nbin_dirs = ['/no']\n"),
                (
                    "etc/containerd/conf.d/c.toml",
                    "[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/c']\n",
                ),
                (
                    "more.toml",
                    "imports = ['etc/containerd/config.toml']\n[plugins.cri.cni]\nbin_dir = '/d'\n",
                ),
            ],
        );
        assert_eq!(of, ["/a", "/b", "/c", "/d"]);
    }

    #[test]
    fn cri_o_has_them_in_its_files_and_on_its_command_line() {
        let of = directories(
            "crio",
            &["--cni-plugin-dir", "/f"],
            &[
                ("etc/crio/crio.conf", "[crio.network]\nplugin_dirs = ['/a/', '/b']\n"),
                ("etc/crio/crio.conf.d/01-x", "[crio.network]\nplugin_dir = '/c'\n"),
                ("etc/crio/crio.conf.d/.02-x", "[crio.network]\nplugin_dir = '/no'\n"),
            ],
        );
        assert_eq!(of, ["/a", "/b", "/c", "/f"]);
        let elsewhere =
            [("x", "[crio.network]\nplugin_dir = '/c'\n"), ("y/z", "[crio.network]\nplugin_dir = '/d'\n")];
        assert_eq!(directories("crio", &["-c", "/x", "--config-dir=/y"], &elsewhere), ["/c", "/d"]);
    }

    #[test]
    fn what_is_no_configuration_names_none_and_links_stay_below_the_root() {
        let secret = tempfile::NamedTempFile::new().unwrap();
        fs::write(&secret, "[plugins.cri.cni]\nbin_dir = '/outside'\n").unwrap();
        let link = format!("-> {}", secret.path().display());
        for text in [
            link.as_str(),
            "plugins = 7",
            "imports = 7",
            "[plugins.cri]\ncni = ['/a']",
            "\u{0}",
            "imports = ['*']",
        ] {
            let of = directories("containerd", &[], &[("etc/containerd/config.toml", text)]);
            assert_eq!(of, Vec::<String>::new(), "{text:?}");
        }
        let many: Vec<String> = (0..100).map(|n| format!("'/{n}'")).collect();
        let many = format!("[crio.network]\nplugin_dirs = [{}]\n", many.join(","));
        assert_eq!(directories("crio", &[], &[("etc/crio/crio.conf", &many)]).len(), DIRECTORIES_MAX);
    }
}
