//! What the programs' command lines have in common: their parsing, and their exit statuses.

use std::process::ExitCode;

use clap::Parser;

/// Exit statuses, from sysexits(3).
pub mod exit {
    /// What was asked was understood, and refused.
    pub const REFUSED: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 64;
    /// Somebody who is needed does not answer.
    pub const UNAVAILABLE: u8 = 69;
    /// A defect of the program.
    pub const DEFECT: u8 = 70;
    /// The kernel or systemd did not give what the program cannot do without.
    pub const OS: u8 = 71;
    /// The configuration is wrong.
    pub const CONFIGURATION: u8 = 78;
    /// Nobody reads standard output any more: what a shell shows of a program that SIGPIPE has ended.
    pub const CLOSED_PIPE: u8 = 141;
}

/// Parses the command line; `Err` is the status to exit with, after help, version or an error has been printed.
pub fn parse<Arguments: Parser>() -> Result<Arguments, ExitCode> {
    Arguments::try_parse().map_err(|error| {
        // Help and version are errors to clap as well, which it prints on standard output.
        let printed = error.print().is_ok();
        if printed && !error.use_stderr() { ExitCode::SUCCESS } else { ExitCode::from(exit::USAGE) }
    })
}
