//! The operator's command; see the module `ctl` of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    putexd::ctl::main()
}
