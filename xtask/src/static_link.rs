//! Whether an executable is static: it asks the kernel for no program interpreter.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use object::LittleEndian;
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

pub(crate) fn is_static(path: &Path) -> Result<bool> {
    let image = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    asks_for_interpreter(&image)
        .map(|asks| !asks)
        .with_context(|| format!("{} is not a 64-bit little-endian executable", path.display()))
}

/// None for anything but a 64-bit little-endian ELF file.
fn asks_for_interpreter(image: &[u8]) -> Option<bool> {
    let file = FileHeader64::<LittleEndian>::parse(image).ok()?;
    let endian = file.endian().ok()?;
    let headers = file.program_headers(endian, image).ok()?;
    Some(headers.iter().any(|header| header.p_type(endian) == PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executable(kinds: &[u32]) -> Vec<u8> {
        let mut image = vec![0; 0x40];
        image[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        image[0x20..0x28].copy_from_slice(&0x40u64.to_le_bytes());
        image[0x36..0x38].copy_from_slice(&0x38u16.to_le_bytes());
        image[0x38..0x3a].copy_from_slice(&u16::try_from(kinds.len()).expect("few").to_le_bytes());
        for kind in kinds {
            image.extend(kind.to_le_bytes());
            image.extend([0; 0x34]);
        }
        image
    }

    #[test]
    fn an_interpreter_makes_an_executable_dynamic() {
        assert_eq!(asks_for_interpreter(&executable(&[6, PT_INTERP, 1])), Some(true));
        assert_eq!(asks_for_interpreter(&executable(&[6, 1, 2])), Some(false));
    }

    #[test]
    fn a_cut_or_foreign_file_is_no_executable() {
        let whole = executable(&[6, 1]);
        assert_eq!(asks_for_interpreter(&whole[..whole.len() - 0x38]), None);
        assert_eq!(asks_for_interpreter(b"#!/bin/sh\n"), None);
        assert_eq!(asks_for_interpreter(b""), None);
    }
}
