//! A disk that all hosts of a cluster reach, as they would a LUN. Two hosts that mount it at once destroy what is on
//! it.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use rustix::fs::{OFlags, major, minor};

use crate::{
    cluster::{Cluster, Host},
    command::{output, run, said},
    environment::utf8,
};

/// The mount point on the hosts.
pub const PLACE: &str = "/srv/lun";

/// A block device for each host, over one image with a file system. The kernel, which the hosts share, takes them for
/// different disks, as the kernels of different machines would.
pub struct Disk {
    devices: Vec<(String, PathBuf)>,
}

impl Disk {
    /// Attaches a loop device for each host. `None`, with a message, if this machine has no loop devices.
    pub fn attach(cluster: &Cluster) -> Option<Self> {
        let image = cluster.shared().join("lun.img");
        fs::write(&image, "").expect("the shared folder takes it");
        run("truncate", &["--size=256M", utf8(&image)]);
        run("mkfs.ext4", &["-q", utf8(&image)]);
        let mut disk = Self {
            devices: Vec::new(),
        };
        for host in &cluster.hosts {
            let attached = output("losetup", &["--find", "--show", utf8(&image)]);
            if !attached.status.success() {
                let missing = format!("there is no disk for the hosts: {}", said(&attached));
                assert!(
                    std::env::var("CI").as_deref() != Ok("true"),
                    "{missing}, and CI=true allows no skipping"
                );
                eprintln!("not tested: {missing}");
                return None;
            }
            let device = PathBuf::from(String::from_utf8_lossy(&attached.stdout).trim());
            let number = fs::metadata(&device).expect("the device is there").rdev();
            disk.devices.push((host.name.clone(), device));
            let node = host.root().join(PLACE.trim_start_matches('/'));
            run(
                "mknod",
                &[
                    utf8(&node),
                    "b",
                    &major(number).to_string(),
                    &minor(number).to_string(),
                ],
            );
        }
        Some(disk)
    }

    /// Whether the host's device is mounted, at any place and in any mount namespace: the kernel refuses an exclusive
    /// open then.
    pub fn is_in_use_by(&self, host: &Host) -> bool {
        let (_, device) = self
            .devices
            .iter()
            .find(|(name, _)| *name == host.name)
            .expect("each host has one");
        let exclusive = OFlags::EXCL.bits().cast_signed();
        match OpenOptions::new()
            .read(true)
            .custom_flags(exclusive)
            .open(device)
        {
            Ok(_) => false,
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => true,
            Err(error) => panic!("{}: {error}", device.display()),
        }
    }
}

/// The kernel detaches a device that is still in use when its last use ends.
impl Drop for Disk {
    fn drop(&mut self) {
        for (_, device) in &self.devices {
            output("losetup", &["--detach", utf8(device)]);
        }
    }
}
