//! File descriptors: whether this process can open one more file.

use std::fs::File;
use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Of what there are no more descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// This process has as many files open as it may.
    OfProcess,
    /// This host has.
    OfHost,
}

impl Shortage {
    /// The shortage that an error tells of, if any.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        let number = error.raw_os_error()?;
        if number == Errno::MFILE.raw_os_error() {
            Some(Self::OfProcess)
        } else if number == Errno::NFILE.raw_os_error() {
            Some(Self::OfHost)
        } else {
            None
        }
    }

    /// Opens a file, to see whether that is possible.
    #[must_use]
    pub fn now() -> Option<Self> {
        File::open("/dev/null").err().as_ref().and_then(Self::of)
    }

    /// What to do about it, and what it is, for the program that `unit` runs, and that may be restarted.
    #[must_use]
    pub fn in_words(self, unit: &str) -> String {
        self.in_words_with(unit, &format!("run \"systemctl restart {unit}\""))
    }

    /// The same for a program that `cure` helps at once.
    #[must_use]
    pub fn in_words_with(self, unit: &str, cure: &str) -> String {
        match self {
            Self::OfProcess => format!(
                "look with \"ls -l /proc/{process}/fd\" what is open, {cure}, and raise LimitNOFILE= of {unit} if so many are needed: it has \
                 as many files open as it may ({limit})",
                process = std::process::id(),
                limit = getrlimit(Resource::Nofile).current.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string()),
            ),
            Self::OfHost => "end the program that has the most files open, or raise the limit with \"sysctl fs.file-max\": this host has \
                             as many files open as it may"
                .to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lack_of_descriptors_is_one() {
        let of = |error: Errno| Shortage::of(&error.into());
        assert_eq!((of(Errno::MFILE), of(Errno::NFILE)), (Some(Shortage::OfProcess), Some(Shortage::OfHost)));
        assert_eq!((of(Errno::NOENT), of(Errno::NOMEM)), (None, None));
        assert_eq!(Shortage::now(), None);
    }
}
