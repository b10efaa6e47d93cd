//! The files that this program consists of: whether others are installed in their place, as by an upgrade.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// What the kernel says behind the path of a file that is not at its place any more.
const GONE: &str = " (deleted)";

/// Whether this program, or a library that it has loaded, is not at its place any more, and another program is there. Each change can
/// end a guard only once: the next guard is made of the files that are there then.
pub fn is_replaced() -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let own = std::env::current_exe().unwrap_or_default();
    // Where the program itself is gone, as in a removal, there is nothing to start in its place.
    is_gone(&maps) && place_of(&own).exists()
}

/// Whether a file that is executed is gone.
fn is_gone(maps: &str) -> bool {
    maps.lines()
        .any(|line| line.contains(" r-xp ") && line.ends_with(GONE))
}

fn place_of(program: &Path) -> PathBuf {
    let path = program.to_string_lossy();
    PathBuf::from(path.strip_suffix(GONE).unwrap_or(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_executed_and_gone_is_found() {
        let maps = |program: &str, library: &str, data: &str| {
            format!(
                "55d8-55f8 r-xp 00008000 fe:01 399        /usr/bin/putex-guard{program}\n\
                 7f01-7f02 r-xp 00001000 fe:01 400      /usr/lib/lib c.so{library}\n\
                 7f03-7f04 r--p 00001000 fe:01 401      /dev/shm/data{data}\n"
            )
        };
        assert!(!is_gone(&maps("", "", GONE)));
        assert!(is_gone(&maps(GONE, "", "")) && is_gone(&maps("", GONE, "")));
        let here = std::env::current_exe().expect("it is there");
        let gone = PathBuf::from(format!("{}{GONE}", here.display()));
        assert_eq!((place_of(&gone), place_of(&here)), (here.clone(), here));
    }
}
