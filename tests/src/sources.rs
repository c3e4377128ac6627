//! What real programs work on: the scripts of `programs/`, and inputs that are made for them, the same in every run.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use crate::need::source_directory;
use crate::scratch::Scratch;

/// Path of `programs/NAME`.
pub fn source(name: &str) -> String {
    source_directory().join("programs").join(name).display().to_string()
}

/// `count` numbers in an order that looks random and is always the same, with `run` neighbours one after the other each time (of
/// which `count` is a multiple): the larger, the less a sort jumps about.
pub fn shuffled_lines(scratch: &Scratch, count: u64, run: u64) -> PathBuf {
    let mut text = String::new();
    let runs = count / run;
    // The step is coprime to the number of runs, so each number comes once.
    for index in 0..count {
        writeln!(text, "{} line {index}", index / run * 1_618_033 % runs * run + index % run)
            .expect("a String takes all");
    }
    scratch.write("lines", text)
}

/// A C file of this many functions, none of which is like another.
pub fn very_large_c_file(scratch: &Scratch, functions: u32) -> PathBuf {
    let mut text = String::from("#include <stdint.h>\n");
    for i in 0..functions {
        let (scale, shift, bit, turn, last) = (i * 7 + 3, i % 13, 1_u32 << (i % 16), i % 7, i % 8);
        writeln!(
            text,
            "static uint64_t f{i}(uint64_t a, uint64_t b) {{ uint64_t t[8] = {{a, b, {i}u}}; for (int i = 0; i < 8; i++) {{ \
             t[i] = t[i] * {scale}u + (t[(i + 1) & 7] ^ (a >> (i + {shift}))); if (t[i] & {bit}u) b += t[i] ^ {i}u; else a ^= b << {turn}; }} \
             return t[{last}] + a * b; }}"
        )
        .expect("a String takes all");
    }
    text.push_str("uint64_t (*const table[])(uint64_t, uint64_t) = {");
    for i in 0..functions {
        write!(text, "f{i},").expect("a String takes all");
    }
    text.push_str("};\n");
    scratch.write("large.c", text)
}

/// The classes of `programs/NAME`, compiled into a directory of `scratch`.
pub fn java_classes(scratch: &Scratch, name: &str) -> PathBuf {
    let classes = scratch.directory("classes");
    let output = Command::new("javac")
        .arg("-d")
        .arg(&classes)
        .arg(source(name))
        .output()
        .expect("javac is installed (tests/setup.sh)");
    assert!(output.status.success(), "javac: {}", String::from_utf8_lossy(&output.stderr));
    classes
}
