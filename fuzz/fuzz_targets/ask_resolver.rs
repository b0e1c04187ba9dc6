//! What a sandbox may ask the resolver.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandkeep_egress::fuzz::ask_resolver(bytes));
