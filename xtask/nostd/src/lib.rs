//! Proof that the core needs no standard library: this crate defines the panic handler, of which a program may have only
//! one. If the core, or anything below it, linked std, the compiler would refuse with "found duplicate lang item".
#![no_std]

extern crate alloc;
use pagetide_core as _;

/// Never called: nothing here runs.
#[panic_handler]
fn on_panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

struct NoMemory;

// SAFETY: an allocator that always refuses keeps every promise of the trait.
unsafe impl core::alloc::GlobalAlloc for NoMemory {
    unsafe fn alloc(&self, _: core::alloc::Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: core::alloc::Layout) {}
}

#[global_allocator]
static ALLOCATOR: NoMemory = NoMemory;
