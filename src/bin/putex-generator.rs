//! Binds each managed unit to its lease before anything can start it: see `putexd::generator`.

use std::process::ExitCode;

fn main() -> ExitCode {
    putexd::generator::main()
}
