//! runc as the tests start it, where a container would get what this machine itself does not have.

use std::path::Path;

use crate::process::write_script;

/// Without `CAP_SYS_RESOURCE` it can make no process less likely to be killed than itself, and no container privileged.
const SCRIPT: &str = r#"#!/bin/sh
[ ! -e "$0.broken" ] || exit 1
adapt() {
    sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/; s|"env":\[|&ENVIRONMENT|' "$1"
    grep -q '^CapBnd:.*[13579bdf]......$' /proc/self/status && return
    sed -i 's/,"CAP_SYS_RESOURCE"//g; s/"CAP_SYS_RESOURCE",//g' "$1"
}
previous=
for word; do
    case "$previous" in
    --bundle) adapt "$word/config.json" ;;
    --process) adapt "$word" ;;
    esac
    previous=$word
done
exec runc "$@"
"#;

/// Puts it into a directory as `runc`. It fails while `runc.broken` is beside it. All processes of its containers have these
/// variables, too.
///
/// Returns the arguments of dockerd that make it the runtime of all containers.
#[must_use]
pub fn install(directory: &Path, environment: &[(&str, &str)]) -> [String; 2] {
    let file = directory.join("runc");
    let variables: String = environment.iter().map(|(name, value)| format!("\"{name}={value}\",")).collect();
    write_script(&file, &SCRIPT.replace("ENVIRONMENT", &variables));
    [format!("--add-runtime=tests={}", file.display()), "--default-runtime=tests".to_owned()]
}
