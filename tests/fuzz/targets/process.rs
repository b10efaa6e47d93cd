#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| putexd_fuzz::run("process", input));
