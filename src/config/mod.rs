//! The configuration: files, read by tables of [keys](crate::keys), merged with the defaults, validated. The rest of the
//! program gets [`Settings`] and the [`Diagnostic`]s.
//!
//! These files are read: `/etc/putex/putexd.toml`, and `*.toml` in `/etc/putex.d`, `/run/putex.d` and
//! `/usr/lib/putex.d`. The rules are those of systemd's own files: of two files with one name, only that in the earlier
//! directory counts, and an empty file or a symlink to `/dev/null` masks the service. Dot files and files with other
//! endings are ignored.

mod health;
mod host_file;
mod load;
mod service;
mod service_file;
mod settings;
mod timings;

pub use crate::keys::{Diagnostic, Place, Severity, below};
pub use host_file::{KEPT, Kept, Settings};
pub use load::{
    BrokenFiles, FileText, HOST_FILE, Loaded, SERVICE_DIRECTORIES, load, load_assuming,
    load_keeping, load_unanswered, read_text, why_not_obeyed,
};
pub use service::{BOUND_UNITS_LIMIT, CONTAINS_LIMIT, ServiceSettings};
pub use settings::{
    FenceSettings, HealthSettings, Mode, Probe, SourceFile, StopProof, WatchdogSettings,
};
