//! The program `sandkeep-guest`: all code is in the library.
//!
//! Without Rust's own start-up code the guest is ready some 15 system calls and a signal stack earlier.

#![no_main]
#![expect(unsafe_code, reason = "the C entry point of a program without Rust's runtime")]

use std::ffi::{CStr, c_char, c_int};

use guest::LargeBlocks;

#[global_allocator]
static MEMORY: LargeBlocks = LargeBlocks;

/// # Safety
/// Called once, by the C library, with the arguments of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    let count = usize::try_from(argc).unwrap_or(0);
    let arguments: Vec<String> = (1..count)
        .map(|index| {
            // SAFETY: the C library passes `argc` valid, NUL-terminated strings.
            let argument = unsafe { CStr::from_ptr(*argv.add(index)) };
            argument.to_string_lossy().into_owned()
        })
        .collect();
    guest::run(&arguments)
}
