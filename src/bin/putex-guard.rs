//! The guard: ends each lease at its deadline even if putexd is gone. See `putexd::guard`.

use std::process::ExitCode;

fn main() -> ExitCode {
    putexd::guard::main()
}
