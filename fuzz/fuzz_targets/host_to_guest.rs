//! What a host may say to a guest.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| guest::fuzz::hear_host(bytes));
