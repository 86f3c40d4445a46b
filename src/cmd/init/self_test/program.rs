//! A minimal test program: it writes `ok` and exits with 42. Handwritten machine code for each architecture with packages.
//!
//! Owns these bytes.

use crate::codec::tiny_program::{AARCH64, ARM, ElfMachine, X86_64, elf};

pub(super) const SAYS: &str = "ok";
pub(super) const EXIT_CODE: i32 = 42;

/// The code, followed by the text.
type Code = (&'static ElfMachine, &'static [u8]);

/// write(1, "ok\n", 3); exit(42).
const ON_X86_64: Code = (
    &X86_64,
    b"\xb8\x01\0\0\0\xbf\x01\0\0\0\x48\x8d\x35\x13\0\0\0\xba\x03\0\0\0\x0f\x05\
            \xb8\x3c\0\0\0\xbf\x2a\0\0\0\x0f\x05ok\n",
);

const ON_AARCH64: Code = (
    &AARCH64,
    b"\x20\0\x80\xd2\xe1\0\0\x10\x62\0\x80\xd2\x08\x08\x80\xd2\x01\0\0\xd4\
            \x40\x05\x80\xd2\xc8\x0b\x80\xd2\x01\0\0\xd4ok\n",
);

const ON_ARM: Code = (
    &ARM,
    b"\x01\0\xa0\xe3\x14\x10\x8f\xe2\x03\x20\xa0\xe3\x04\x70\xa0\xe3\0\0\0\xef\
            \x2a\0\xa0\xe3\xf8\x70\xa0\xe3\0\0\0\xefok\n",
);

const HERE: Option<Code> = if cfg!(target_arch = "x86_64") {
    Some(ON_X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(ON_AARCH64)
} else if cfg!(target_arch = "arm") {
    Some(ON_ARM)
} else {
    None
};

/// OCI's name of this machine's architecture.
pub(super) const ARCHITECTURE: &str = match HERE {
    Some((machine, _)) => machine.name,
    None => "",
};

/// The program for this machine, if its architecture is supported.
pub(super) fn bytes() -> Option<Vec<u8>> {
    HERE.map(|(machine, code)| elf(machine, code))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    fn run((machine, code): Code, interpreter: Option<&str>) {
        let path = std::env::temp_dir().join(format!("edge-agent-{}-{}", machine.name, std::process::id()));
        std::fs::write(&path, elf(machine, code)).unwrap();
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
        assert_eq!(output.stdout, format!("{SAYS}\n").as_bytes(), "{}", machine.name);
        assert_eq!(output.status.code(), Some(EXIT_CODE), "{}", machine.name);
    }

    #[test]
    fn the_program_of_this_machine_says_what_it_has_to() {
        run(HERE.unwrap(), None);
    }

    #[test]
    fn so_do_those_of_the_others_where_an_emulator_is_installed() {
        let mut ran = 0;
        for (target, interpreter) in [(ON_AARCH64, "qemu-aarch64-static"), (ON_ARM, "qemu-arm-static")] {
            let path = format!("/usr/bin/{interpreter}");
            if std::path::Path::new(&path).exists() {
                run(target, Some(&path));
                ran += 1;
            }
        }
        let others = [ON_X86_64, ON_AARCH64, ON_ARM].map(|(machine, code)| elf(machine, code).len());
        assert!(others.iter().all(|length| *length < 200), "{others:?}, {ran} emulated");
    }
}
