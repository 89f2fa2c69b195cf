#!/bin/sh
# Called by cargo in place of rustc (RUSTC_WRAPPER; the first argument is rustc).
#
# Adds coverage, by which libFuzzer is led, to what the targets are made of: our crates and those that
# parse what comes from outside. Not to build scripts and macros, which are for the host and have no
# `--target`, and not to the kernels: their branches say nothing of files and programs, and they would
# take most of the build's time.
#
# Adds AddressSanitizer to our crates with `unsafe` code, to the one that calls the kernels, into
# which their bodies are inlined, and to the targets, which link its library: all memory of the process
# is then allocated by it. In safe code it has nothing to find, and the build takes longer.
sanitizer=
case " $* " in
*" --target "*) ;;
*) exec "$@" ;;
esac
case " $* " in
*" --crate-name thane_kernels "*) exec "$@" -Zsanitizer=address ;;
*" --crate-name thane_mil "* | *" --crate-name thane_cpu "* | *fuzz_targets/*) sanitizer=-Zsanitizer=address ;;
esac
case " $* " in
*" --crate-name thane_"* | *fuzz_targets/* | *" --crate-name minijinja"* | *" --crate-name tokenizers "* | \
    *" --crate-name parquet "* | *" --crate-name ureq"* | *" --crate-name prost "* | *" --crate-name serde_json "*)
    exec "$@" $sanitizer -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
*) exec "$@" ;;
esac
