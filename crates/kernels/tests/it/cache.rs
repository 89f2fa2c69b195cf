//! The size of the second cache.

#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn as_linux_says() {
    let Ok(said) = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size") else {
        return;
    };
    let n_kib: usize = said.trim().trim_end_matches('K').parse().expect("KiB");
    assert_eq!(thane_kernels::second_len(), n_kib * 1024);
}
