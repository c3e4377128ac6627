//! What the sanitizers of compilers ask a program, answered for it.
//!
//! Names that they look for: weak ones of their own, which a program that defines them replaces. The program's own definitions come
//! before these.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use pagetide::agent_entry;
use pagetide_sys::stderr;
use pagetide_sys::text::Text;
use pagetide_sys::thread;

/// Options of AddressSanitizer unless its environment variable says otherwise: it does not start where an object is loaded before its
/// own library, because that one's functions might be hidden. None of ours hides what it replaces: each calls the next.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// True: LeakSanitizer looks for no leaks. It would stop all threads, whoever pages among them, and then read all memory: it
/// would wait for a page for ever.
#[unsafe(no_mangle)]
extern "C" fn __lsan_is_turned_off() -> c_int {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    let is_managed = agent_entry::is_managed();
    if is_managed && !IS_TOLD.swap(true, Ordering::Relaxed) {
        let line = Text::<256>::format(format_args!(
            "pagetide: process {}: its memory is paged: LeakSanitizer would stop who pages, and does not look for leaks\n",
            thread::getpid()
        ));
        stderr::write(line.as_bytes());
    }
    c_int::from(is_managed)
}
