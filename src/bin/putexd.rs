//! The supervisor; see the module `daemon` of the library.

use std::process::ExitCode;

/// With many services putexd allocates and frees many small objects all the time. With the C library's allocator that costs a
/// third of putexd's CPU time. The allocator must not ask the kernel for huge pages (feature `no_thp`): they doubled putexd's
/// memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    putexd::daemon::main()
}
