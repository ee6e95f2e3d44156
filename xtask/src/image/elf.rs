//! A check of ELF headers for a binary's requirements on the system that it runs on.

use anyhow::{Context, Result, ensure};

/// Program headers' types, and the tag of a library in the dynamic section.
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;

/// The requirements in an ELF file.
#[derive(Debug, PartialEq, Eq)]
pub struct Elf {
    machine: u16,
    interpreter: Option<String>,
    libraries: usize,
}

impl Elf {
    /// Fails, naming the requirements, unless the binary runs on this architecture without any other file.
    pub fn must_be_static(&self, machine: u16) -> Result<()> {
        ensure!(self.machine == machine, "it is for the machine {}, not {machine}", self.machine);
        if let Some(interpreter) = &self.interpreter {
            anyhow::bail!("it needs the interpreter {interpreter}: it is linked dynamically");
        }
        ensure!(self.libraries == 0, "it needs {} shared libraries", self.libraries);
        Ok(())
    }
}

/// Reads the headers of a 64-bit little-endian ELF file.
pub fn read(file: &[u8]) -> Result<Elf> {
    ensure!(file.starts_with(b"\x7fELF\x02\x01"), "it is not a 64-bit little-endian ELF file");
    let table = usize::try_from(number::<8>(file, 32)?)?;
    let (size, count) = (usize::try_from(number::<2>(file, 54)?)?, usize::try_from(number::<2>(file, 56)?)?);
    let mut elf = Elf { machine: u16::try_from(number::<2>(file, 18)?)?, interpreter: None, libraries: 0 };
    for index in 0..count {
        let header = table.checked_add(index * size).context("the offset of a program header overflows")?;
        let kind = u32::try_from(number::<4>(file, header)?)?;
        let start = usize::try_from(number::<8>(file, header + 8)?)?;
        let length = usize::try_from(number::<8>(file, header + 32)?)?;
        let content = start.checked_add(length).and_then(|end| file.get(start..end)).context("a truncated segment")?;
        match kind {
            PT_INTERP => {
                let name = content.strip_suffix(b"\0").unwrap_or(content);
                elf.interpreter = Some(String::from_utf8_lossy(name).into_owned());
            }
            PT_DYNAMIC => {
                let tags = content.chunks_exact(16).map(|entry| number::<8>(entry, 0));
                elf.libraries = tags.filter(|tag| matches!(tag, Ok(DT_NEEDED))).count();
            }
            _ => {}
        }
    }
    Ok(elf)
}

/// Returns a little-endian number of `N` bytes.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<u64> {
    let end = at.checked_add(N).context("an offset overflows")?;
    let digits = bytes.get(at..end).context("the file is truncated")?;
    Ok(digits.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
