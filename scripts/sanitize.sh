#!/usr/bin/env bash
# Run the tests of kernels, which have nearly all of the unsafe code, under a sanitizer: bash scripts/sanitize.sh
# [address|thread] [build]
#
# Sanitizers are not stable: RUSTC_BOOTSTRAP=1 lets this toolchain use them. The standard library is as it comes, without
# checks of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizer=${1:-address}
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/sanitize-$sanitizer
export RUSTC_BOOTSTRAP=1
if [ "$sanitizer" = thread ]; then
    # The standard library was built without the sanitizer, which for this one is another ABI.
    allowed="-Cunsafe-allow-abi-mismatch=sanitizer"
    # So what its channels and scopes of threads wait for is not seen: those of the harness, and of one test.
    suppressions=$(mktemp)
    trap 'rm -f "$suppressions"' EXIT
    printf 'race:%s\n' std::sync::mpmc "Option<test::run_test" > "$suppressions"
    export TSAN_OPTIONS="suppressions=$suppressions"
    unseen=(-- --skip concurrent_callers_both_finish)
    # The sanitizer allocates by itself.
    tests=(--test it --test blocks)
fi
export RUSTFLAGS="-Zsanitizer=$sanitizer ${allowed:-}"
# Optimized further the build takes longer than what it saves.
cargo test --quiet -p thane-kernels "${tests[@]-"--tests"}" --target "$host" \
    --config 'profile.dev.package.thane-kernels.opt-level = 1' \
    --config 'profile.dev.package.thane-kernels.debug-assertions = true' \
    --config 'profile.dev.package.thane-kernels.overflow-checks = true' ${unseen[@]+"${unseen[@]}"}
