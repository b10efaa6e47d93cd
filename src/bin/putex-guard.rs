//! The dead man's switch: see `putexd::guard`.

use std::process::ExitCode;

fn main() -> ExitCode {
    putexd::guard::main()
}
