//! How much memory the host has.

/// Main memory and swap together, in bytes.
#[must_use]
pub fn total() -> u64 {
    let host = rustix::system::sysinfo();
    // The width of these fields differs between architectures.
    let units = u128::from(host.totalram) + u128::from(host.totalswap);
    u64::try_from(units * u128::from(host.mem_unit)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_kernel_tells_in_proc() {
        let text = std::fs::read_to_string("/proc/meminfo").expect("/proc is mounted");
        let of = |name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("it is told");
            line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number")
        };
        assert_eq!(total() >> 20, (of("MemTotal:") + of("SwapTotal:")) >> 10);
    }
}
