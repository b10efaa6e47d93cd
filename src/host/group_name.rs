//! Which control group systemd gives to a unit, from its name alone.

/// The control group of a slice, as PID 1 names it: `/a.slice/a-b.slice` for `a-b.slice`, which is in `a.slice`. Empty
/// for `-.slice`, which is the root, and for what is no slice.
pub fn slice_path(slice: &str) -> String {
    let Some(stem) = slice
        .strip_suffix(".slice")
        .filter(|stem| *stem != "-" && !stem.is_empty())
    else {
        return String::new();
    };
    let ends = stem
        .match_indices('-')
        .map(|(at, _)| at)
        .chain([stem.len()]);
    let name = |end| escape(&format!("{}.slice", &stem[..end]));
    ends.map(|end| "/".to_owned() + &name(end)).collect()
}

/// The name of the control group of a unit. Names that could be taken for the kernel's own files get a `_` in front, as
/// in systemd's cg_escape().
pub fn escape(name: &str) -> String {
    const CONTROLLERS: [&str; 13] = [
        "cpu",
        "cpuacct",
        "cpuset",
        "io",
        "blkio",
        "memory",
        "devices",
        "pids",
        "bpf-firewall",
        "bpf-devices",
        "bpf-foreign",
        "bpf-socket-bind",
        "bpf-restrict-network-interfaces",
    ];
    let stem = name.rsplit_once('.').map_or("", |(stem, _)| stem);
    let taken = name.starts_with(['_', '.'])
        || name.starts_with("cgroup.")
        || matches!(name, "notify_on_release" | "release_agent" | "tasks")
        || CONTROLLERS.contains(&stem);
    if taken {
        format!("_{name}")
    } else {
        name.to_owned()
    }
}

/// The unit whose control group has this name: the reverse of [`escape`].
pub fn unescape(name: &str) -> &str {
    name.strip_prefix('_').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_nested() {
        assert_eq!(slice_path("-.slice"), "");
        assert_eq!(slice_path("system.slice"), "/system.slice");
        assert_eq!(
            slice_path("system-db.slice"),
            "/system.slice/system-db.slice"
        );
        assert_eq!(slice_path("a-b-c.slice"), "/a.slice/a-b.slice/a-b-c.slice");
    }

    #[test]
    fn names_of_kernel_files_are_escaped() {
        assert_eq!(escape("memory.service"), "_memory.service");
        assert_eq!(escape("cgroup.service"), "_cgroup.service");
        assert_eq!(escape("_x.service"), "__x.service");
        assert_eq!(escape("memory.x.service"), "memory.x.service");
        assert_eq!(escape("database.service"), "database.service");
    }
}
