//! Peak memory of processes, as Linux accounts for it.

/// Peak memory of this process in bytes; `None` where the system does not tell.
pub fn peak_memory() -> Option<u64> {
    peak_memory_of("self")
}

/// Peak memory of another process in bytes, while it runs.
pub fn peak_memory_of(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kb| kb * 1024)
}
