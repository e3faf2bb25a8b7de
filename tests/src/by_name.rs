//! A network of pods that remembers endpoints by the name of the pod, as Calico does: each pod has an address of its own,
//! a default route via 169.254.1.1, and a static neighbor entry for that gateway.
//!
//! `DEL` takes the gateway from whoever has the name now, whatever sandbox the call is for; and it can be made to fail.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::write_script;

/// What the plugin is called.
const NAME: &str = "calico";

/// The plugin: `endpoints/` beside it has the network namespace of each pod, `refused/` the names of those whose `DEL`
/// fails.
const PLUGIN: &str = r#"#!/bin/sh
set -eu
here=$(dirname "$0")
field() { printf %s "$CNI_ARGS" | tr ';' '\n' | sed -n "s/^$1=//p"; }
# A name below the directory of named namespaces: started by nsenter, `ip` would be no child of this program.
within() { ip -n "../..$@"; }

if [ "$CNI_COMMAND" = VERSION ]; then
    echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}'
    exit
fi
config=$(cat)
addresses() { printf %s "$config" | /usr/lib/cni/host-local; }
pod=$(field K8S_POD_NAMESPACE).$(field K8S_POD_NAME)
endpoint=$here/endpoints/$pod
link=cali$(printf %.11s "$CNI_CONTAINERID")

case $CNI_COMMAND in
ADD)
    address=$(addresses | sed -n 's|.*"address": *"\([0-9.]*\)/.*|\1|p' | head -n 1)
    ip link add "$link" address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns "$CNI_NETNS"
    ip link set "$link" up
    ip route add "$address/32" dev "$link" scope link
    within "$CNI_NETNS" -batch - <<END
link set eth0 up
address add $address/32 dev eth0
route add 169.254.1.1 dev eth0 scope link
route add default via 169.254.1.1 dev eth0
neigh replace 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent
END
    echo "$CNI_NETNS $(readlink "$CNI_NETNS")" >"$endpoint"
    echo "{\"cniVersion\":\"0.4.0\",\"interfaces\":[{\"name\":\"$link\"},{\"name\":\"eth0\",\"sandbox\":\"$CNI_NETNS\"}]," \
        "\"ips\":[{\"version\":\"4\",\"address\":\"$address/32\",\"interface\":1}]}"
    ;;
DEL)
    if [ -e "$here/refused/$pod" ]; then
        echo '{"cniVersion":"0.4.0","code":100,"msg":"resource does not exist: WorkloadEndpoint"}'
        exit 1
    fi
    if read -r netns identity 2>/dev/null <"$endpoint"; then
        # It may have gone with its pod.
        [ "$(readlink "$netns")" != "$identity" ] || within "$netns" neigh del 169.254.1.1 dev eth0 || :
        rm -f "$endpoint"
    fi
    ip link del "$link" 2>/dev/null || :
    addresses
    ;;
esac
"#;

/// Puts the plugin into a directory of plugins, and returns its name.
pub(crate) fn install(directory: &Path) -> &'static str {
    for name in ["endpoints", "refused"] {
        fs::create_dir(directory.join(name)).expect("a directory can be made");
    }
    write_script(&directory.join(NAME), PLUGIN);
    NAME
}

/// The network of the pods of a namespace of Kubernetes.
#[derive(Debug)]
pub struct Network {
    directory: PathBuf,
    namespace: String,
}

impl Network {
    pub(crate) fn new(directory: PathBuf, namespace: String) -> Self {
        Self { directory, namespace }
    }

    /// Has each `DEL` fail that is for a pod of this name, until [`Self::accept_deletions`].
    pub fn refuse_deletions(&self, pod: &str) {
        fs::write(self.refusal(pod), "").expect("a file can be written");
    }

    /// Has them succeed again.
    pub fn accept_deletions(&self, pod: &str) {
        fs::remove_file(self.refusal(pod)).expect("they were refused");
    }

    /// The directory of files `NAMESPACE.NAME` of the pods whose `DEL` fails.
    #[must_use]
    pub fn refused(&self) -> PathBuf {
        self.directory.join("refused")
    }

    fn refusal(&self, pod: &str) -> PathBuf {
        self.refused().join(format!("{}.{pod}", self.namespace))
    }
}
