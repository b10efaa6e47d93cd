//! Tests on real systemd hosts.
//!
//! Each test boots a few hosts (containers with their own systemd, network and disk), breaks something, and asks the
//! oracle whether its program was ever alive twice at once. `tests/run` prepares the machine. Without root, or without
//! what `tests/system/prepare` makes, the tests are skipped with a message.

mod admission;
mod alarms;
mod balancer;
mod belongings;
mod bound_units;
mod broken_files;
mod bus;
mod campaign;
mod check_users;
mod cluster;
mod command;
#[path = "../support/confinement.rs"]
mod confinement;
mod corpus;
mod daemon_faults;
mod day;
mod disk;
mod docker;
mod elections;
mod elsewhere;
mod environment;
#[path = "../support/examples.rs"]
mod examples;
mod failed_starts;
mod failover;
mod fencing_token;
mod fixture;
mod flood;
mod full_disks;
mod harness;
mod hostile;
mod inside;
mod kept_drop_ins;
mod leases;
mod lockstore;
mod measure;
mod mounts;
mod names;
mod neighbours;
mod net_process;
mod on_hosts;
mod operator;
mod order;
mod package;
mod packages;
mod partition;
mod pauses;
mod postgres;
mod quickstart;
mod reboots;
mod reload;
mod remedies;
mod rights;
mod round;
mod scale;
mod screens;
mod sealed;
mod self_fence;
mod server;
mod share;
mod shipped;
mod store_faults;
mod stores;
mod tries;
mod trips;
mod unit_faults;
mod upgrade;
mod vendor;
mod watch;
mod words;
