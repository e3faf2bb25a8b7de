//! The version of a kubelet, by the variables that the build of Kubernetes sets (`k8s.io/component-base/version`): for those
//! whose build information does not tell it: Go older than 1.18 has linked them, or they were built with `-trimpath`.
//!
//! Releases are stripped, so that no symbol shows these variables. But the linker puts all strings of one package side by
//! side, and these vouch for each other: a version, its first two numbers once more by themselves, and the date of the build.

use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::{Endian as _, Endianness, ReadRef};

use super::version::version;

/// Of initialized variables; that of a kubelet has some hundred kilobytes.
const DATA_MAX: u64 = 8 << 20;
/// A string variable is an address and a length.
const SLOT: usize = 16;
const ALIGNMENT: usize = 8;
/// The package has six such variables.
const BESIDE: usize = 5;
const VERSION_BYTES: std::ops::RangeInclusive<u64> = 6..=64;
const NUMBER_BYTES: std::ops::RangeInclusive<u64> = 1..=4;
/// Of a date as in `1970-01-01T00:00:00Z`.
const DATE_BYTES: u64 = 20;

/// The version in an ELF file; none where there is none, or where two do not agree.
pub(super) fn of_elf<'data, R: ReadRef<'data>>(data: R) -> Option<String> {
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let (_, variables) = sections.section_by_name(endian, b".data")?;
    let (_, texts) = sections.section_by_name(endian, b".rodata")?;
    if variables.sh_size(endian) > DATA_MAX {
        return None;
    }
    let (start, len) = (texts.sh_addr(endian), texts.sh_size(endian));
    let (file_start, file_len) = texts.file_range(endian)?;
    let text = |address: u64, bytes: u64| {
        let offset =
            address.checked_sub(start).filter(|offset| offset.saturating_add(bytes) <= len.min(file_len))?;
        std::str::from_utf8(data.read_bytes_at(file_start.checked_add(offset)?, bytes).ok()?).ok()
    };
    of_variables(variables.data(endian, data).ok()?, endian, text)
}

fn of_variables<'t>(
    data: &[u8],
    endian: Endianness,
    text: impl Fn(u64, u64) -> Option<&'t str>,
) -> Option<String> {
    let word = |at: usize| {
        let bytes = data.get(at..at.checked_add(ALIGNMENT)?)?;
        Some(endian.read_u64(bytes.try_into().ok()?))
    };
    let length = |at: usize| word(at + ALIGNMENT);
    let string = |at: usize| text(word(at)?, length(at)?);
    let mut found: Option<String> = None;
    for at in (0..data.len()).step_by(ALIGNMENT) {
        if !length(at).is_some_and(|bytes| VERSION_BYTES.contains(&bytes)) {
            continue;
        }
        let first = at.saturating_sub(BESIDE * SLOT).max(at % SLOT);
        let beside = || (first..=at + BESIDE * SLOT).step_by(SLOT).filter(|other| *other != at);
        // Texts are read only where the lengths are right.
        let numbers =
            beside().filter(|other| length(*other).is_some_and(|bytes| NUMBER_BYTES.contains(&bytes)));
        let dates = beside().filter(|other| length(*other) == Some(DATE_BYTES));
        if numbers.clone().count() < 2 || dates.clone().next().is_none() {
            continue;
        }
        let Some(known) = string(at).filter(|text| version(text).as_deref() == Some(*text)) else { continue };
        let Some((major, minor)) = numbers_of(known) else { continue };
        let has = |number: &str| {
            // Of a build between two releases.
            numbers.clone().filter_map(&string).any(|text| text.trim_end_matches('+') == number)
        };
        let has_both = match major == minor {
            true => numbers.clone().filter_map(&string).filter(|text| *text == major).count() > 1,
            false => has(major) && has(minor),
        };
        if !has_both || !dates.filter_map(string).any(is_date) {
            continue;
        }
        match &found {
            Some(other) if other != known => return None,
            _ => found = Some(known.to_owned()),
        }
    }
    found
}

fn numbers_of(version: &str) -> Option<(&str, &str)> {
    let (major, rest) = version.strip_prefix('v')?.split_once('.')?;
    let (minor, _) = rest.split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(major) && is_number(minor)).then_some((major, minor))
}

fn is_date(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00Z"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables with these texts; those of no text are something else.
    fn of(texts: &[&str]) -> Option<String> {
        const START: usize = 0x4000;
        let all = texts.concat();
        let mut data = vec![0; ALIGNMENT];
        let mut at = START;
        for text in texts {
            data.extend(u64::to_le_bytes(at as u64));
            data.extend(u64::to_le_bytes(text.len() as u64));
            at += text.len();
        }
        of_variables(&data, Endianness::Little, |address, bytes| {
            let start = usize::try_from(address).ok()?.checked_sub(START)?;
            all.get(start..start.checked_add(usize::try_from(bytes).ok()?)?)
        })
    }

    const DATE: &str = "2021-01-13T13:20:00Z";
    const COMMIT: &str = "faecb196815e248d3ecfb03c680a4507229c2a56";

    #[test]
    fn a_version_beside_its_own_numbers_is_that_of_the_kubelet() {
        for (texts, expected) in [
            (&[DATE, COMMIT, "1", "20", "clean", "v1.20.2"][..], Some("v1.20.2")),
            (&["x", "", DATE, COMMIT, "1", "20", "v1.20.2-gke.5", "Kubernetes"], Some("v1.20.2-gke.5")),
            (&["v1.18.0", "clean", "18", "1", COMMIT, DATE], Some("v1.18.0")),
            (&[DATE, COMMIT, "1", "19+", "v1.19.0-beta.2"], Some("v1.19.0-beta.2")),
            (&[DATE, "1", "1", "v1.1.8"], Some("v1.1.8")),
            // The same again, as the client has it, and one that was not set.
            (
                &[DATE, "1", "20", "v1.20.2", "x", "x", "x", "x", "x", DATE, "1", "20", "v1.20.2"],
                Some("v1.20.2"),
            ),
            (&[DATE, COMMIT, "v0.0.0-master+faecb", "", DATE, "1", "20", "v1.20.2"], Some("v1.20.2")),
        ] {
            assert_eq!(of(texts).as_deref(), expected, "{texts:?}");
        }
    }

    #[test]
    fn a_version_that_nothing_vouches_for_is_none() {
        for texts in [
            &[][..],
            &["v1.20.2"],
            &[DATE, COMMIT, "1", "21", "clean", "v1.20.2"],
            &[DATE, COMMIT, "1", "x", "v1.1.2"],
            &[COMMIT, "1", "20", "clean", "v1.20.2"],
            &["20 characters of text", "1", "20", "v1.20.2"],
            &[DATE, "1", "20", "v1.20.2 or so"],
            &[DATE, "1", "20", "x", "x", "x", "x", "v1.20.2"],
            &[DATE, "1", "20", "v1.20.2", "", "", "", "", "", DATE, "1", "21", "v1.21.0"],
        ] {
            assert_eq!(of(texts), None, "{texts:?}");
        }
    }

    #[test]
    fn addresses_that_lead_nowhere_are_none() {
        let mut data = Vec::new();
        for bytes in [20, 1, 2, 7] {
            data.extend(u64::to_le_bytes(u64::MAX - 1));
            data.extend(u64::to_le_bytes(bytes));
        }
        assert_eq!(of_variables(&data, Endianness::Little, |_, _| None), None);
        data.pop();
        assert_eq!(of_variables(&data, Endianness::Little, |_, _| None), None);
        assert_eq!(of_elf(&b"\x7fELF"[..]), None);
    }
}
