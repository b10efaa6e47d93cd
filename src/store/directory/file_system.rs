//! What the file system that a folder is on means for locks in it.

use crate::host::mountinfo::Mount;

/// File systems that only one machine sees. Hosts share one only if all of them run on that machine.
const LOCAL: [&str; 13] =
    ["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "vfat", "exfat", "squashfs"];

/// A short description for the administrator.
pub(super) fn describe(mount: &Mount) -> String {
    format!("{} from {} on {}", mount.kind, mount.source, mount.place)
}

/// Whether only this machine sees the file system.
pub(super) fn is_local(mount: &Mount) -> bool {
    LOCAL.contains(&mount.kind.as_str())
}

/// Warnings that the administrator should read before locks are kept on this file system.
pub(super) fn warnings(mount: &Mount) -> Vec<String> {
    let kind = mount.kind.as_str();
    let mut warnings = Vec::new();
    if is_local(mount) {
        warnings.push(format!(
            "{kind} is local to this host: the locks hold only between hosts that mount this same file system, and a \
             host that has a folder of its own here runs the services beside them"
        ));
    } else if kind == "nfs" || kind == "nfs4" {
        warn_of_nfs(mount, &mut warnings);
    } else if kind == "cifs" || kind == "smb3" {
        if !has(mount, "cache=none") || !has(mount, "actimeo=0") {
            warnings.push("hosts see each other's writes late: mount with cache=none,actimeo=0".to_owned());
        }
        warnings.push("locks over SMB have not been tried by us".to_owned());
    }
    warnings
}

fn warn_of_nfs(mount: &Mount, warnings: &mut Vec<String>) {
    let uncached = has(mount, "noac") || (has(mount, "acregmax=0") && has(mount, "acdirmax=0"));
    if !uncached || !has(mount, "lookupcache=none") {
        warnings.push(
            "hosts see each other's writes late: mount with lookupcache=none,actimeo=0, or noac with the former"
                .to_owned(),
        );
    }
    let version = mount.options.split(',').find_map(|option| option.strip_prefix("vers="));
    if version.is_none_or(|version| version.starts_with('2') || version.starts_with('3') || version == "4.0") {
        warnings.push("NFS before 4.1 repeats calls that it got no answer for: prefer vers=4.1 or newer".to_owned());
    }
    warnings.push(
        "the export must be \"sync\", which only the server knows: with \"async\" a crash of the server takes back locks \
         that were granted. Locks over NFS have not been tried by us"
            .to_owned(),
    );
}

fn has(mount: &Mount, option: &str) -> bool {
    mount.options.split(',').any(|given| given == option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str, source: &str, options: &str) -> Mount {
        let [number, root, place] = ["0:40", "/", "/srv/pu tex"].map(str::to_owned);
        Mount { number, root, place, kind: kind.to_owned(), source: source.to_owned(), options: options.to_owned() }
    }

    #[test]
    fn local_file_systems_and_caches_are_warned_of() {
        assert!(warnings(&mount("tmpfs", "tmpfs", "rw,size=1k")).join("\n").contains("tmpfs is local to this host"));
        let nfs = mount("nfs4", "nas:/locks", "rw,noatime,rw,vers=4.2,acregmax=0,acdirmax=0");
        assert_eq!(describe(&nfs), "nfs4 from nas:/locks on /srv/pu tex");
        let nfs = warnings(&nfs).join("\n");
        assert!(nfs.contains("lookupcache=none") && nfs.contains("\"sync\"") && !nfs.contains("4.1"), "{nfs}");
        let smb = warnings(&mount("cifs", "//nas/locks", "rw,vers=3.1.1,cache=none,actimeo=0")).join("\n");
        assert!(smb.contains("SMB") && !smb.contains("cache=none"), "{smb}");
    }
}
