//! The supervisor; see the module `daemon` of the library.

use std::process::ExitCode;

/// Many small things come and go all the time with many services, which costs the C library's a third of putexd's time. It must
/// not ask the kernel for huge pages (the feature `no_thp`): they doubled what putexd takes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    putexd::daemon::main()
}
