//! Rings of io_uring and contexts of AIO, as libraries make them by system call instructions of their own.
//!
//! In signal mode both are refused from the beginning on, as many containers refuse them: a program that had one would not be paged at all.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_char, c_int, c_long, c_uint, c_void};
use pagetide::agent_entry;

const REFUSED: c_int = -libc::ENOSYS;
/// Objects that are looked through, at most.
const OBJECTS_MAX: usize = 1024;

/// May the program make the call `number`, which makes a ring or a context?
pub(crate) fn may_make(number: c_long) -> bool {
    agent_entry::may_have_kept(u32::try_from(number).expect("a number of a call"))
}

/// Names of the objects that are loaded.
struct Objects {
    names: [*const c_char; OBJECTS_MAX],
    len: usize,
}

unsafe extern "C" fn collect(object: *mut libc::dl_phdr_info, _bytes: usize, objects: *mut c_void) -> c_int {
    // SAFETY: what `find` hands over.
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

/// The function that `name` would mean without this object, where `ours` has taken its place: of the objects behind this one, or of one that
/// only those see who have loaded it (a plugin's library). Null: nobody has it.
fn find(name: &CStr, ours: *mut c_void) -> *mut c_void {
    // SAFETY: a lookup by name in the objects behind this one.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !next.is_null() {
        return next;
    }
    let mut objects = Objects { names: [std::ptr::null(); OBJECTS_MAX], len: 0 };
    // SAFETY: `collect` has the type that is asked for, and is handed what it takes.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut objects).cast()) };
    let functions = objects.names[..objects.len].iter().map(|&object| {
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
    functions.into_iter().find(|&function| !function.is_null() && function != ours).unwrap_or(std::ptr::null_mut())
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
            let mut function = NEXT.load(Ordering::Acquire);
            if function.is_null() {
                let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes());
                function = find(name.expect("it ends there"), $name as *mut c_void);
                NEXT.store(function, Ordering::Release);
            }
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
