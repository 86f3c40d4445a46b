//! Programs of a few instructions: an ELF file around the code, and a tar archive around the file.
//!
//! Pure. A container that only has to run a few instructions needs no program of the machine then.

/// An architecture with packages: OCI's name, ELF's number and flags.
#[derive(Debug)]
pub(crate) struct ElfMachine {
    pub name: &'static str,
    pub number: u16,
    pub is_64: bool,
    pub flags: u32,
}

pub(crate) const X86_64: ElfMachine = ElfMachine { name: "amd64", number: 62, is_64: true, flags: 0 };
pub(crate) const AARCH64: ElfMachine = ElfMachine { name: "arm64", number: 183, is_64: true, flags: 0 };
/// EABI version 5.
pub(crate) const ARM: ElfMachine = ElfMachine { name: "arm", number: 40, is_64: false, flags: 0x0500_0000 };

/// Where the file is loaded; also the alignment, for kernels with large pages.
const BASE: u64 = 0x1_0000;
const BLOCK: usize = 512;

/// An executable with one segment, all of the file, that is read and executed. The code begins at a multiple of 8.
pub(crate) fn elf(machine: &ElfMachine, code: &[u8]) -> Vec<u8> {
    let (header, segment): (u8, u8) = if machine.is_64 { (64, 56) } else { (52, 32) };
    let start = u64::from(header + segment).next_multiple_of(8);
    let length = start + code.len() as u64;
    let wide = if machine.is_64 { 8 } else { 4 };
    let mut file = vec![0x7f, b'E', b'L', b'F', wide / 4, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut put = |value: u64, bytes: u8| file.extend_from_slice(&value.to_le_bytes()[..bytes.into()]);
    put(2, 2);
    put(machine.number.into(), 2);
    put(1, 4);
    for value in [BASE + start, header.into(), 0] {
        put(value, wide);
    }
    put(machine.flags.into(), 4);
    for value in [header, segment, 1, 0, 0, 0] {
        put(value.into(), 2);
    }
    // `PT_LOAD`; the two classes have the flags in different places.
    put(1, 4);
    if machine.is_64 {
        put(5, 4);
    }
    for value in [0, BASE, BASE, length, length] {
        put(value, wide);
    }
    if !machine.is_64 {
        put(5, 4);
    }
    put(BASE, wide);
    put(0, if machine.is_64 { 0 } else { 4 });
    file.extend_from_slice(code);
    file
}

/// A tar archive of one program.
pub(crate) fn archive(name: &str, program: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000755");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", program.len()));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut archive = header.to_vec();
    archive.extend(program);
    // The end is two blocks of zeros.
    archive.resize(archive.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    archive
}
