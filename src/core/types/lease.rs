//! The terms of a lease, which the election, the driver and the guard hand on to each other as they are.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{FencingToken, Instance, Revision, Time, WriteId, sum};

/// The terms of a lease: whose it is, from which write its deadline counts, and how long the stop after that may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTerms {
    /// The tenure that the lease belongs to.
    pub instance: Instance,
    /// The write to the store that the deadline counts from.
    pub write: WriteId,
    /// The revision of that write.
    pub revision: Revision,
    /// The fencing token of the tenure.
    pub token: FencingToken,
    /// When the gate is closed and the stop begins: `s + T·(1−ρ) − m`, by renewal (H1).
    pub deadline: Time,
    /// S, the stop budget: by `deadline + stop_budget` nothing of the units may run.
    pub stop_budget: Duration,
    /// k, the part of S for SIGKILL, which is sent from `deadline + stop_budget − kill_reserve` on.
    pub kill_reserve: Duration,
}

impl LeaseTerms {
    /// Sets another deadline, with the write that it counts from, by renewal (H1) or at the end of a pause (H8).
    pub fn extend(&mut self, to: Extension) {
        (self.write, self.revision, self.deadline) = (to.write, to.revision, to.deadline);
    }

    /// When SIGKILL is due: `deadline + S − k`.
    pub fn kill_at(&self) -> Time {
        self.deadline
            .plus(self.stop_budget.saturating_sub(self.kill_reserve))
    }

    /// When the units have to be dead: `deadline + S`.
    pub fn dead_by(&self) -> Time {
        self.deadline.plus(self.stop_budget)
    }
}

/// The deadline of a lease, and the write to the store that it counts from.
///
/// It is the first line of a grant and of a record of the guard, which an extension changes in place. That takes no additional space, and
/// a third of the time that replacing the file takes. The line ends with a digest of its text, because any part of a line that is read
/// while it is written may be new. To systemd, which reads the grants, it is a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// The write.
    pub write: WriteId,
    /// Its revision.
    pub revision: Revision,
    /// The deadline.
    pub deadline: Time,
}

impl Extension {
    /// What the terms of a lease say of it.
    pub fn of(terms: &LeaseTerms) -> Self {
        Self {
            write: terms.write,
            revision: terms.revision,
            deadline: terms.deadline,
        }
    }

    /// The first line, its line break included: with the deadline on both clocks, in nanoseconds. All lines have the same length. A
    /// deadline of more than five hundred years, which does not fit, becomes the latest one that does.
    pub fn line(&self) -> String {
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let (boot, raw) = (nanos(self.deadline.boot), nanos(self.deadline.raw));
        let said = format!(
            "{:032x} {:020} {boot:020} {raw:020}",
            self.write.0, self.revision.0
        );
        format!("# {said} {:016x}\n", sum(said.as_bytes()))
    }

    /// What the first line of `text` says, and what follows it. `None`: the line is not whole; if somebody is writing it, it is whole a
    /// moment later.
    pub fn read(text: &str) -> Option<(Self, &str)> {
        let (line, rest) = text.split_once('\n')?;
        let (said, found) = line.strip_prefix("# ")?.rsplit_once(' ')?;
        let [write, revision, boot, raw] = said.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        let nanos = |text: &str| Some(Duration::from_nanos(text.parse().ok()?));
        let extension = Self {
            write: WriteId(u128::from_str_radix(write, 16).ok()?),
            revision: Revision(revision.parse().ok()?),
            deadline: Time {
                boot: nanos(boot)?,
                raw: nanos(raw)?,
            },
        };
        let sum = format!("{:016x}", sum(said.as_bytes()));
        (found == sum).then_some((extension, rest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extension(number: u64) -> Extension {
        Extension {
            write: WriteId(u128::MAX - u128::from(number)),
            revision: Revision(1_999_999 + number),
            deadline: Time {
                boot: Duration::from_nanos(number),
                raw: Duration::from_nanos(u64::MAX - number),
            },
        }
    }

    #[test]
    fn a_line_is_as_long_as_any_other_and_comes_back() {
        for number in [0, 1, 1 << 50] {
            let line = extension(number).line();
            assert_eq!(line.len(), extension(2).line().len());
            let text = line + "rest\n";
            assert_eq!(Extension::read(&text), Some((extension(number), "rest\n")));
        }
        let at = |deadline| Extension {
            deadline,
            ..extension(0)
        };
        let latest = Time::both(Duration::from_nanos(u64::MAX));
        assert_eq!(at(Time::both(Duration::MAX)).line(), at(latest).line());
    }

    #[test]
    fn what_has_no_whole_line_says_nothing() {
        for text in [
            "",
            "\n",
            "# \n",
            "PUTEX=1\n",
            "# 0 1 2 3 0000000000000000\n",
        ] {
            assert_eq!(Extension::read(text), None, "{text:?}");
        }
        assert_eq!(Extension::read(extension(0).line().trim_end()), None);
        for said in ["1", "1 2 3", "1 2 3 x", "1 2 3 4 5"] {
            let line = format!("# {said} {:016x}\n", sum(said.as_bytes()));
            assert_eq!(Extension::read(&line), None, "{said:?}");
        }
    }

    proptest! {
        /// Any set of bytes may be new to a reader while the kernel writes a line.
        #[test]
        fn a_line_of_which_a_part_is_new_counts_as_none(
            number in 1_u64..5,
            is_new in proptest::collection::vec(any::<bool>(), 128),
        ) {
            let (before, after) = (extension(number - 1).line(), extension(number).line());
            let mixed = before.bytes().zip(after.bytes()).zip(is_new.iter().cycle());
            let mixed: Vec<u8> = mixed.map(|((old, new), is_new)| if *is_new { new } else { old }).collect();
            let mixed = String::from_utf8(mixed).expect("it is text");
            prop_assert_eq!(Extension::read(&mixed).is_some(), mixed == before || mixed == after);
        }
    }
}
