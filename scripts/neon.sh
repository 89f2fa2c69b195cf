#!/usr/bin/env bash
# Run the tests of kernels on NEON, emulated: bash scripts/neon.sh [prepare]
#
# Needs rustup and qemu's user mode; where that is not installed, it is unpacked from Debian's package into target/, which
# takes no rights. `prepare` only sees to these, and where they cannot be had says why and fails.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-musl
folder=${CARGO_TARGET_DIR:-$PWD/target}/neon
unpacked=$folder/qemu/usr/bin/qemu-aarch64-static

prepare() {
    if ! [ -d "$(rustc --print target-libdir --target "$target")" ]; then
        rustup --quiet target add "$target" >&2 || { echo "rustup cannot add the target $target"; return 1; }
    fi
    qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || echo "$unpacked")
    if ! [ -x "$qemu" ]; then
        mkdir -p "$folder/qemu"
        (cd "$folder/qemu" && apt-get --quiet download qemu-user-static && dpkg -x qemu-user-static*.deb . &&
            rm qemu-user-static*.deb) >&2 || { echo "no qemu-aarch64-static here (apt-get install qemu-user-static)"; return 1; }
    fi
}

prepare
[ "${1:-}" != prepare ] || exit 0
export CARGO_TARGET_DIR=$folder
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
# As Apple's first: dot products, but neither products of bf16 and int8 matrices nor SVE.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER="$qemu -cpu neoverse-n1"
# The portable kernels run natively in all other tests.
export THANE_TEST_ISA=neon
exec cargo test --quiet -p thane-kernels --tests --target "$target" \
    --config 'profile.dev.package.thane-kernels.opt-level = 2'
