use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use kevtmon_core::diagnose;
use kevtmon_history::recording::settings::FlightLimits;
use kevtmon_types::settings;

use super::*;

fn environment() -> Environment {
    Environment { host_name: Some("host".into()), ..Environment::default() }
}

fn parse(text: &str) -> Result<Values, FileError> {
    file::parse(Path::new("/k.toml"), text, &descriptions())
}

fn merged(text: &str, over: &Overrides, environment: Environment) -> Config {
    merge(parse(text).unwrap(), over, environment).unwrap()
}

#[test]
fn only_the_choice_of_command_lines_takes_effect_without_a_restart() {
    let merged = |text| merged(text, &Overrides::default(), environment());
    let adopted = |text| {
        let mut config = merged("");
        let differs = config.adopt(&merged(text));
        (differs, effective_file(&config))
    };
    assert_eq!(adopted("cmdline = 'off'"), (vec![], effective_file(&merged("cmdline = 'off'"))));
    let text = "socket = '/k.sock'\n[hooks]\nremove = 'off'\n[incidents]\ngateway_critical_seconds = 5";
    let names = ["socket", "hooks.remove", "incidents.gateway_critical_seconds"];
    assert_eq!(adopted(text), (names.map(str::to_owned).to_vec(), effective_file(&merged(""))));
}

#[test]
fn a_file_of_any_size_and_one_without_end_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large");
    fs::write(&large, " ".repeat(2 << 20)).unwrap();
    for (path, expected) in
        [(large.as_path(), "it is larger than 1 MiB"), (Path::new("/dev/zero"), "not a regular file")]
    {
        let error = read(path).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read {}", path.display()));
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), expected);
    }
}

/// Every setting with another value than its default. Before adding one, check that it cannot hold a secret: recordings and bundles
/// contain all of them.
const ALL: &str = r#"node_name = "slave-197"
state_dir = "/var/lib/k"
require_ebpf = true
socket = "/run/k.sock"
cmdline = "all"

[output]
format = "pretty"
min_severity = "warning"

[journald]
enabled = "yes"
min_severity = "info"
socket = "/run/j.sock"

[kubernetes]
events = true
server = "https://10.96.0.1:6443"
token_file = "/etc/kevtmon/token"
ca_file = "/etc/kevtmon/ca.crt"

[otlp]
endpoint = "https://collector.example.org:4318"
min_severity = "warning"
ca_file = "/etc/kevtmon/otlp-ca.crt"
headers_file = "/etc/kevtmon/otlp-headers"

[metrics]
listen = ["0.0.0.0:19809", "[::1]:19809"]
web_config = "/etc/kevtmon/web.yml"

[runtime]
sockets = ["docker=/run/docker.sock"]

[kubelet]
roots = ["/data/kubelet"]
pod_labels = ["app.kubernetes.io/name"]
pods_api = "/data/kubelet/pods.sock"

[cni]
bin_dirs = ["/opt/k3s/bin"]

[ipam]
directory = "/run/cni"

[rbd]
sysfs = "/host/sys"

[logs]
kmsg = true
files = ["/var/log/kubelet.log"]
journal = ["kubelet.service"]
journalctl = "/usr/local/bin/journalctl"

[polling]
max_interval_seconds = 20

[hooks]
neighbor = "netlink"
umount = "off"
remove = "off"
link = "off"
sysctl = "off"
exec = "off"
ring_kib = 512
source_rate = 500
source_burst = 1000
user_rate = 5
user_burst = 50
iterators = false
btf = "/lib/kevtmon/6.1.0.btf"

[events]
user_rate = 2
user_burst = 20
container_rate = 3
container_burst = 30

[incidents]
THRESHOLDS

[store]
enabled = false
max_age_days = 30
max_mib = 512

[recorder]
enabled = false
minutes = 30
max_mib = 32
"#;

#[test]
fn every_setting_is_understood() {
    // Thresholds are numbers: they hold no secret. Each is as large or as small as it may be.
    let line = |(index, threshold): (usize, &settings::Threshold)| {
        let value = match threshold.unit {
            settings::Unit::Percent => 100,
            _ if index % 2 == 0 || threshold.default == 0 => u32::MAX,
            _ => 0,
        };
        format!("{} = {value}\n", threshold.key)
    };
    let lines: String = diagnose::thresholds().enumerate().map(line).collect();
    let text = &ALL.replace("THRESHOLDS\n", &lines);
    let config = merged(text, &Overrides::default(), environment());
    assert_eq!(effective_file(&config), *text);
    let defaults = merged("", &Overrides::default(), environment());
    for setting in descriptions() {
        let (value, default) = (config.0.stored(setting), defaults.0.stored(setting));
        assert!(!value.equals(&*default), "{setting:?} is not changed by this test");
    }
}

#[test]
fn every_default_works() {
    let config = merged("", &Overrides::default(), environment());
    let seven_days = Duration::from_secs(7 * 86_400);
    let limits = store::Limits { max_age: seven_days, max_bytes: 64 << 20 };
    assert_eq!(
        (store::Limits::from_values(config.values()), store::Limits::default()),
        (Some(limits), limits)
    );
    assert_eq!(FlightLimits::from_values(config.values()), Some(FlightLimits { minutes: 15, max_mib: 16 }));
    assert_eq!(config.get(&NODE_NAME), "host");
    assert_eq!(
        effective_file(&merged(&effective_file(&config), &Overrides::default(), environment())),
        effective_file(&config)
    );
}

#[test]
fn thresholds_have_in_recordings_the_form_that_they_always_had() {
    let text = "[incidents]\ngateway_static_percent = 81";
    let policy = merged(text, &Overrides::default(), environment()).policy();
    let recorded = serde_json::json!({
        "learned_gateway_failed_seconds": 10,
        "gateway_critical_seconds": 60,
        "gateway_confirm_seconds": 5,
        "gateway_young_pod_seconds": 60,
        "gateway_teardown_seconds": 60,
        "gateway_static_pods": 3,
        "gateway_static_percent": 81,
        "orphan_container_seconds": 30,
        "volume_busy_warning_attempts": 3,
        "volume_busy_warning_seconds": 30,
        "volume_busy_critical_seconds": 900,
        "volume_busy_expire_seconds": 1800,
    });
    let now = serde_json::to_value(&policy.incidents).unwrap();
    for (key, value) in recorded.as_object().unwrap() {
        assert_eq!(now.get(key), Some(value), "{key}");
    }
    assert!(now.as_object().unwrap().values().all(serde_json::Value::is_u64), "{now}");
    assert_eq!(serde_json::from_value::<Thresholds>(now).unwrap(), policy.incidents);
}

#[test]
fn the_store_and_the_recorder_keep_as_much_as_the_file_says_or_do_not_exist() {
    let values = |text| merged(text, &Overrides::default(), environment());
    let limits = store::Limits::from_values(values("[store]\nmax_age_days = 2\nmax_mib = 8").values());
    let expected = store::Limits { max_age: Duration::from_secs(172_800), max_bytes: 8 << 20 };
    assert_eq!(limits, Some(expected));
    assert_eq!(store::Limits::from_values(values("[store]\nenabled = false").values()), None);
    let limits = FlightLimits::from_values(values("[recorder]\nminutes = 30\nmax_mib = 32").values());
    assert_eq!(limits, Some(FlightLimits { minutes: 30, max_mib: 32 }));
    assert_eq!(FlightLimits::from_values(values("[recorder]\nenabled = false").values()), None);
}

#[test]
fn the_node_is_named_by_argument_then_environment_then_file_then_host() {
    let file = "node_name = \"file\"";
    let flag = Overrides { node_name: Some("flag".into()), ..Overrides::default() };
    let env = Environment { node_name: Some("env".into()), ..environment() };
    assert_eq!(merged(file, &flag, env.clone()).get(&NODE_NAME), "flag");
    assert_eq!(merged(file, &Overrides::default(), env).get(&NODE_NAME), "env");
    assert_eq!(merged(file, &Overrides::default(), environment()).get(&NODE_NAME), "file");
    assert_eq!(merged("", &Overrides::default(), environment()).get(&NODE_NAME), "host");
}

#[test]
fn a_node_without_a_usable_name_is_refused() {
    let error = merge(Values::default(), &Overrides::default(), Environment::default()).unwrap_err();
    assert!(error.to_string().contains("--node-name"), "{error}");
}

#[test]
fn arguments_win_over_the_file() {
    let over = Overrides {
        output: Some(Format::None),
        listen: vec!["127.0.0.1:1".parse().unwrap()],
        socket: Some("/flag.sock".into()),
        runtimes: vec![Runtimes::Sockets(vec![])],
        ..Overrides::default()
    };
    let config = merged(
        "socket = \"/file.sock\"\nstate_dir = \"/file\"\n[output]\nformat = \"json\"\n[metrics]\nlisten = []\n\
         [runtime]\nsockets = [\"docker=/a\"]",
        &over,
        environment(),
    );
    assert_eq!(config.get(&FORMAT), Format::None);
    assert_eq!(config.get(&LISTEN).0, over.listen);
    assert_eq!(config.get(&api::SOCKET), Path::new("/flag.sock"));
    assert_eq!(config.get(&STATE_DIR), Path::new("/file"));
    assert_eq!(config.get(&SOCKETS), Runtimes::Sockets(vec![]));
}

#[test]
fn only_json_asked_for_at_the_call_carries_everything_by_default() {
    let severity = |text: &str, output, terminal| {
        let over = Overrides { output, ..Overrides::default() };
        merged(text, &over, Environment { stdout_is_terminal: terminal, ..environment() }).get(&MIN_SEVERITY)
    };
    let warning = "[output]\nmin_severity = \"warning\"";
    assert_eq!(severity("", Some(Format::Json), true), Severity::Debug);
    assert_eq!(severity(warning, Some(Format::Json), false), Severity::Debug);
    assert_eq!(severity("", None, true), Severity::Info);
    assert_eq!(severity("", None, false), Severity::Notice);
    assert_eq!(severity("", Some(Format::Pretty), false), Severity::Notice);
    assert_eq!(severity(warning, None, true), Severity::Warning);
}

#[test]
fn contradicting_runtimes_are_refused() {
    let over =
        Overrides { runtimes: vec![Runtimes::Auto, Runtimes::Sockets(vec![])], ..Overrides::default() };
    let error = merge(Values::default(), &over, environment()).unwrap_err();
    assert!(error.to_string().starts_with("--runtime: "), "{error}");
}

#[test]
fn a_file_that_was_asked_for_must_be_there_and_readable() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.toml");
    let knot = dir.path().join("knot.toml");
    symlink(&knot, &knot).unwrap();
    let binary = dir.path().join("binary.toml");
    fs::write(&binary, [0xff, 0xfe]).unwrap();

    for path in [missing.as_path(), dir.path(), &knot, &binary] {
        let error =
            Config::load(&Overrides { file: Some(path.to_owned()), ..Overrides::default() }).unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert!(read_if_exists(&missing).unwrap().is_empty());
    assert!(read_if_exists(&knot).is_err(), "only absence is fine");
}
