//! The heap of the process.

/// Gives memory that was freed back to the system. glibc keeps a heap for each of several threads,
/// and gives back only what is free at its end: one small block behind a gigabyte keeps it all.
/// Takes milliseconds for a gigabyte, in which others wait who allocate from the same heap.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: malloc_trim(3) may be called at any time from any thread (MT-Safe), has no
        // preconditions, and touches only memory that is free.
        unsafe { malloc_trim(0) };
    }
}
