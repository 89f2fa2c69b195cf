#!/bin/sh
# Called by cargo in place of rustc (RUSTC_WRAPPER; the first argument is rustc): adds coverage, by which libFuzzer is led,
# to what the targets are made of: our crates and those that parse what comes from outside. Not to build scripts and
# macros, which are for the host and have no `--target`, and not to the kernels: their branches say nothing of files and
# programs, and they would take most of the build's time.
case " $* " in
*" --crate-name thane_kernels "*) exec "$@" ;;
*" --target "*) ;;
*) exec "$@" ;;
esac
case " $* " in
*" --crate-name thane_"* | *" fuzz_targets/"* | *" --crate-name minijinja"* | *" --crate-name tokenizers "* | \
    *" --crate-name parquet "* | *" --crate-name ureq"* | *" --crate-name prost "* | *" --crate-name serde_json "*)
    exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
*) exec "$@" ;;
esac
