//! The configuration: fragments (serde, everything optional), merged with the defaults, validated. Only [`Settings`]
//! and the [`Diagnostic`]s leave this module.
//!
//! Read are `/etc/putex/putexd.toml`, and `*.toml` in `/etc/putex.d`, `/run/putex.d` and `/usr/lib/putex.d`, as systemd
//! reads its own: of two files with one name, that in the earlier directory counts alone, and an empty file or a symlink
//! to `/dev/null` masks the service. Dot files and other endings are passed over.

mod address;
mod capacity;
mod contains;
mod diagnostic;
mod fragment;
mod health;
mod host_file;
mod load;
mod service;
mod settings;
mod store;

pub use contains::CONTAINS_LIMIT;
pub use diagnostic::{Diagnostic, Place, Severity};
pub use load::{Loaded, Texts, load, load_as, load_keeping};
pub use service::BOUND_UNITS_LIMIT;
pub use settings::{FenceSettings, HealthSettings, Probe, ServiceSettings, Settings, StopProof, WatchdogSettings};
