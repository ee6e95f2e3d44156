//! The part of the ELF format that distinguishes static programs from dynamic ones.

/// The type of the program header that names the interpreter, which loads shared libraries.
const INTERPRETER: u32 = 3;

/// Returns true if no program header of a 64-bit little-endian ELF file names an interpreter; false for malformed files
/// and other formats.
pub(super) fn is_static(program: &[u8]) -> bool {
    types(program).is_some_and(|types| !types.contains(&INTERPRETER))
}

/// Returns the types of the program headers, or `None` if the file is malformed or of another format.
fn types(program: &[u8]) -> Option<Vec<u32>> {
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let half = |offset: usize| Some(u16::from_le_bytes(program.get(offset..offset + 2)?.try_into().ok()?));
    let start = u64::from_le_bytes(program.get(32..40)?.try_into().ok()?);
    let (start, size, count) = (usize::try_from(start).ok()?, usize::from(half(54)?), usize::from(half(56)?));
    let headers = (0..count).map(|index| {
        let offset = start.checked_add(index * size)?;
        Some(u32::from_le_bytes(program.get(offset..offset.checked_add(4)?)?.try_into().ok()?))
    });
    headers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a program with headers of these types.
    fn program(types: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&u16::try_from(types.len()).unwrap().to_le_bytes());
        for kind in types {
            bytes.extend(kind.to_le_bytes());
            bytes.extend([0; 52]);
        }
        bytes
    }

    #[test]
    fn program_is_static_when_no_header_names_an_interpreter() {
        assert!(is_static(&program(&[1, 1, 4])));
        assert!(!is_static(&program(&[6, INTERPRETER, 1])));
        assert!(!is_static(&program(&[1, 1])[..100]), "cut off");
        let mut far = program(&[1]);
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(!is_static(&far), "headers beyond the end");
        assert!(!is_static(b"#!/bin/sh\n"));
        assert!(!is_static(b""));
    }

    #[test]
    fn test_program_itself_is_dynamic() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        if cfg!(all(target_env = "gnu", target_pointer_width = "64")) {
            assert!(!is_static(&own));
        }
    }
}
