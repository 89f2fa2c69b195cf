//! The caches of this machine.

use std::sync::OnceLock;

/// Bytes of a core's second cache; 1 MiB where the machine does not say.
pub fn second_len() -> usize {
    const UNKNOWN: usize = 1 << 20;
    static LEN: OnceLock<usize> = OnceLock::new();
    *LEN.get_or_init(|| {
        said()
            .filter(|len| (1 << 18..=1 << 24).contains(len))
            .unwrap_or(UNKNOWN)
    })
}

#[cfg(target_arch = "x86_64")]
fn said() -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // AMD has the leaf of Intel's form elsewhere.
    let leaf = if __cpuid(0x8000_0000).eax >= 0x8000_001d
        && __cpuid(0).ecx == u32::from_le_bytes(*b"cAMD")
    {
        0x8000_001d
    } else {
        4
    };
    if leaf == 4 && __cpuid(0).eax < 4 {
        return None;
    }
    (0..16)
        .map(|i| __cpuid_count(leaf, i))
        .take_while(|cache| cache.eax & 0x1f != 0)
        .find_map(|cache| {
            let field =
                |bits: u32, first: u32, n: u32| ((bits >> first) & ((1 << n) - 1)) as usize + 1;
            let (ways, parts, line) = (
                field(cache.ebx, 22, 10),
                field(cache.ebx, 12, 10),
                field(cache.ebx, 0, 12),
            );
            ((cache.eax >> 5) & 7 == 2).then(|| ways * parts * line * (cache.ecx as usize + 1))
        })
}

#[cfg(not(target_arch = "x86_64"))]
fn said() -> Option<usize> {
    None
}
