//! The release of a kernel, in an order.

use nix::sys::utsname::uname;

/// The first two numbers of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelRelease(pub u32, pub u32);

impl KernelRelease {
    /// Of a text such as `6.1.0-18-amd64` or `7.0-rc1`. `None` of one that does not begin so.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(|byte: char| !byte.is_ascii_digit()).map(str::parse);
        Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// Of the kernel that runs (uname(2)). `None` if it tells none.
    pub fn running() -> Option<Self> {
        Self::parse(&uname().ok()?.release().to_string_lossy())
    }

    /// Whether the kernel that runs is of this release or a later one. Not if it tells none.
    pub fn is_running(self) -> bool {
        Self::running().is_some_and(|running| running >= self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_in_the_order_of_their_numbers() {
        for (text, expected) in [
            ("6.18.5", Some(KernelRelease(6, 18))),
            ("6.1.0-18-amd64", Some(KernelRelease(6, 1))),
            ("5.19", Some(KernelRelease(5, 19))),
            ("7.0-rc1", Some(KernelRelease(7, 0))),
            ("4.18.0-553.el8_10.x86_64", Some(KernelRelease(4, 18))),
            ("6", None),
            ("unknown", None),
            (".6.1", None),
            ("6.99999999999", None),
            ("", None),
        ] {
            assert_eq!(KernelRelease::parse(text), expected, "{text}");
        }
        assert!(KernelRelease(6, 2) < KernelRelease(6, 12) && KernelRelease(5, 19) < KernelRelease(6, 0));
    }

    #[test]
    fn the_kernel_that_runs_has_one() {
        let running = KernelRelease::running().unwrap();
        assert!(running.is_running() && !KernelRelease(running.0, running.1 + 1).is_running());
    }
}
