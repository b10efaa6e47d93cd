//! The configuration: fragments (serde, everything optional), merged with the defaults, validated. The rest of the
//! program gets [`Settings`], the [`Diagnostic`]s and the [`Texts`] that the settings were made of.
//!
//! These files are read: `/etc/putex/putexd.toml`, and `*.toml` in `/etc/putex.d`, `/run/putex.d` and
//! `/usr/lib/putex.d`. The rules are those of systemd's own files: of two files with one name, only that in the earlier
//! directory counts, and an empty file or a symlink to `/dev/null` masks the service. Dot files and files with other
//! endings are ignored.

mod address;
mod agreement;
mod capacity;
mod contains;
mod diagnostic;
mod fragment;
mod health;
mod host_file;
mod listen;
mod load;
mod service;
mod settings;
mod similar;
mod store;
mod timings;

pub use contains::CONTAINS_LIMIT;
pub use diagnostic::{Diagnostic, Place, Severity};
pub use listen::exposure;
pub use load::{Loaded, SERVICE_DIRECTORIES, Texts, lacks_store, load, load_as, load_keeping, load_unanswered};
pub use service::BOUND_UNITS_LIMIT;
pub use settings::{FenceSettings, HealthSettings, Probe, ServiceSettings, Settings, StopProof, WatchdogSettings};
pub use similar::similar;
