//! The supervisor; see the module `daemon` of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    putexd::daemon::main()
}
