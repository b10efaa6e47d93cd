//! The guard as far as it decides: its table of leases, which deadline comes next, and the frames by which putexd asks it.

pub mod case;
pub mod frame;
pub mod table;
