//! Every setting with its explanation: the commented default file, and what a file comes to. The keys that a
//! file may have are [`super::file`]'s; a test holds both together. Defaults come from the merge itself.

use super::Config;
use super::runtime::Runtimes;

/// One setting.
struct Setting {
    /// Table it stands in; empty for the top.
    table: &'static str,
    key: &'static str,
    explanation: &'static str,
    /// Its value as TOML.
    value: fn(&Config) -> String,
}

const fn setting(
    table: &'static str,
    key: &'static str,
    explanation: &'static str,
    value: fn(&Config) -> String,
) -> Setting {
    Setting { table, key, explanation, value }
}

/// In the order of the file: what stands at the top first, then table by table.
const SETTINGS: &[Setting] = &[
    setting(
        "",
        "node_name",
        "Name of this node in events. Default: KEVTMON_NODE_NAME from the environment, else the host name.",
        |config| quoted(&config.node_name),
    ),
    setting("", "socket", "Socket that queries are answered on, for root and its group.", |config| {
        quoted(&config.socket.to_string_lossy())
    }),
    setting("", "state_dir", "Where state is kept.", |config| quoted(&config.state_dir.to_string_lossy())),
    setting(
        "",
        "cmdline",
        "Whose command lines are shown, masked: off, host (processes outside containers) or all.",
        |config| quoted(config.cmdline.name()),
    ),
    setting("", "require_ebpf", "Whether to end when the kernel programs cannot run.", |config| {
        config.require_ebpf.to_string()
    }),
    setting(
        "output",
        "format",
        "Form of the events on standard output: pretty, json or none. Default: pretty on a terminal, else json.",
        |config| quoted(config.format.name()),
    ),
    setting(
        "output",
        "min_severity",
        "Least severity on standard output: debug, info, notice, warning or critical. Events of the daemon\n\
         itself and of incidents pass always. Default: info on a terminal, else notice.",
        |config| quoted(config.min_severity.name()),
    ),
    setting("metrics", "listen", "Addresses of metrics and health; none when empty.", |config| {
        list(config.listen.iter().map(ToString::to_string))
    }),
    setting(
        "runtime",
        "sockets",
        "Container runtimes: \"auto\", \"none\", or a list such as [\"docker=/run/docker.sock\"].",
        |config| match &config.runtimes {
            Runtimes::Auto => quoted("auto"),
            Runtimes::Sockets(sockets) => list(sockets.iter().map(ToString::to_string)),
        },
    ),
    setting(
        "hooks",
        "neighbor",
        "How neighbor changes are learned: auto (the best way that the kernel gives), tp_btf, netlink (no actor)\n\
         or off.",
        |config| hook(config, "neighbor"),
    ),
    setting(
        "hooks",
        "umount",
        "How unmount attempts are learned: auto (the best way that the kernel gives), tracepoint or off.",
        |config| hook(config, "umount"),
    ),
    setting(
        "hooks",
        "ring_kib",
        "Size of the ring buffer in KiB, a power of two from 64 to 2048; it counts twice as resident memory.",
        |config| (config.ring_bytes / 1024).to_string(),
    ),
    setting(
        "incidents",
        "learned_gateway_failed_seconds",
        "A learned gateway entry may stay unresolved for so long.",
        |config| config.incidents.learned_gateway_failed_seconds.to_string(),
    ),
    setting("incidents", "gateway_critical_seconds", "A lost gateway is critical after so long.", |config| {
        config.incidents.gateway_critical_seconds.to_string()
    }),
    setting(
        "incidents",
        "gateway_confirm_seconds",
        "What is seen in the tables only must still be so after so long.",
        |config| config.incidents.gateway_confirm_seconds.to_string(),
    ),
    setting(
        "incidents",
        "gateway_young_pod_seconds",
        "A pod younger than that may not have its gateway yet.",
        |config| config.incidents.gateway_young_pod_seconds.to_string(),
    ),
    setting(
        "incidents",
        "gateway_teardown_seconds",
        "A pod whose network is taken away as a whole may live on for so long: it is being deleted.",
        |config| config.incidents.gateway_teardown_seconds.to_string(),
    ),
    setting(
        "incidents",
        "gateway_static_pods",
        "A pod without static gateway entry has lost it if so many like it have one.",
        |config| config.incidents.gateway_static_pods.to_string(),
    ),
    setting(
        "incidents",
        "gateway_static_percent",
        "A pod without static gateway entry has lost it only if such a share, in percent, of those like it have one.",
        |config| config.incidents.gateway_static_percent.to_string(),
    ),
    setting(
        "incidents",
        "volume_busy_warning_attempts",
        "A busy volume is worth a warning after so many refused attempts to unmount it.",
        |config| config.incidents.volume_busy_warning_attempts.to_string(),
    ),
    setting(
        "incidents",
        "volume_busy_warning_seconds",
        "A busy volume is worth a warning after so long, in seconds.",
        |config| config.incidents.volume_busy_warning_seconds.to_string(),
    ),
    setting(
        "incidents",
        "volume_busy_critical_seconds",
        "A busy volume is critical after so long.",
        |config| config.incidents.volume_busy_critical_seconds.to_string(),
    ),
    setting(
        "incidents",
        "volume_busy_expire_seconds",
        "Nobody tries to unmount it any more after so long without an attempt.",
        |config| config.incidents.volume_busy_expire_seconds.to_string(),
    ),
    setting("store", "enabled", "Whether events and incidents are kept in the state directory.", |config| {
        config.store.is_some().to_string()
    }),
    setting("store", "max_age_days", "For how many days events are kept.", |config| {
        (config.store.unwrap_or_default().max_age.as_secs() / 86_400).to_string()
    }),
    setting("store", "max_mib", "Most space of the store in MiB, its log included.", |config| {
        (config.store.unwrap_or_default().max_bytes >> 20).to_string()
    }),
    setting(
        "recorder",
        "enabled",
        "Whether the last minutes are recorded in the state directory.",
        |config| config.recorder.enabled.to_string(),
    ),
    setting("recorder", "minutes", "How far back the flight recorder reaches.", |config| {
        config.recorder.minutes.to_string()
    }),
    setting(
        "recorder",
        "max_mib",
        "Most space of the flight recorder in MiB; windows of incidents have space of their own.",
        |config| config.recorder.max_mib.to_string(),
    ),
];

/// A file with every setting, explained and commented out.
pub(super) fn commented(defaults: &Config) -> String {
    let mut text =
        "# Configuration of kevtmon. Every setting is optional; what stands here are the defaults.\n"
            .to_owned();
    write(&mut text, defaults, true);
    text
}

/// A file that says in full what a configuration is.
pub(super) fn effective(config: &Config) -> String {
    let mut text = String::new();
    write(&mut text, config, false);
    text
}

fn write(text: &mut String, config: &Config, commented: bool) {
    let mut table = "";
    for setting in SETTINGS {
        if setting.table != table {
            table = setting.table;
            text.push_str(&format!("\n[{table}]\n"));
        }
        let value = (setting.value)(config);
        if commented {
            let explanation: Vec<&str> = setting.explanation.lines().map(str::trim).collect();
            text.push_str(&format!("\n# {}\n# {} = {value}\n", explanation.join("\n# "), setting.key));
        } else {
            text.push_str(&format!("{} = {value}\n", setting.key));
        }
    }
}

fn hook(config: &Config, name: &str) -> String {
    let hook = crate::sources::bpf::hooks::HOOKS.iter().find(|hook| hook.name == name);
    quoted(hook.map_or("", |hook| config.hooks.of(hook).name()))
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.map(|item| quoted(&item)).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::config::file::{self, File, FileError};
    use crate::config::{Overrides, Surroundings, merge};

    fn around() -> Surroundings {
        Surroundings { host_name: Some("node-1".into()), ..Surroundings::default() }
    }

    fn defaults() -> Config {
        merge(File::default(), &Overrides::default(), around()).unwrap()
    }

    fn parsed(text: &str) -> File {
        file::parse(Path::new("/k.toml"), text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// The keys that a table may have, as the complaint about a wrong one lists them.
    fn keys(table: &str) -> BTreeSet<String> {
        let text = if table.is_empty() { "zzz = 1".into() } else { format!("[{table}]\nzzz = 1") };
        match file::parse(Path::new("/k.toml"), &text) {
            Err(FileError::UnknownKey { valid, .. }) => valid.into_iter().collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_setting_of_a_file_is_explained_and_no_other() {
        let tables: BTreeSet<&str> = SETTINGS.iter().map(|setting| setting.table).collect();
        let explained = |table: &str| -> BTreeSet<String> {
            let of_table = SETTINGS.iter().filter(|setting| setting.table == table);
            of_table.map(|setting| setting.key.to_owned()).collect()
        };
        for table in tables.iter().filter(|table| !table.is_empty()) {
            assert_eq!(keys(table), explained(table), "[{table}]");
        }
        let named = tables.iter().filter(|table| !table.is_empty()).map(|table| (*table).to_owned());
        assert_eq!(keys(""), explained("").into_iter().chain(named).collect());
    }

    #[test]
    fn the_default_file_changes_nothing_and_its_comments_hold_valid_defaults() {
        let text = commented(&defaults());
        assert_eq!(parsed(&text), File::default());
        let is_setting = |line: &&str| line.starts_with('[') || line.contains(" = ");
        let bare: String = text
            .lines()
            .map(|line| line.strip_prefix("# ").unwrap_or(line))
            .filter(is_setting)
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(bare.matches(" = ").count(), SETTINGS.len(), "{bare}");
        let back = merge(parsed(&bare), &Overrides::default(), Surroundings::default()).unwrap();
        assert_eq!(back, defaults());
    }

    #[test]
    fn what_a_file_comes_to_is_itself_such_a_file() {
        let text = "node_name = \"a\\\"b\\\\c\"\nstate_dir = \"/tmp/ä\"\ncmdline = \"off\"\n[metrics]\nlisten = []\n\
                    [runtime]\nsockets = [\"docker=/a\", \"docker=/b c\"]\n[hooks]\nring_kib = 64\n";
        let config = merge(parsed(text), &Overrides::default(), around()).unwrap();
        let again =
            merge(parsed(&effective(&config)), &Overrides::default(), Surroundings::default()).unwrap();
        assert_eq!(again, config);
    }
}
