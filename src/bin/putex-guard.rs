//! The dead man's switch: see `putexd::guardian`.

use std::process::ExitCode;

fn main() -> ExitCode {
    putexd::guardian::main()
}
