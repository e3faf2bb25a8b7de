//! Names of the host's ends of veth pairs of pods: which network plugin calls them so, and of which pod.
//!
//! A name proves nothing about who made the device; but only root of the node makes devices in its network namespace.

use sha1_smol::Sha1;

/// Plugins that call the device after the name of the pod: a prefix, and the first 11 hex digits of the SHA-1 of
/// `NAMESPACE.NAME` (Calico, Amazon VPC CNI, Azure CNI).
const BY_POD: [&str; 3] = ["cali", "eni", "azv"];
/// Hex digits of those.
const POD_DIGITS: usize = 11;
/// Cilium: of the SHA-256 of the endpoint.
const OF_ENDPOINT: (&str, usize) = ("lxc", 12);

/// Whether a network plugin calls the host's end of a pod's pair so.
pub fn is_of_pod(ifname: &str) -> bool {
    is_by_pod(ifname) || has_digits(ifname, OF_ENDPOINT.0, OF_ENDPOINT.1)
}

/// Whether the name follows from that of the pod.
pub fn is_by_pod(ifname: &str) -> bool {
    BY_POD.iter().any(|prefix| has_digits(ifname, prefix, POD_DIGITS))
}

/// Whether the name is that of this pod.
pub fn names(ifname: &str, namespace: &str, pod: &str) -> bool {
    pod_digits(ifname).is_some_and(|digits| *digits == digits_of(namespace, pod))
}

/// The digits in a name that follow from that of the pod.
pub fn pod_digits(ifname: &str) -> Option<&str> {
    let digits = BY_POD.iter().find_map(|prefix| ifname.strip_prefix(prefix));
    digits.filter(|digits| digits.len() == POD_DIGITS)
}

/// The digits that are in the names of the devices of a pod.
pub fn digits_of(namespace: &str, pod: &str) -> String {
    let mut digits = Sha1::from(format!("{namespace}.{pod}")).digest().to_string();
    digits.truncate(POD_DIGITS);
    digits
}

fn has_digits(ifname: &str, prefix: &str, count: usize) -> bool {
    let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    ifname.strip_prefix(prefix).is_some_and(|digits| digits.len() == count && digits.bytes().all(is_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_after_its_pod_as_calico_does() {
        // Of two nodes in production.
        assert!(names("cali9118ebbb10b", "lijiaob", "etcd1-0"));
        assert!(names("cali91dded39638", "lijiaob", "stateful-new-pod-0"));
        assert!(names("eni9118ebbb10b", "lijiaob", "etcd1-0"));
        assert!(!names("cali9118ebbb10b", "lijiaob", "etcd1-1"));
        assert!(!names("cali", "lijiaob", "etcd1-0"));
        assert!(!names("veth9118ebbb10b", "lijiaob", "etcd1-0"));
    }

    #[test]
    fn devices_that_are_no_pods_are_not_taken_for_one() {
        for name in ["cali9118ebbb10b", "eni0123456789a", "azv0123456789a", "lxc0123456789ab"] {
            assert!(is_of_pod(name), "{name}");
        }
        for name in [
            "vxlan.calico", "wireguard.cali", "bpfin.cali", "bpfout.cali", "tunl0", "lxc_health",
            "cilium_host", "cali123", "cali0123456789abc", "caliABCDEF01234", "eni0", "veth1a2b3c4",
            "veth1a2b3c4d", "lxcbr0", "docker0", "",
        ] {
            assert!(!is_of_pod(name), "{name}");
        }
    }
}
