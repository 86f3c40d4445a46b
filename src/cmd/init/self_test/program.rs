//! A minimal test program: it writes `ok` and exits with 42. Handwritten machine code for each architecture
//! with packages, in an ELF file and a tar archive that are created here.
//!
//! Owns these bytes.

pub(super) const SAYS: &str = "ok";
pub(super) const EXIT_CODE: i32 = 42;
const ADDRESS: u64 = 0x10000;

/// One architecture: OCI's name, ELF's number, and the code, followed by the text.
struct Architecture {
    name: &'static str,
    machine: u16,
    is_64: bool,
    flags: u32,
    code: &'static [u8],
}

/// write(1, "ok\n", 3); exit(42).
const X86_64: Architecture = Architecture {
    name: "amd64",
    machine: 62,
    is_64: true,
    flags: 0,
    code: b"\xb8\x01\0\0\0\xbf\x01\0\0\0\x48\x8d\x35\x13\0\0\0\xba\x03\0\0\0\x0f\x05\
            \xb8\x3c\0\0\0\xbf\x2a\0\0\0\x0f\x05ok\n",
};

const AARCH64: Architecture = Architecture {
    name: "arm64",
    machine: 183,
    is_64: true,
    flags: 0,
    code: b"\x20\0\x80\xd2\xe1\0\0\x10\x62\0\x80\xd2\x08\x08\x80\xd2\x01\0\0\xd4\
            \x40\x05\x80\xd2\xc8\x0b\x80\xd2\x01\0\0\xd4ok\n",
};

/// EABI version 5.
const ARM: Architecture = Architecture {
    name: "arm",
    machine: 40,
    is_64: false,
    flags: 0x0500_0000,
    code: b"\x01\0\xa0\xe3\x14\x10\x8f\xe2\x03\x20\xa0\xe3\x04\x70\xa0\xe3\0\0\0\xef\
            \x2a\0\xa0\xe3\xf8\x70\xa0\xe3\0\0\0\xefok\n",
};

const HERE: Option<&Architecture> = if cfg!(target_arch = "x86_64") {
    Some(&X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(&AARCH64)
} else if cfg!(target_arch = "arm") {
    Some(&ARM)
} else {
    None
};

/// OCI's name of this machine's architecture.
pub(super) const ARCHITECTURE: &str = match HERE {
    Some(target) => target.name,
    None => "",
};

/// The program for this machine, if its architecture is supported.
pub(super) fn bytes() -> Option<Vec<u8>> {
    HERE.map(Architecture::elf)
}

impl Architecture {
    /// An executable with one segment, which spans the whole file.
    fn elf(&self) -> Vec<u8> {
        let (header, segment): (u16, u16) = if self.is_64 { (64, 56) } else { (52, 32) };
        let length = u64::from(header + segment) + self.code.len() as u64;
        let mut file = Vec::new();
        let half = |number: u16, file: &mut Vec<u8>| file.extend(number.to_le_bytes());
        let word = |number: u32, file: &mut Vec<u8>| file.extend(number.to_le_bytes());
        // A word of the address size.
        let wide = |number: u64, file: &mut Vec<u8>| {
            let bytes = number.to_le_bytes();
            file.extend(if self.is_64 { &bytes[..] } else { &bytes[..4] });
        };
        file.extend([0x7f, b'E', b'L', b'F', if self.is_64 { 2 } else { 1 }, 1, 1]);
        file.extend([0; 9]);
        half(2, &mut file);
        half(self.machine, &mut file);
        word(1, &mut file);
        wide(ADDRESS + u64::from(header + segment), &mut file);
        wide(u64::from(header), &mut file);
        wide(0, &mut file);
        word(self.flags, &mut file);
        for number in [header, segment, 1, 0, 0, 0] {
            half(number, &mut file);
        }
        // `PT_LOAD`, readable and executable; the two classes have the flags in different places.
        word(1, &mut file);
        if self.is_64 {
            word(5, &mut file);
        }
        for number in [0, ADDRESS, ADDRESS, length, length] {
            wide(number, &mut file);
        }
        if !self.is_64 {
            word(5, &mut file);
        }
        wide(0x1000, &mut file);
        file.extend(self.code);
        file
    }
}

pub(super) fn archive(name: &str, program: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
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
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    fn run(target: &Architecture, interpreter: Option<&str>) {
        let path = std::env::temp_dir().join(format!("edge-agent-{}-{}", target.name, std::process::id()));
        std::fs::write(&path, target.elf()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = match interpreter {
            Some(interpreter) => {
                let mut command = Command::new(interpreter);
                command.arg(&path);
                command
            }
            None => Command::new(&path),
        };
        let output = command.output().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(output.stdout, format!("{SAYS}\n").as_bytes(), "{}", target.name);
        assert_eq!(output.status.code(), Some(EXIT_CODE), "{}", target.name);
    }

    #[test]
    fn the_program_of_this_machine_says_what_it_has_to() {
        run(HERE.unwrap(), None);
    }

    #[test]
    fn so_do_those_of_the_others_where_an_emulator_is_installed() {
        let mut ran = 0;
        for (target, interpreter) in [(&AARCH64, "qemu-aarch64-static"), (&ARM, "qemu-arm-static")] {
            let path = format!("/usr/bin/{interpreter}");
            if std::path::Path::new(&path).exists() {
                run(target, Some(&path));
                ran += 1;
            }
        }
        let others = [&X86_64, &AARCH64, &ARM].map(|target| target.elf().len());
        assert!(others.iter().all(|length| *length < 200), "{others:?}, {ran} emulated");
    }
}
