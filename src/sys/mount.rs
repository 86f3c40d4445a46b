//! Mounts the agent itself makes and removes: in this version tmpfs for `emptyDir.medium: Memory`.

use std::path::Path;

use nix::mount::{MntFlags, MsFlags};

/// Mounts a tmpfs of at most `size_bytes` (`None`: the kernel's default, half of the memory).
///
/// # Errors
/// The kernel's answer.
pub fn mount_tmpfs(target: &Path, size_bytes: Option<i64>) -> std::io::Result<()> {
    let options = match size_bytes {
        Some(size) => format!("mode=0777,size={size}"),
        None => "mode=0777".to_owned(),
    };
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    nix::mount::mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options.as_str()))?;
    Ok(())
}

/// Unmounts, detaching if it is busy.
///
/// # Errors
/// The kernel's answer.
pub fn unmount(target: &Path) -> std::io::Result<()> {
    nix::mount::umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    Ok(())
}

/// Every mount point of this mount namespace, as `/proc/self/mountinfo` lists them (later mounts last).
///
/// # Errors
/// When procfs does not answer.
pub fn mount_points() -> std::io::Result<Vec<String>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(parse_mount_points(&table))
}

fn parse_mount_points(table: &str) -> Vec<String> {
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape).collect()
}

/// mountinfo writes blanks and backslashes as three octal digits.
fn unescape(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\').then(|| tail.get(..3)).flatten();
        let code = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = code {
            bytes.push(byte);
            rest = &tail[3..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_with_blanks_are_read_back_as_they_are() {
        let table = "36 35 98:0 / /mnt/a\\040b\\134c rw shared:1 - ext4 /dev/sda rw\n37 36 0:5 / /proc rw - proc proc rw\n";
        assert_eq!(parse_mount_points(table), ["/mnt/a b\\c", "/proc"]);
    }
}
