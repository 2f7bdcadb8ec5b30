//! See `dev/fuzz/targets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| reveille::fuzz_targets::run("resume", data));
