#!/bin/sh
# Called by cargo in place of rustc for our crates (RUSTC_WORKSPACE_WRAPPER; the first argument is
# rustc): adds what cargo-fuzz gives a nightly compiler. RUSTC_BOOTSTRAP lets the stable one take it.
# Build scripts of other crates call this too, to test for features of the compiler; their calls are
# passed on as they are.
#
# Coverage, by which libFuzzer is led; not of the kernels: their branches say nothing of files and
# programs, and they would take most of the build's time.
#
# AddressSanitizer to our crates with `unsafe` code, to the one that calls the kernels, into which
# their bodies are inlined, and to the targets, which link its library: all memory of the process is
# then allocated by it. In safe code it has nothing to find, and the build takes longer.
case " $* " in
*" --crate-name thane_"* | *fuzz_targets/*) ;;
*) exec "$@" ;;
esac
export RUSTC_BOOTSTRAP=1
sanitizer=
case " $* " in
*" --crate-name thane_kernels "*) exec "$@" --cfg fuzzing -Zsanitizer=address ;;
*" --crate-name thane_mil "* | *" --crate-name thane_cpu "* | *fuzz_targets/*) sanitizer=-Zsanitizer=address ;;
esac
exec "$@" --cfg fuzzing $sanitizer -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
