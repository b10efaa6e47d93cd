//! The process that has the network: see `putexd::net`.

use std::process::ExitCode;

fn main() -> ExitCode {
    putexd::net::main()
}
