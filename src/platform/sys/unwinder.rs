//! What the standard library and C link against to unwind, for a program that never unwinds: it aborts when it panics, and has no
//! tables for unwinding (docs/adr/0018). With these in place of libgcc's nothing refers to the reader of debug information that
//! backtraces bring along, and the program needs one shared library less (docs/adr/0065).

#[cfg(target_arch = "arm")]
use std::ffi::c_uint;
use std::ffi::{c_int, c_void};
use std::process::abort;

/// `_URC_END_OF_STACK`
const END_OF_STACK: c_int = 5;

/// Calls back for no frame: a backtrace is empty.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_for_each_frame: *const c_void, _argument: *mut c_void) -> c_int {
    END_OF_STACK
}

/// A function that nothing calls.
macro_rules! unreached {
    ($($name:ident($($kind:ty),*) -> $result:ty;)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name($(_: $kind),*) -> $result {
            abort()
        })*
    };
}

unreached! {
    _Unwind_Resume(*mut c_void) -> !;
    _Unwind_GetLanguageSpecificData(*mut c_void) -> *const c_void;
    _Unwind_GetRegionStart(*mut c_void) -> usize;
    _Unwind_GetTextRelBase(*mut c_void) -> usize;
    _Unwind_GetDataRelBase(*mut c_void) -> usize;
}

#[cfg(not(target_arch = "arm"))]
unreached! {
    _Unwind_GetIP(*mut c_void) -> usize;
    _Unwind_GetIPInfo(*mut c_void, *mut c_int) -> usize;
    _Unwind_SetGR(*mut c_void, c_int, usize) -> ();
    _Unwind_SetIP(*mut c_void, usize) -> ();
}

#[cfg(target_arch = "arm")]
unreached! {
    _Unwind_VRS_Get(*mut c_void, c_int, c_uint, c_int, *mut c_void) -> c_int;
    _Unwind_VRS_Set(*mut c_void, c_int, c_uint, c_int, *mut c_void) -> c_int;
    __gnu_unwind_frame(*mut c_void, *mut c_void) -> c_int;
    __aeabi_unwind_cpp_pr0(c_int, *mut c_void, *mut c_void) -> c_int;
    __aeabi_unwind_cpp_pr1(c_int, *mut c_void, *mut c_void) -> c_int;
    __aeabi_unwind_cpp_pr2(c_int, *mut c_void, *mut c_void) -> c_int;
}
