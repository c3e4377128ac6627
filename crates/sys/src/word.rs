//! Exact conversions between the integers of the kernel's interfaces. 64-bit only, so none of them loses a bit.

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "these conversions are exact on 64-bit machines only");

/// A kernel word as an address or length.
#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, asserted above")]
pub const fn usize_of(word: u64) -> usize {
    word as usize
}

/// An address or length as a kernel word.
pub const fn u64_of(word: usize) -> u64 {
    word as u64
}

/// A C `int` argument as a register: sign-extended.
pub const fn int_arg(value: i32) -> usize {
    (value as isize).cast_unsigned()
}

/// The C `int` in a register: the low half.
#[expect(clippy::cast_possible_truncation, reason = "a C int is the low half of the register by definition")]
pub const fn int_of(register: usize) -> i32 {
    (register as u32).cast_signed()
}

/// The low 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
pub const fn low_u32(word: u64) -> u32 {
    word as u32
}

/// The low 8 bits.
#[expect(clippy::cast_possible_truncation, reason = "the low byte is what is asked for")]
pub const fn low_u8(word: u64) -> u8 {
    word as u8
}

/// An address as a register.
pub fn addr_of<T: ?Sized>(pointer: *const T) -> usize {
    pointer.cast::<u8>().expose_provenance()
}
