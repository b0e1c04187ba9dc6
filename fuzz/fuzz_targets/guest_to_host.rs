//! What a guest may say to the daemon.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandkeep_guestlink::fuzz::hear_guest(bytes));
