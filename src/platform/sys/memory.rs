//! Memory that the C library's allocator keeps, and how it is released.

/// Limits glibc's arenas: every thread would otherwise get one of its own, and memory that the start of fifty pods uses in it
/// is not returned. Threads that share one wait for each other's lock. Elsewhere (musl) there is nothing to do.
#[cfg(target_env = "gnu")]
pub(crate) fn limit_arenas(count: u8) {
    // SAFETY: mallopt takes two plain integers; it may be called at any time, and this is before any other
    // thread exists.
    unsafe {
        nix::libc::mallopt(nix::libc::M_ARENA_MAX, nix::libc::c_int::from(count));
    }
}

/// Nothing to do for this C library.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn limit_arenas(_count: u8) {}

/// Gives free memory back to the kernel, where the C library keeps it.
#[cfg(target_env = "gnu")]
pub(in crate::platform) fn trim_heap() {
    // SAFETY: malloc_trim may be called at any time from any thread.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Nothing to do for this C library.
#[cfg(not(target_env = "gnu"))]
pub(in crate::platform) fn trim_heap() {}

/// Releases every page that can be faulted in again, for a process that is about to wait for long: free heap,
/// the unused part of the stack, and program text, of which a start touches far more than waiting does.
/// Private memory counts against a pod's monitor, and so does its share of the text.
pub(crate) fn release_memory() {
    forget_pages();
    trim_heap();
}

/// Releases unmodified pages of files and the unused part of the stack. Free heap stays.
pub(in crate::platform) fn forget_pages() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    let own = own_inode(&maps).unwrap_or_default();
    for range in maps.lines().filter_map(|line| reloadable(line, own)) {
        forget(range);
    }
    let here = std::ptr::from_ref(&maps).addr();
    if let Some(range) = maps.lines().find_map(|line| unused_stack(line, here)) {
        forget(range);
    }
}

/// Reserved below the frames in use: for calls of the C library and the kernel's signal frames.
const STACK_IN_USE: usize = 8 * 1024;

/// Start and end address.
type Range = (usize, usize);

fn range_of(line: &str) -> Option<Range> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}

/// A mapping of `/proc/self/maps` whose pages equal the file's: code, or of this program, whose inode is `own`, constants
/// before any that a linker patches. A library's first mapping may be gone by now: another thread opens it.
fn reloadable(line: &str, own: &str) -> Option<Range> {
    let mut words = line.split_whitespace().skip(1);
    let (access, offset, inode) = (words.next()?, words.next()?, words.nth(1)?);
    let is_first = access == "r--p" && inode == own && offset.bytes().all(|digit| digit == b'0');
    if inode != "0" && (access == "r-xp" || is_first) { range_of(line) } else { None }
}

/// The inode of the file that this function is in.
fn own_inode(maps: &str) -> Option<&str> {
    let here = own_inode as fn(&str) -> Option<&str> as usize;
    let is_own = |line: &&str| range_of(line).is_some_and(|(from, to)| (from..to).contains(&here));
    maps.lines().find(is_own)?.split_whitespace().nth(4)
}

/// The part of the stack's mapping below the frames in use. The stack grows downwards on all supported
/// architectures.
fn unused_stack(line: &str, here: usize) -> Option<Range> {
    let (from, to) = range_of(line)?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
    let end = here.checked_sub(STACK_IN_USE)? & !(usize::try_from(page).ok()? - 1);
    (line.ends_with("[stack]") && (from..to).contains(&end)).then_some((from, end))
}

fn forget((from, to): Range) {
    // SAFETY: the ranges are whole mappings of unmodified files, which the kernel reads again, or lie below
    // every frame in use: no data in use is lost. An error means that nothing was done.
    unsafe {
        nix::libc::madvise(std::ptr::with_exposed_provenance_mut(from), to - from, nix::libc::MADV_DONTNEED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_file_backed_unmodified_mappings_are_reloadable() {
        let line = |access: &str, offset: &str, inode: &str| {
            format!("00200000-003f0000 {access} {offset} fe:00 {inode}   /usr/bin/agent")
        };
        let whole = Some((0x20_0000, 0x3f_0000));
        let reloadable = |line: &str| reloadable(line, "7");
        assert_eq!(reloadable(&line("r-xp", "001ef000", "8")), whole);
        assert_eq!(reloadable(&line("r--p", "00000000", "7")), whole);
        assert_eq!(reloadable(&line("r--p", "00000000", "8")), None, "a file that another thread may unmap");
        assert_eq!(reloadable(&line("r--p", "00912000", "7")), None, "relocated constants");
        assert_eq!(reloadable(&line("rw-p", "00000000", "7")), None);
        assert_eq!(reloadable(&line("r-xp", "00000000", "0")), None, "the vdso");
        assert_eq!(reloadable("garbage"), None);
        assert_eq!(
            unused_stack("7ffc00000000-7ffc00100000 rw-p 0 0 0 [stack]", 0x7ffc_000f_0010),
            Some((0x7ffc_0000_0000, 0x7ffc_000e_e000))
        );
        assert_eq!(unused_stack("7ffc00000000-7ffc00100000 rw-p 0 0 0 [heap]", 0x7ffc_000f_0010), None);
    }

    #[test]
    fn a_process_that_rested_goes_on() {
        let text: String = "kept".repeat(1000);
        release_memory();
        assert_eq!(text.matches("kept").count(), 1000);
        assert!(std::fs::metadata("/proc/self/maps").is_ok());
    }
}
