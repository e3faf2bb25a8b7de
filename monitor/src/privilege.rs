//! Checks the capabilities of the daemon before anything is started.

use thiserror::Error;

use crate::sources::procfs::own::Own;

/// A capability of `include/uapi/linux/capability.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    /// Name.
    pub name: &'static str,
    bit: u32,
}

const DAC_READ_SEARCH: Capability = Capability { name: "CAP_DAC_READ_SEARCH", bit: 2 };
const NET_BROADCAST: Capability = Capability { name: "CAP_NET_BROADCAST", bit: 11 };
const NET_ADMIN: Capability = Capability { name: "CAP_NET_ADMIN", bit: 12 };
const SYS_PTRACE: Capability = Capability { name: "CAP_SYS_PTRACE", bit: 19 };
const SYS_ADMIN: Capability = Capability { name: "CAP_SYS_ADMIN", bit: 21 };
const PERFMON: Capability = Capability { name: "CAP_PERFMON", bit: 38 };
const BPF: Capability = Capability { name: "CAP_BPF", bit: 39 };

/// Capabilities without which the daemon does not start, and what each is for.
const REQUIRED: [(Capability, &str); 4] = [
    (NET_ADMIN, "read links and neighbors"),
    (SYS_ADMIN, "enter network namespaces"),
    (SYS_PTRACE, "see what other processes hold"),
    (DAC_READ_SEARCH, "read the descriptors of every process"),
];

/// Capabilities that more depends on, and what each is for.
const OPTIONAL: [(Capability, &str); 3] = [
    (BPF, "load kernel programs"),
    (PERFMON, "load kernel programs"),
    (NET_BROADCAST, "receive changes in all network namespaces on one socket"),
];

/// What a set of capabilities lacks, with what each is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lacks {
    /// Without these the daemon does not start.
    pub required: Vec<(Capability, &'static str)>,
    /// Without these it sees less.
    pub optional: Vec<(Capability, &'static str)>,
}

impl Lacks {
    /// Those of a mask in the form of `CapEff` of proc_pid_status(5). SYS_ADMIN includes what kernel programs need.
    #[must_use]
    pub fn of(mask: u64) -> Self {
        let has = |capability: Capability| mask & (1 << capability.bit) != 0;
        let includes = |capability| has(capability) || capability != NET_BROADCAST && has(SYS_ADMIN);
        Self {
            required: REQUIRED.into_iter().filter(|(capability, _)| !has(*capability)).collect(),
            optional: OPTIONAL.into_iter().filter(|(capability, _)| !includes(*capability)).collect(),
        }
    }

    /// `CAP_BPF (load kernel programs), …`
    #[must_use]
    pub fn listed(missing: &[(Capability, &str)]) -> String {
        list(missing)
    }
}

/// What the optional capabilities allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Privileges {
    /// Whether kernel programs may be loaded: BPF and PERFMON (since 5.8), or SYS_ADMIN.
    pub hooks: bool,
    /// Whether one socket may listen to all network namespaces: NET_BROADCAST.
    pub all_namespaces: bool,
}

/// Why the daemon cannot start. It exits with code 77.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PrivilegeError {
    /// Required capabilities are missing.
    #[error("missing capabilities: {}; run as root, or grant them", list(.missing))]
    Missing {
        /// What is missing, and what it is for.
        missing: Vec<(Capability, &'static str)>,
    },
    /// /proc cannot be read.
    #[error("cannot read the capabilities of this process from /proc/self/status; is /proc mounted?")]
    Unreadable,
}

fn list(missing: &[(Capability, &str)]) -> String {
    missing
        .iter()
        .map(|(capability, what)| format!("{} ({what})", capability.name))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Checks the effective capabilities of this process.
///
/// # Errors
/// When a required one is missing.
pub fn check(own: &Own) -> Result<Privileges, PrivilegeError> {
    judge(own.effective_capabilities().ok_or(PrivilegeError::Unreadable)?)
}

/// Checks a mask in the form of `CapEff` of proc_pid_status(5).
///
/// # Errors
/// When a required one is missing.
pub fn judge(mask: u64) -> Result<Privileges, PrivilegeError> {
    let has = |capability: Capability| mask & (1 << capability.bit) != 0;
    let missing: Vec<_> = REQUIRED.into_iter().filter(|(capability, _)| !has(*capability)).collect();
    if !missing.is_empty() {
        return Err(PrivilegeError::Missing { missing });
    }
    Ok(Privileges { hooks: (has(BPF) && has(PERFMON)) || has(SYS_ADMIN), all_namespaces: has(NET_BROADCAST) })
}

/// The capabilities that are missing to see what every process holds, with what each is for; `None` if none is.
#[must_use]
pub fn missing_to_see_holders(own: &Own) -> Option<String> {
    let mask = own.effective_capabilities()?;
    let is_missing = |(capability, _): &(Capability, &str)| {
        [SYS_PTRACE, DAC_READ_SEARCH].contains(capability) && mask & (1 << capability.bit) == 0
    };
    let missing: Vec<_> = REQUIRED.into_iter().filter(is_missing).collect();
    (!missing.is_empty()).then(|| list(&missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(capabilities: &[Capability]) -> u64 {
        capabilities.iter().fold(0, |mask, capability| mask | 1 << capability.bit)
    }

    #[test]
    fn root_has_everything() {
        assert_eq!(judge(0x1ff_ffff_ffff), Ok(Privileges { hooks: true, all_namespaces: true }));
    }

    #[test]
    fn the_error_lists_every_missing_required_capability() {
        let error = judge(0).unwrap_err().to_string();
        for name in ["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"] {
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn one_missing_capability_is_named_alone() {
        let error =
            judge(mask(&[NET_ADMIN, SYS_ADMIN, DAC_READ_SEARCH, BPF, PERFMON])).unwrap_err().to_string();
        assert!(error.contains("CAP_SYS_PTRACE") && !error.contains("CAP_NET_ADMIN"), "{error}");
    }

    #[test]
    fn sys_admin_includes_what_kernel_programs_need_and_not_listening_everywhere() {
        let names = |of: &[(Capability, &str)]| of.iter().map(|(it, _)| it.name).collect::<Vec<_>>();
        let lacks = Lacks::of(mask(&[SYS_ADMIN, NET_ADMIN, DAC_READ_SEARCH]));
        assert_eq!(names(&lacks.required), ["CAP_SYS_PTRACE"]);
        assert_eq!(names(&lacks.optional), ["CAP_NET_BROADCAST"]);
        assert_eq!(names(&Lacks::of(0).optional), ["CAP_BPF", "CAP_PERFMON", "CAP_NET_BROADCAST"]);
        assert_eq!(Lacks::of(u64::MAX), Lacks::default());
    }

    #[test]
    fn listening_to_all_namespaces_is_optional() {
        let required = mask(&[NET_ADMIN, SYS_ADMIN, SYS_PTRACE, DAC_READ_SEARCH]);
        assert_eq!(judge(required), Ok(Privileges { hooks: true, all_namespaces: false }));
    }
}
