//! Calls of CNI plugins by this process, with the environment that a kubelet gives them.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use crate::daemon::{Daemon, Launch, launch};
use crate::event::Event;
use crate::mount::Scratch;
use crate::process::{Finished, finish, write_script};

/// Where Debian has the plugins (package containernetworking-plugins).
pub const PLUGINS: &str = "/usr/lib/cni";

/// Namespace of all pods.
pub const NAMESPACE: &str = "lijiaob";

/// A plugin that does nothing.
pub const OK: &str = "#!/bin/sh\nexit 0\n";

/// A call; its environment is in the order of the names.
#[must_use]
pub fn call(plugin: impl AsRef<OsStr>, command: &str, id: &str) -> Command {
    let mut call = Command::new(plugin);
    call.env_clear().env("PATH", "/usr/bin:/bin").env("CNI_COMMAND", command).env("CNI_CONTAINERID", id);
    call.env("CNI_IFNAME", "eth0").env("CNI_PATH", PLUGINS);
    call.env("CNI_ARGS", args("etcd1-0", "0f7e8a52-6e3b-11e8-9a2c-525400c5d0aa", id));
    call
}

/// What tells the pod of a call, as runtimes behind the CRI write it.
#[must_use]
pub fn args(pod: &str, uid: &str, id: &str) -> String {
    format!("{};K8S_POD_UID={uid}", dockershim_args(pod, id))
}

/// The same as a kubelet with dockershim writes it, which does not tell the identity of the pod.
#[must_use]
pub fn dockershim_args(pod: &str, id: &str) -> String {
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={id}"
    )
}

/// Makes a call of a plugin that reads no configuration.
pub fn finished(mut call: Command) -> Finished {
    finish(call.stdin(Stdio::null()), "plugin".as_ref())
}

/// A daemon that knows plugins of the test's own, beside those of Debian.
#[must_use]
pub fn plugins(scratch: &Scratch, all: &[(&str, &str)]) -> Launch {
    plugins_and(scratch, all, "")
}

/// The same with more in its configuration.
#[must_use]
pub fn plugins_and(scratch: &Scratch, all: &[(&str, &str)], further: &str) -> Launch {
    for (name, text) in all {
        write_script(&scratch.path().join(name), text);
    }
    launch()
        .config(&format!("[cni]\nbin_dirs = [\"{PLUGINS}\", \"{}\"]\n{further}", scratch.path().display()))
}

/// Waits for the end of a call.
pub fn wait_for_end(daemon: &mut Daemon, id: &str, command: &str) -> Event {
    daemon.wait_for(&format!("the end of {command}"), |event| {
        event.kind() == "cni.finished"
            && event.text("/cni/container_id") == id
            && event.text("/cni/command") == command
    })
}
