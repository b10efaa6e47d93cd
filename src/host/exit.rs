//! How a command of a unit has ended.

/// The exit status with which systemd ends a process whose program it could not execute, from systemd.exec(5).
pub const EXIT_EXEC: i32 = 203;
/// The exit status with which systemd ends a process that it could not give its user.
pub const EXIT_USER: i32 = 217;
/// The exit status with which systemd ends a process that it could not give its namespaces.
const EXIT_NAMESPACE: i32 = 226;

/// How a command of a unit has ended in the unit's last run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exit {
    /// The code as waitid(2) has it; 1: the command has exited, 2: it was killed, 3: it dumped core, 0: it has not been
    /// run.
    pub code: i32,
    /// The exit status for code 1, else the number of the signal.
    pub status: i32,
}

impl Exit {
    /// Whether the command was run and has exited with 0. Other exit statuses that systemd takes for success do not
    /// count.
    pub fn has_succeeded(self) -> bool {
        self == Self { code: 1, status: 0 }
    }

    /// Whether systemd could not give the process its user, or its namespaces, so that its program was not run; or
    /// whether the program itself has ended as if that were so.
    pub fn is_not_set_up(self) -> bool {
        self.code == 1 && [EXIT_USER, EXIT_NAMESPACE].contains(&self.status)
    }

    /// How the command ended, in words; `None` if it has not been run, or runs.
    pub fn in_words(self) -> Option<String> {
        let status = self.status;
        let why = match (self.code, status) {
            (1, EXIT_EXEC) => ": the program is missing, or its user may not execute it",
            (1, EXIT_USER) => ": this host does not have the user",
            (1, EXIT_NAMESPACE) => ": systemd cannot give it its namespaces",
            _ => "",
        };
        match self.code {
            1 => Some(format!("exit status {status}{why}")),
            2 => Some(format!("killed by signal {status}")),
            3 => Some(format!("dumped core by signal {status}")),
            _ => None,
        }
    }
}
