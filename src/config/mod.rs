//! The configuration: files, read by tables of [keys](crate::keys), merged with the defaults, validated. The rest of the
//! program gets [`Settings`], the [`Diagnostic`]s and the [`Texts`] that the settings were made of.
//!
//! These files are read: `/etc/putex/putexd.toml`, and `*.toml` in `/etc/putex.d`, `/run/putex.d` and
//! `/usr/lib/putex.d`. The rules are those of systemd's own files: of two files with one name, only that in the earlier
//! directory counts, and an empty file or a symlink to `/dev/null` masks the service. Dot files and files with other
//! endings are ignored.

mod health;
mod host_file;
mod listen;
mod load;
mod service;
mod settings;
mod timings;
mod units;

pub use crate::keys::{Diagnostic, Place, Severity, similar};
pub use host_file::Settings;
pub use listen::exposure;
pub use load::{Loaded, SERVICE_DIRECTORIES, Texts, lacks_store, load, load_as, load_keeping, load_unanswered};
pub use service::ServiceSettings;
pub use settings::{FenceSettings, HealthSettings, Mode, Probe, SourceFile, StopProof, WatchdogSettings};
pub use units::{BOUND_UNITS_LIMIT, CONTAINS_LIMIT};
