//! What differs between the machines of two architectures.

use clap::ValueEnum;

use crate::cross;

/// The architecture of a machine, as Debian calls it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arch {
    #[default]
    Amd64,
    Arm64,
}

/// A program of QEMU.
pub(super) struct Emulator {
    pub(super) program: &'static str,
    pub(super) package: &'static str,
    /// Where the package is unpacked, in the cache.
    pub(super) directory: &'static str,
}

impl Arch {
    pub(super) fn debian(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// What is compiled for it, as cargo calls it; None if it is this machine's own.
    pub(super) fn target(self) -> Option<&'static str> {
        match self {
            Self::Amd64 => None,
            Self::Arm64 => Some(cross::CHECKED),
        }
    }

    pub(super) fn emulator(self) -> Emulator {
        match self {
            Self::Amd64 => {
                Emulator { program: "qemu-system-x86_64", package: "qemu-system-x86", directory: "qemu" }
            }
            Self::Arm64 => Emulator {
                program: "qemu-system-aarch64",
                package: "qemu-system-arm",
                directory: "qemu-arm64",
            },
        }
    }

    /// Arguments of QEMU. The kernel signs return addresses, if the processor can: by Arm's own algorithm, emulation takes five times
    /// as long.
    pub(super) fn machine(self) -> &'static [&'static str] {
        match self {
            Self::Amd64 => &["-cpu", "max"],
            Self::Arm64 => &["-machine", "virt", "-cpu", "max,pauth-impdef=on"],
        }
    }

    /// The serial console, as the kernel calls it.
    pub(super) fn console(self) -> &'static str {
        match self {
            Self::Amd64 => "ttyS0",
            Self::Arm64 => "ttyAMA0",
        }
    }
}
