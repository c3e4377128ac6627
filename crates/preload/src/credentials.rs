//! Calls that change who the program is: our threads follow before they return.

use std::ffi::CStr;
use std::sync::atomic::AtomicPtr;

use libc::{c_char, c_int, c_void, gid_t, size_t, uid_t};
use pagetide::agent_entry;

use crate::next::next;

/// Functions of the C library that answer 0, or -1 for an error.
macro_rules! followed {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without a zero byte"),
            };
            // SAFETY: libc's function of this name has this type.
            let call: unsafe extern "C" fn($($type),*) -> c_int = unsafe { std::mem::transmute(next(&NEXT, NAME)) };
            // SAFETY: passed on as it came.
            let answer = unsafe { call($($argument),*) };
            if answer == 0 {
                agent_entry::credentials_changed();
            }
            answer
        }
    )*};
}

followed! {
    fn setuid(user: uid_t);
    fn seteuid(user: uid_t);
    fn setreuid(real: uid_t, effective: uid_t);
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t);
    fn setgid(group: gid_t);
    fn setegid(group: gid_t);
    fn setregid(real: gid_t, effective: gid_t);
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t);
    fn setgroups(count: size_t, groups: *const gid_t);
    fn initgroups(user: *const c_char, group: gid_t);
    fn capset(header: *mut c_void, sets: *const c_void);
}
