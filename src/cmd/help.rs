//! The text of each command's `--help`. The build packs the files of `help/`: each is a page that is read once in a while.
//!
//! Owns finding a text by its name.

use crate::codec::packed::unpack;

static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/help.z"));

/// The text of the file with this name, without its extension.
#[must_use]
pub(in crate::cmd) fn text(name: &str) -> String {
    let all = unpack(PACKED);
    let mut texts = all.split('\0').filter_map(|text| text.split_once('\n'));
    texts.find_map(|(known, text)| (known == name).then(|| text.to_owned())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_found_as_it_was_written() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cmd/help");
        let mut count = 0;
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert_eq!(text(name), std::fs::read_to_string(&path).unwrap(), "{name}");
            count += 1;
        }
        assert!(count > 30 && text("nothing").is_empty(), "{count}");
    }
}
