//! The function that a name would mean without this object.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_void;

/// Look it up once and keep it in `place`. A name that no other object has is a broken installation: the program ends with a
/// message, as the loader would have ended it.
pub(crate) fn next(place: &AtomicPtr<c_void>, name: &'static CStr) -> *mut c_void {
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a lookup by name in the objects behind this one.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        pagetide_sys::stderr::write(b"pagetide: the C library has no function ");
        pagetide_sys::stderr::write(name.to_bytes());
        pagetide_sys::stderr::write(b"\n");
        pagetide_sys::signal::abort();
    }
    place.store(found, Ordering::Release);
    found
}
