//! memcpy, memmove, memset, memcmp, bcmp and strlen of this object alone.
//!
//! The agent copies and compares while the program's memory is missing, and so do the handlers of signal mode. Taken from the dynamic
//! linker these functions would be whatever the program puts before the C library: those of a sanitizer look at a shadow of
//! every address, which is managed memory, and the agent would wait for itself. So they are here, hidden from everybody else (one that
//! is seen would be the program's, too).
//!
//! Long ones go by string instructions, which current processors carry out by cache lines; short ones by pairs of words that
//! overlap. Other machines than x86-64 take the C library's.

std::arch::global_asm!(
    r#"
    .pushsection .text.pagetide_memory, "ax", @progbits

    .globl memcpy
    .hidden memcpy
    .type memcpy, @function
    .globl memmove
    .hidden memmove
    .type memmove, @function
    .p2align 4
memcpy:
memmove:
    mov rax, rdi
    cmp rdx, 16
    jb 20f
    movups xmm0, [rsi]
    movups xmm1, [rsi + rdx - 16]
    cmp rdx, 32
    ja 10f
    movups [rdi], xmm0
    movups [rdi + rdx - 16], xmm1
    ret
10: // More than 32 bytes; the first and the last 16 are in xmm0 and xmm1.
    mov rcx, rdi
    sub rcx, rsi
    cmp rcx, rdx
    jb 14f
    cmp rdx, 512
    jae 13f
    xor ecx, ecx
11: // Upwards: what is read next lies above what was written.
    movups xmm2, [rsi + rcx]
    movups [rdi + rcx], xmm2
    add rcx, 16
    lea r8, [rcx + 16]
    cmp r8, rdx
    jb 11b
    movups [rdi + rdx - 16], xmm1
    ret
13:
    mov rcx, rdx
    rep movsb
    ret
14: // The target begins inside the source: downwards, first by cache lines.
    cmp rdx, 80
    jb 16f
15:
    movups xmm2, [rsi + rdx - 16]
    movups xmm3, [rsi + rdx - 32]
    movups xmm4, [rsi + rdx - 48]
    movups xmm5, [rsi + rdx - 64]
    movups [rdi + rdx - 16], xmm2
    movups [rdi + rdx - 32], xmm3
    movups [rdi + rdx - 48], xmm4
    movups [rdi + rdx - 64], xmm5
    sub rdx, 64
    cmp rdx, 80
    jae 15b
16:
    movups xmm2, [rsi + rdx - 16]
    movups [rdi + rdx - 16], xmm2
    sub rdx, 16
    cmp rdx, 16
    ja 16b
    movups [rdi], xmm0
    ret
20:
    cmp edx, 8
    jb 21f
    mov rcx, [rsi]
    mov r8, [rsi + rdx - 8]
    mov [rdi], rcx
    mov [rdi + rdx - 8], r8
    ret
21:
    cmp edx, 4
    jb 22f
    mov ecx, [rsi]
    mov r8d, [rsi + rdx - 4]
    mov [rdi], ecx
    mov [rdi + rdx - 4], r8d
    ret
22:
    test edx, edx
    je 23f
    mov r9d, edx
    shr r9d, 1
    movzx ecx, byte ptr [rsi]
    movzx r8d, byte ptr [rsi + rdx - 1]
    movzx r10d, byte ptr [rsi + r9]
    mov [rdi], cl
    mov [rdi + rdx - 1], r8b
    mov [rdi + r9], r10b
23:
    ret
    .size memcpy, . - memcpy
    .size memmove, . - memmove

    .globl memset
    .hidden memset
    .type memset, @function
    .p2align 4
memset:
    mov r8, rdi
    mov rcx, rdx
    cmp rdx, 64
    jb 30f
    mov eax, esi
    rep stosb
    mov rax, r8
    ret
30:
    movzx eax, sil
    mov r9, 0x0101010101010101
    imul rax, r9
31:
    cmp rcx, 8
    jb 32f
    mov [rdi], rax
    add rdi, 8
    sub rcx, 8
    jmp 31b
32:
    test ecx, ecx
    je 33f
    mov [rdi], al
    inc rdi
    dec ecx
    jmp 32b
33:
    mov rax, r8
    ret
    .size memset, . - memset

    .globl memcmp
    .hidden memcmp
    .type memcmp, @function
    .globl bcmp
    .hidden bcmp
    .type bcmp, @function
    .p2align 4
memcmp:
bcmp:
    xor ecx, ecx
40:
    lea r8, [rcx + 8]
    cmp r8, rdx
    ja 42f
    mov rax, [rdi + rcx]
    mov r9, [rsi + rcx]
    cmp rax, r9
    jne 41f
    mov rcx, r8
    jmp 40b
41: // As big numbers: the first byte that differs decides.
    bswap rax
    bswap r9
    cmp rax, r9
    sbb eax, eax
    or eax, 1
    ret
42:
    cmp rcx, rdx
    jae 43f
    movzx eax, byte ptr [rdi + rcx]
    movzx r9d, byte ptr [rsi + rcx]
    inc rcx
    sub eax, r9d
    je 42b
    ret
43:
    xor eax, eax
    ret
    .size memcmp, . - memcmp
    .size bcmp, . - bcmp

    .globl strlen
    .hidden strlen
    .type strlen, @function
    .p2align 4
strlen:
    xor eax, eax
50:
    cmp byte ptr [rdi + rax], 0
    je 51f
    inc rax
    jmp 50b
51:
    ret
    .size strlen, . - strlen
    .popsection
    "#
);

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    // The test's own binary is linked with them, as the object is.
    #[test]
    fn copies_of_all_lengths_and_overlaps_are_right() {
        for length in (0..700).chain([4096, 4097]) {
            for (from, to) in [(0, 9000), (64, 64 + 1), (64, 64 + 17), (64, 63), (64, 47), (64, 64), (3, 3 + 500)] {
                let mut bytes: Vec<u8> =
                    (0..16_384_u32).map(|index| index.wrapping_mul(0x9e37_79b9).to_be_bytes()[0]).collect();
                let before = bytes.clone();
                bytes.copy_within(black_box(from..from + length), to);
                for (index, &byte) in bytes.iter().enumerate() {
                    let is_copied = (to..to + length).contains(&index);
                    let expected = if is_copied { before[index - to + from] } else { before[index] };
                    assert_eq!(byte, expected, "length {length}, {from} to {to}, byte {index}");
                }
            }
        }
    }

    #[test]
    fn bytes_are_set_and_compared_at_all_lengths() {
        for length in 0..200_usize {
            let mut bytes = [7_u8; 300];
            bytes[50..50 + black_box(length)].fill(black_box(0xa5));
            let is_set = |index: usize| (50..50 + length).contains(&index);
            assert!((0..300).all(|index| bytes[index] == if is_set(index) { 0xa5 } else { 7 }), "{length}");
            let mut other = bytes;
            assert_eq!(bytes[50..50 + length].cmp(black_box(&other[50..50 + length])), std::cmp::Ordering::Equal);
            for at in 0..length {
                other[50 + at] = 0xa6;
                assert!(bytes[50..50 + length] < other[black_box(50..50 + length)], "{length}, {at}");
                other[50 + at] = 1;
                assert!(bytes[50..50 + length] > other[black_box(50..50 + length)], "{length}, {at}");
                other[50 + at] = 0xa5;
            }
        }
    }
}
