//! Rings of io_uring and contexts of AIO, as libraries make them by system call instructions of their own.
//!
//! In signal mode both are refused from the beginning on, as many containers refuse them: a program that had one would not be paged at all.

use std::ffi::CStr;
use std::sync::atomic::AtomicPtr;

use libc::{c_int, c_long, c_uint, c_void};
use pagetide::agent_entry;

use crate::next::next_of_any;

const REFUSED: c_int = -libc::ENOSYS;

/// May the program make the call `number`, which makes a ring or a context?
pub(crate) fn may_make(number: c_long) -> bool {
    agent_entry::may_have_kept(u32::try_from(number).expect("a number of a call"))
}

/// Functions that hand all to the library's of the same name, as soon as they may. A program that looks for one which no library has is
/// told what an old kernel would say.
macro_rules! made_by_library {
    ($($(#[$doc:meta])* $number:ident $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            if !may_make(libc::$number) {
                return REFUSED;
            }
            let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes());
            let function = next_of_any(&NEXT, name.expect("it ends there"), $name as *mut c_void);
            if function.is_null() {
                return REFUSED;
            }
            // SAFETY: the library's function of this name has this type.
            let function: unsafe extern "C" fn($($type),*) -> c_int = unsafe { std::mem::transmute(function) };
            // SAFETY: passed on as it came.
            unsafe { function($($argument),*) }
        }
    )*};
}

made_by_library! {
    /// As liburing's.
    SYS_io_uring_setup io_uring_setup(entries: c_uint, parameters: *mut c_void);
    /// As liburing's.
    SYS_io_uring_setup io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    /// As liburing's.
    SYS_io_uring_setup io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
    /// As liburing's.
    SYS_io_uring_setup io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, parameters: *mut c_void, buffer: *mut c_void, bytes: usize
    );
    /// As libaio's.
    SYS_io_setup io_setup(events: c_int, context: *mut c_void);
    /// As libaio's.
    SYS_io_setup io_queue_init(events: c_int, context: *mut c_void);
}
