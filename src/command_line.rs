//! What the command lines of all programs have in common: their parsing, and the exit statuses.

use std::{process::ExitCode, sync::LazyLock};

use clap::Parser;

use crate::store::StoreSettings;

/// Exit statuses, from sysexits(3); 3 and 4 as systemctl(1) has them.
pub mod exit {
    /// The request was understood, and refused.
    pub const REFUSED: u8 = 1;
    /// `putexctl is-active`: another host runs the service.
    pub const ELSEWHERE: u8 = 3;
    /// `putexctl is-active`: no host runs the service.
    pub const NOWHERE: u8 = 4;
    /// The command line is wrong.
    pub const USAGE: u8 = 64;
    /// A process or server that is needed does not answer.
    pub const UNAVAILABLE: u8 = 69;
    /// The program has a defect.
    pub const DEFECT: u8 = 70;
    /// The kernel or systemd did not give the program something that it cannot do without.
    pub const OS: u8 = 71;
    /// What was asked for has begun, and its outcome was not seen within the time limit.
    pub const GOING_ON: u8 = 75;
    /// The configuration is wrong.
    pub const CONFIGURATION: u8 = 78;
    /// Nobody reads standard output any more: the status that a shell shows for a program that SIGPIPE has ended.
    pub const CLOSED_PIPE: u8 = 141;
}

/// The commit that the sources were taken from, as `packaging/build` says it.
const COMMIT: Option<&str> = option_env!("PUTEX_COMMIT");

/// What each program prints after its name with `--version`: its version and commit, and the stores that are built in.
pub fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let commit = COMMIT
            .filter(|commit| !commit.is_empty())
            .unwrap_or("unknown");
        format!(
            "{}\ncommit: {commit}\nstores: {}",
            env!("CARGO_PKG_VERSION"),
            StoreSettings::BUILT_IN.join(", ")
        )
    });
    &TEXT
}

/// Parses the command line; `Err` is the status to exit with, after help, version or an error has been printed.
pub fn parse<Arguments: Parser>() -> Result<Arguments, ExitCode> {
    Arguments::try_parse().map_err(|error| {
        // clap treats help and version as errors as well, and prints them on standard output.
        let printed = error.print().is_ok();
        if printed && !error.use_stderr() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(exit::USAGE)
        }
    })
}
