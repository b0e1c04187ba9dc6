//! What a client of Flex's door may send.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandkeep_doors::fuzz::stream_request(bytes));
