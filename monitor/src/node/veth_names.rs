//! Names of the host's ends of veth pairs of pods: which network plugin calls them so, and of which pod.
//!
//! A name proves nothing about who made the device; but only root of the node makes devices in its network namespace.

/// Plugins that call the device after the name of the pod: a prefix, and the first 11 hex digits of the SHA-1 of
/// `NAMESPACE.NAME` (Calico, Amazon VPC CNI, Azure CNI).
const BY_POD: [&str; 3] = ["cali", "eni", "azv"];
/// Hex digits of those.
const POD_DIGITS: usize = 11;
/// Cilium: of the SHA-256 of the endpoint.
const OF_ENDPOINT: (&str, usize) = ("lxc", 12);

/// Whether a network plugin calls the host's end of a pod's pair so.
#[must_use]
pub fn is_of_pod(ifname: &str) -> bool {
    is_by_pod(ifname) || has_digits(ifname, OF_ENDPOINT.0, OF_ENDPOINT.1)
}

/// Whether the name follows from that of the pod.
#[must_use]
pub fn is_by_pod(ifname: &str) -> bool {
    BY_POD.iter().any(|prefix| has_digits(ifname, prefix, POD_DIGITS))
}

/// Whether the name is that of this pod.
#[must_use]
pub fn names(ifname: &str, namespace: &str, pod: &str) -> bool {
    let digits = BY_POD.iter().find_map(|prefix| ifname.strip_prefix(prefix));
    digits.is_some_and(|digits| digits.len() == POD_DIGITS && hash(namespace, pod).starts_with(digits))
}

fn has_digits(ifname: &str, prefix: &str, count: usize) -> bool {
    let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    ifname.strip_prefix(prefix).is_some_and(|digits| digits.len() == count && digits.bytes().all(is_digit))
}

/// The SHA-1 of a pod's name as these plugins take it, in hex.
fn hash(namespace: &str, pod: &str) -> String {
    let words = sha1(format!("{namespace}.{pod}").as_bytes());
    words.iter().map(|word| format!("{word:08x}")).collect()
}

/// SHA-1 (FIPS 180-4): for names that others have made with it, not for security.
fn sha1(message: &[u8]) -> [u32; 5] {
    let bits = u64::try_from(message.len()).unwrap_or(u64::MAX).wrapping_mul(8);
    let mut padded = message.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend(bits.to_be_bytes());
    let mut state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0_u32];
    for block in padded.chunks_exact(64) {
        state = compress(state, block);
    }
    state
}

fn compress(state: [u32; 5], block: &[u8]) -> [u32; 5] {
    let mut schedule: Vec<u32> = block
        .chunks_exact(4)
        .map(|word| word.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
        .collect();
    for t in 16..80 {
        let word = schedule[t - 3] ^ schedule[t - 8] ^ schedule[t - 14] ^ schedule[t - 16];
        schedule.push(word.rotate_left(1));
    }
    let [mut a, mut b, mut c, mut d, mut e] = state;
    for (t, word) in schedule.iter().enumerate() {
        let (f, k) = match t {
            0..20 => (b & c | !b & d, 0x5a82_7999),
            20..40 => (b ^ c ^ d, 0x6ed9_eba1),
            40..60 => (b & c | b & d | c & d, 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6_u32),
        };
        let next = a.rotate_left(5).wrapping_add(f).wrapping_add(e).wrapping_add(k).wrapping_add(*word);
        (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
    }
    let mixed = [a, b, c, d, e];
    let mut result = state;
    result.iter_mut().zip(mixed).for_each(|(word, mixed)| *word = word.wrapping_add(mixed));
    result
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
            "vxlan.calico",
            "wireguard.cali",
            "bpfin.cali",
            "bpfout.cali",
            "tunl0",
            "lxc_health",
            "cilium_host",
            "cali123",
            "cali0123456789abc",
            "caliABCDEF01234",
            "eni0",
            "veth1a2b3c4",
            "veth1a2b3c4d",
            "lxcbr0",
            "docker0",
            "",
        ] {
            assert!(!is_of_pod(name), "{name}");
        }
    }

    #[test]
    fn the_hash_is_sha_1() {
        let hex = |text: &[u8]| sha1(text).iter().map(|word| format!("{word:08x}")).collect::<String>();
        assert_eq!(hex(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(hex(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        // A message of which the padding needs a block of its own, and one that fills its block but for the length.
        assert_eq!(
            hex(b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1"
        );
        assert_eq!(hex(&[b'a'; 55]), "c1c8bbdc22796e28c0e15163d20899b65621d65a");
        assert_eq!(hex(&[b'a'; 64]), "0098ba824b5c16427bd7a1122a5a442a25ec644d");
    }
}
