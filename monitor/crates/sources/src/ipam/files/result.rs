//! A result of an `ADD` that libcni keeps (`libcni/api.go`, `cachedInfo`, since version 0.8): with the configuration of the
//! network, which tells whether host-local gave the addresses, and with the arguments of the call, which tell the pod. Results of
//! before have neither, and are left out.

use std::net::IpAddr;
use std::path::Path;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use kevtmon_observation::CniDevice;
use serde::Deserialize;

use super::is_word;

const KIND: &str = "cniCacheV1";
/// Where host-local has its reservations, unless it is told otherwise.
const DATA_DIR: &str = "/var/lib/cni/networks";
const ADDRESSES_MAX: usize = 16;
/// Devices of one result that are taken, and how long a name may be (`IFNAMSIZ`).
const DEVICES_MAX: usize = 8;
const IFNAME_MAX: usize = 15;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct CachedResult {
    pub(super) network: String,
    pub(super) container: String,
    pub(super) addresses: Vec<IpAddr>,
}

/// The devices that a result tells (`interfaces`, CNI specification, "Success"): those without a sandbox are the host's.
#[derive(Deserialize)]
struct DeviceFile {
    kind: String,
    #[serde(rename = "containerId")]
    container: String,
    #[serde(rename = "cniArgs")]
    arguments: Vec<(String, String)>,
    result: Interfaces,
}

#[derive(Deserialize)]
struct Interfaces {
    interfaces: Vec<Interface>,
}

#[derive(Deserialize)]
struct Interface {
    name: String,
    #[serde(default)]
    sandbox: String,
}

/// The devices of the host that a result tells, if it is that of a pod.
pub(super) fn devices(text: &[u8]) -> Vec<CniDevice> {
    let Ok(file) = serde_json::from_slice::<DeviceFile>(text) else { return Vec::new() };
    let argument = |name: &str| {
        let value = file.arguments.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        value.filter(|value| is_word(value))
    };
    let pod = argument("K8S_POD_NAMESPACE").zip(argument("K8S_POD_NAME"));
    let Some((namespace, pod)) = pod.filter(|_| file.kind == KIND && is_word(&file.container)) else {
        return Vec::new();
    };
    let is_name = |name: &str| is_word(name) && name.len() <= IFNAME_MAX && !name.contains('/');
    let of_host =
        file.result.interfaces.into_iter().filter(|one| one.sandbox.is_empty() && is_name(&one.name));
    let device = |one: Interface| CniDevice {
        ifname: one.name,
        container: file.container.clone(),
        namespace: namespace.clone(),
        pod: pod.clone(),
    };
    of_host.take(DEVICES_MAX).map(device).collect()
}

#[derive(Deserialize)]
struct File {
    kind: String,
    #[serde(rename = "containerId")]
    container: String,
    #[serde(rename = "networkName")]
    network: String,
    /// Base64.
    config: String,
    result: Addresses,
}

#[derive(Deserialize)]
struct Addresses {
    #[serde(default)]
    ips: Vec<Address>,
    /// Before version 0.3 of the specification.
    ip4: Option<OldAddress>,
    ip6: Option<OldAddress>,
}

#[derive(Deserialize)]
struct Address {
    address: String,
}

#[derive(Deserialize)]
struct OldAddress {
    ip: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Plugin {
    plugins: Vec<Plugin>,
    r#type: String,
    ipam: Option<Ipam>,
    /// Of flannel, which calls others.
    delegate: Option<Delegate>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Delegate {
    ipam: Option<Ipam>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipam {
    r#type: String,
    #[serde(rename = "dataDir")]
    data_dir: String,
}

impl CachedResult {
    /// Of a file, if host-local has reserved its addresses below that directory.
    pub(super) fn of_host_local(text: &[u8], networks: &Path) -> Option<Self> {
        let file: File = serde_json::from_slice(text).ok().filter(|file: &File| file.kind == KIND)?;
        let config: Plugin = serde_json::from_slice(&decoded(&file.config)?).ok()?;
        let alone = std::slice::from_ref(&config);
        let plugins = if config.plugins.is_empty() { alone } else { &config.plugins };
        if plugins.iter().find_map(Plugin::data_dir).map(Path::new) != Some(networks) {
            return None;
        }
        let Addresses { ips, ip4, ip6 } = file.result;
        let old = ip4.into_iter().chain(ip6).map(|old| old.ip);
        let all = ips.into_iter().map(|ip| ip.address).chain(old);
        let addresses =
            all.filter_map(|text| text.split('/').next()?.parse().ok()).take(ADDRESSES_MAX).collect();
        Some(Self { network: file.network, container: file.container, addresses })
    }
}

impl Plugin {
    fn data_dir(&self) -> Option<&str> {
        let ipam = match &self.ipam {
            None if self.r#type == "flannel" => {
                // It tells whom it calls to use host-local where nothing else is asked for.
                match self.delegate.as_ref().and_then(|delegate| delegate.ipam.as_ref()) {
                    Some(ipam) if ipam.r#type.is_empty() => return Some(ipam.place()),
                    Some(ipam) => ipam,
                    None => return Some(DATA_DIR),
                }
            }
            None => return None,
            Some(ipam) => ipam,
        };
        (ipam.r#type == "host-local").then(|| ipam.place())
    }
}

impl Ipam {
    fn place(&self) -> &str {
        match self.data_dir.trim_end_matches('/') {
            "" => DATA_DIR,
            place => place,
        }
    }
}

/// As Go encodes bytes in JSON.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let config = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone);
    GeneralPurpose::new(&STANDARD, config).decode(text.trim_end_matches('=')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORKS: &str = "/var/lib/cni/networks";

    fn file(config: &str, result: &str) -> String {
        format!(
            r#"{{"kind":"cniCacheV1","containerId":"c0ffee","config":"{}","ifName":"eth0","networkName":"cbr0","result":{result}}}"#,
            base64::engine::general_purpose::STANDARD.encode(config)
        )
    }

    fn read(config: &str, result: &str) -> Option<Vec<String>> {
        let found = CachedResult::of_host_local(file(config, result).as_bytes(), Path::new(NETWORKS))?;
        assert_eq!((found.network.as_str(), found.container.as_str()), ("cbr0", "c0ffee"));
        Some(found.addresses.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_addresses_of_a_result_are_those_of_host_local_if_the_network_is_configured_so() {
        let both = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.88.0.5/16","interface":2},{"address":"fd00::5/64"}]}"#;
        let of_list = r#"{"name":"cbr0","plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]}"#;
        let addresses = Some(vec!["10.88.0.5".to_owned(), "fd00::5".to_owned()]);
        for config in [
            of_list,
            r#"{"type":"ptp","ipam":{"type":"host-local","dataDir":"/var/lib/cni/networks/"}}"#,
            r#"{"plugins":[{"type":"flannel","delegate":{"isDefaultGateway":true}}]}"#,
            r#"{"plugins":[{"type":"flannel"}]}"#,
        ] {
            assert_eq!(read(config, both), addresses, "{config}");
        }
        let old = r#"{"ip4":{"ip":"10.88.0.5/16"},"ip6":{"ip":"fd00::5/64"}}"#;
        assert_eq!(read(of_list, old), addresses);
        for config in [
            r#"{"type":"calico","ipam":{"type":"calico-ipam"}}"#,
            r#"{"type":"ptp","ipam":{"type":"host-local","dataDir":"/run/networks"}}"#,
            r#"{"plugins":[{"type":"flannel","delegate":{"ipam":{"type":"dhcp"}}}]}"#,
            r#"{"type":"bridge"}"#,
            "not JSON",
        ] {
            assert_eq!(read(config, both), None, "{config}");
        }
    }

    #[test]
    fn the_devices_of_the_host_are_those_without_a_sandbox_of_a_pod() {
        let file = |args: &str, interfaces: &str| {
            format!(
                r#"{{"kind":"cniCacheV1","containerId":"c0ffee","config":"","ifName":"eth0","networkName":"k8s","cniArgs":{args},"result":{{"cniVersion":"1.0.0","interfaces":{interfaces},"ips":[]}}}}"#
            )
        };
        let args = r#"[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","lijiaob"],["K8S_POD_NAME","etcd1-0"]]"#;
        let bridge = r#"[{"name":"cni0","mac":"02:00:00:00:00:01"},{"name":"veth1a2b3c4d"},{"name":"eth0","sandbox":"/run/netns/cni-7"}]"#;
        let read = |text: &str| {
            let all = devices(text.as_bytes()).into_iter();
            all.map(|one| (one.ifname, one.container, format!("{}/{}", one.namespace, one.pod)))
                .collect::<Vec<_>>()
        };
        let of = |name: &str| (name.to_owned(), "c0ffee".to_owned(), "lijiaob/etcd1-0".to_owned());
        let whole = file(args, bridge);
        assert_eq!(read(&whole), [of("cni0"), of("veth1a2b3c4d")]);
        for (args, interfaces) in [
            ("null", bridge),
            (r#"[["K8S_POD_NAME","etcd1-0"]]"#, bridge),
            (r#"[["K8S_POD_NAMESPACE","a b"],["K8S_POD_NAME","etcd1-0"]]"#, bridge),
            (args, "null"),
            (args, r#"[{"name":"a/b"},{"name":""},{"name":"sixteen-letters-"},{"name":"a\u0007"}]"#),
        ] {
            assert_eq!(read(&file(args, interfaces)), [], "{args} {interfaces}");
        }
        assert_eq!(read(&whole.replace(KIND, "x")), []);
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), [], "{length}");
        }
        let many =
            (0..20).map(|number| format!(r#"{{"name":"veth{number}"}}"#)).collect::<Vec<_>>().join(",");
        assert_eq!(read(&file(args, &format!("[{many}]"))).len(), DEVICES_MAX);
    }

    #[test]
    fn what_is_no_such_file_or_is_cut_anywhere_is_none() {
        let config = r#"{"type":"ptp","ipam":{"type":"host-local"}}"#;
        let whole = file(config, r#"{"ips":[{"address":"10.88.0.5/16"}]}"#);
        let read = |text: &str| CachedResult::of_host_local(text.as_bytes(), Path::new(NETWORKS));
        assert!(read(&whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), None, "{length}");
        }
        assert_eq!(read(&whole.replace("cniCacheV1", "x")), None);
        assert_eq!(
            read(r#"{"cniVersion":"0.3.1","ips":[{"address":"10.88.0.5/16"}]}"#),
            None,
            "of an old version"
        );
        let none = read(&whole.replace("10.88.0.5/16", "x")).unwrap();
        assert_eq!(none.addresses, Vec::<IpAddr>::new());
    }

    #[test]
    fn base64_is_read_with_and_without_padding() {
        for text in ["", "a", "ab", "abc", "abcd", "{\"a\":\"\u{e9}?>\"}"] {
            let encoded = base64::engine::general_purpose::STANDARD.encode(text);
            assert_eq!(decoded(&encoded).as_deref(), Some(text.as_bytes()), "{encoded}");
            assert_eq!(decoded(encoded.trim_end_matches('=')).as_deref(), Some(text.as_bytes()));
        }
        assert_eq!(
            [decoded("A"), decoded("AAAAA"), decoded("A*AA"), decoded("AA=A")],
            [None, None, None, None]
        );
    }
}
