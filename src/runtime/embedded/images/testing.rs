//! Archives by hand, and power cuts.

use std::cell::Cell;
use std::io;
use std::path::PathBuf;

thread_local! {
    static CUT: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// As [`super::step`] in the product; fails at the step that [`cut_at`] named.
pub(super) fn step(name: &'static str) -> io::Result<()> {
    if CUT.get() == Some(name) { Err(io::Error::other("the power is cut")) } else { Ok(()) }
}

/// The power fails at this step, until the next call.
pub(super) fn cut_at(name: Option<&'static str>) {
    CUT.set(name);
}

pub(super) fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("edge-agent-images-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[derive(Clone, Default)]
pub(super) struct Tar(pub Vec<u8>);

impl Tar {
    /// One entry with every field given.
    pub(super) fn entry(mut self, kind: u8, path: &str, link: &str, mode: u32, content: &[u8]) -> Self {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, &path.as_bytes()[..path.len().min(100)]);
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{:011o}", content.len()).as_bytes());
        put(136, b"13000000000");
        put(148, b"        ");
        put(156, &[kind]);
        put(157, &link.as_bytes()[..link.len().min(100)]);
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0.extend(header);
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(super) fn file(self, path: &str, content: &str) -> Self {
        self.entry(b'0', path, "", 0o644, content.as_bytes())
    }

    pub(super) fn dir(self, path: &str) -> Self {
        self.entry(b'5', path, "", 0o755, b"")
    }

    pub(super) fn link(self, path: &str, target: &str) -> Self {
        self.entry(b'2', path, target, 0o777, b"")
    }

    pub(super) fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(b'1', path, target, 0o644, b"")
    }

    /// A pax record for the next entry.
    pub(super) fn pax(self, key: &str, value: &[u8]) -> Self {
        let body = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
        let length = (1..9)
            .map(|digits| body.len() + digits)
            .find(|length| length.to_string().len() + body.len() == *length);
        let record = [length.unwrap().to_string().as_bytes(), &body].concat();
        self.entry(b'x', "pax", "", 0o644, &record)
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}
