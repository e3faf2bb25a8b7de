//! Whether a program is run as the daemon that it may be. The same file is also a tool, as in `containerd config`, prints its
//! version, or helps the daemon under another name, as `libnetwork-setkey`, which is `dockerd`.
//!
//! In: the arguments of a process. They are read as the program itself reads them: containerd and CRI-O by urfave/cli, the
//! others by pflag, where a single dash begins short flags.

use super::NAMES;

/// Subcommands of containerd and CRI-O, which may come behind flags.
const COMMANDS: [&str; 14] = [
    "check", "complete", "completion", "config", "h", "help", "man", "markdown", "md", "oci-hook", "publish",
    "status", "version", "wipe",
];

/// `name`: of its file; `arguments`: with its own name first.
pub(super) fn is_run(name: &str, arguments: &[String]) -> bool {
    let own = arguments.first().and_then(|own| own.rsplit('/').next());
    let given = arguments.get(1..).unwrap_or_default();
    match name {
        "hyperkube" => {
            given.first().is_some_and(|first| first == "kubelet") && is_daemon("kubelet", &given[1..])
        }
        "k3s" => own == Some("containerd") && is_daemon("containerd", given),
        "podman" => {
            let is_service = given.windows(2).any(|words| words == ["system", "service"]);
            is_service && !given.iter().any(|word| is_question(name, word))
        }
        _ => own.is_none_or(|own| NAMES.contains(&own)) && is_daemon(name, given),
    }
}

/// With any other first word a daemon refuses to run, but it is what was to run.
fn is_daemon(name: &str, given: &[String]) -> bool {
    let has_commands = has_subcommands(name);
    let is_command = |word: &String| has_commands && COMMANDS.contains(&word.as_str());
    let is_tool = given.first().is_some_and(|first| !first.starts_with('-')) || given.iter().any(is_command);
    !is_tool && !given.iter().any(|word| is_question(name, word))
}

fn has_subcommands(name: &str) -> bool {
    matches!(name, "containerd" | "docker-containerd" | "crio")
}

/// Whether an argument has the program only print or check something. That of `-v` is the verbosity of a kubelet.
fn is_question(name: &str, word: &str) -> bool {
    let Some(flag) = word.strip_prefix('-') else { return false };
    let (flag, value) = flag.split_once('=').unwrap_or((flag, "true"));
    let is_short = flag.len() == 1;
    // By pflag, a single dash begins short flags; by urfave/cli it is as good as two.
    let is_long = flag.starts_with('-') || has_subcommands(name);
    let is_one = match flag.trim_start_matches('-') {
        "h" => is_short,
        "v" => is_short && !matches!(name, "kubelet" | "cri-dockerd"),
        "help" | "version" => is_long,
        "validate" => is_long && name == "dockerd",
        "buildinfo" => is_long && name == "cri-dockerd",
        _ => false,
    };
    is_one && value != "false"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn expect(is_daemon: bool, commands: &[&str]) {
        for command in commands {
            let arguments: Vec<String> = command.split(' ').map(str::to_owned).collect();
            let name = arguments[0].rsplit('/').next().unwrap();
            assert_eq!(is_run(name, &arguments), is_daemon, "{command}");
        }
    }

    #[test]
    fn a_daemon_is_one_whatever_its_flags_are() {
        expect(
            true,
            &[
                "/usr/bin/containerd",
                "containerd --config /etc/containerd/config.toml --log-level debug",
                "containerd -c=config --root /help",
                "containerd --unheard-of value",
                "docker-containerd -l unix:///x.sock --start-timeout 2m",
                "crio --unheard-of value --log-level info",
                "dockerd -H fd:// --containerd=/run/containerd/containerd.sock",
                "dockerd --data-root /x --validate=false",
                "kubelet --v 2 --config /x --cgroup-driver systemd",
                "kubelet -v 2",
                "kubelet --node-ip ::",
                "cri-dockerd --container-runtime-endpoint fd:// -v",
                "hyperkube kubelet --v=2",
                "podman --log-level debug system service --time 0",
            ],
        );
        let k3s = |words: &str| {
            let arguments: Vec<String> = words.split(' ').map(str::to_owned).collect();
            is_run("k3s", &arguments)
        };
        assert!(k3s("containerd -c /var/lib/rancher/k3s/agent/etc/containerd/config.toml -a /run/x.sock"));
        assert!(!k3s("containerd -c /x config dump") && !k3s("k3s server"));
    }

    #[test]
    fn a_tool_is_none_whatever_flags_come_before_its_subcommand() {
        expect(
            false,
            &[
                "containerd config dump",
                "containerd --config /etc/containerd/config.toml config dump",
                "containerd --config=/etc/containerd/config.toml config dump",
                "containerd -config /x config dump",
                "containerd -c /x -l debug config default",
                "containerd --config config config dump",
                "containerd --unheard-of config dump",
                "containerd --address /x publish --topic /t",
                "containerd --log-level debug help",
                "containerd --config /x --version",
                "containerd -version",
                "containerd -v",
                "containerd --help=true",
                "crio --config /x config",
                "crio --enable-metrics version",
                "crio -c /x wipe",
                "dockerd --config-file /x --validate",
                "dockerd --version",
                "dockerd daemon",
                "kubelet --version=raw",
                "kubelet --help",
                "cri-dockerd --buildinfo",
                "hyperkube apiserver",
                "hyperkube kubelet --version",
                "podman system service --help",
                "podman ps",
            ],
        );
        let helper = ["libnetwork-setkey".to_owned(), "a".to_owned()];
        assert!(!is_run("dockerd", &helper), "under another name");
    }
}
