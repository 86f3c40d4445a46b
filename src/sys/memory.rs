//! How the C library's allocator holds on to memory.

/// Keeps glibc to one arena: every further thread would otherwise get one of its own, and what the start of fifty pods
/// leaves in it is never given back. The agent has one busy thread, so nobody waits for the lock. Elsewhere (musl) there
/// is nothing to do.
#[cfg(target_env = "gnu")]
pub fn use_one_arena() {
    // SAFETY: mallopt takes two plain integers; it may be called at any time, and this is before any other thread exists.
    unsafe {
        nix::libc::mallopt(nix::libc::M_ARENA_MAX, 1);
    }
}

/// Nothing to do for this C library.
#[cfg(not(target_env = "gnu"))]
pub fn use_one_arena() {}

/// Gives free memory back to the kernel, where the C library keeps it.
#[cfg(target_env = "gnu")]
pub fn give_back() {
    // SAFETY: malloc_trim may be called at any time from any thread.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Nothing to do for this C library.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}
