//! What a layer of an image may hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandkeep_image::layer::fuzz::apply_layer(bytes));
