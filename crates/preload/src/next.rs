//! The function that a name would mean without this object.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_char, c_int, c_void};

/// Objects that are looked through, at most.
const OBJECTS_MAX: usize = 1024;

/// Look it up once and keep it in `place`. A name that no other object has is a broken installation: the program ends with a
/// message, as the loader would have ended it.
pub(crate) fn next(place: &AtomicPtr<c_void>, name: &'static CStr) -> *mut c_void {
    let found = kept(place, || behind(name));
    if found.is_null() {
        pagetide_sys::stderr::write(b"pagetide: the C library has no function ");
        pagetide_sys::stderr::write(name.to_bytes());
        pagetide_sys::stderr::write(b"\n");
        pagetide_sys::signal::abort();
    }
    found
}

/// As [`next`], where `ours` has taken the place of a function that perhaps only those objects see which have loaded its library (a
/// plugin's). Null: nobody has it yet.
pub(crate) fn next_of_any(place: &AtomicPtr<c_void>, name: &CStr, ours: *mut c_void) -> *mut c_void {
    kept(place, || {
        let found = behind(name);
        if found.is_null() { in_any(name, ours) } else { found }
    })
}

fn kept(place: &AtomicPtr<c_void>, look: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let found = look();
    place.store(found, Ordering::Release);
    found
}

fn behind(name: &CStr) -> *mut c_void {
    // SAFETY: a lookup by name in the objects behind this one.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Names of the objects that are loaded.
struct Objects {
    names: [*const c_char; OBJECTS_MAX],
    len: usize,
}

unsafe extern "C" fn collect(object: *mut libc::dl_phdr_info, _bytes: usize, objects: *mut c_void) -> c_int {
    // SAFETY: what `in_any` hands over.
    let objects = unsafe { &mut *objects.cast::<Objects>() };
    // SAFETY: the loader's, for the time of this call.
    let name = unsafe { (*object).dlpi_name };
    // SAFETY: a C string, if it is there.
    if !name.is_null() && unsafe { *name } != 0 && objects.len < OBJECTS_MAX {
        objects.names[objects.len] = name;
        objects.len += 1;
    }
    0
}

/// The function of the first object that has one of this name beside `ours`.
fn in_any(name: &CStr, ours: *mut c_void) -> *mut c_void {
    let mut objects = Objects { names: [std::ptr::null(); OBJECTS_MAX], len: 0 };
    // SAFETY: `collect` has the type that is asked for, and is handed what it takes.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut objects).cast()) };
    let mut functions = objects.names[..objects.len].iter().map(|&object| {
        // SAFETY: the name of a loaded object, which is not loaded anew.
        let handle = unsafe { libc::dlopen(object, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return std::ptr::null_mut();
        }
        // SAFETY: a lookup by name in a loaded object and what it needs.
        let function = unsafe { libc::dlsym(handle, name.as_ptr()) };
        // SAFETY: given back once; whoever has loaded the object keeps it.
        unsafe { libc::dlclose(handle) };
        function
    });
    functions.find(|&function| !function.is_null() && function != ours).unwrap_or(std::ptr::null_mut())
}
