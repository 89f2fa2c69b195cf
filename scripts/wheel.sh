#!/usr/bin/env bash
# Build the wheel of Python, with the program as a script: bash scripts/wheel.sh [OUT]   (default: target/wheels)
#
# Needs maturin 1.16 or later (`pip install maturin`). TARGET names another platform, as rustup does; with ZIG=1 the wheel
# is linked for an old glibc (manylinux_2_28) by ziglang (`pip install ziglang`, `cargo install cargo-zigbuild`).
# PROFILE=dev builds without optimization. Prints the path of the wheel at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-target/wheels}")
profile=${PROFILE:-release}
target=(${TARGET:+--target "$TARGET"})
folder=target/${TARGET:+$TARGET/}${profile/dev/debug}
python=crates/python
suffix=""
build=(build)
if [ -n "${ZIG:-}" ]; then
    build=(zigbuild)
    suffix=.2.28
fi
cargo "${build[@]}" --quiet --profile "$profile" -p thane-cli ${TARGET:+--target "$TARGET$suffix"} >&2
mkdir -p "$python/thane.data/scripts"
trap 'rm -rf "$python/thane.data" "$python"/LICENSE-*' EXIT
cp "$folder/thane" "$python/thane.data/scripts/"
cp LICENSE-MIT LICENSE-APACHE "$python/"
(cd "$python" && "${MATURIN:-maturin}" build --quiet --profile "$profile" "${target[@]}" ${ZIG:+--zig --compatibility manylinux_2_28} \
    --out "$out" >&2)
ls -t "$out"/thane-*.whl | head -n 1
