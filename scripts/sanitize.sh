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
# The standard library was built without the sanitizer, which for this one is another ABI.
[ "$sanitizer" != thread ] || allowed="-Cunsafe-allow-abi-mismatch=sanitizer"
export RUSTFLAGS="-Zsanitizer=$sanitizer ${allowed:-}"
# Optimised further the build takes longer than what it saves.
exec cargo test --quiet -p thane-kernels --lib --tests --target "$host" \
    --config 'profile.dev.package.thane-kernels.opt-level = 1'
