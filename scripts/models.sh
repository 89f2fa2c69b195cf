#!/usr/bin/env bash
# Fetch the real models that tests need into a folder: bash scripts/models.sh [FOLDER]   (default: target/models)
#
# They come the way users get them, by `thane pull`, which checks their sha256. THANE is the program
# (default: a release build). Prints the folder at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-target/models}
mkdir -p "$folder"
if [ -z "${THANE:-}" ]; then
    cargo build --quiet --release -p thane-cli
    THANE=${CARGO_TARGET_DIR:-target}/release/thane
fi
for name in smollm2-135m gemma3-270m minilm; do
    path=$("$THANE" pull "$name" 2> >(cat >&2))
    ln -sfn "$path" "$folder/$(basename "$path")"
done
# A real audio model in fp32 (0.3 MB of a wheel): quiet inputs reach a logarithm of small powers.
if [ ! -d "$folder/nmp.mlpackage" ]; then
    wheel=$(mktemp -d)
    python3 -m pip download --quiet --no-deps --dest "$wheel" basic-pitch==0.4.0 >&2
    python3 -m zipfile -e "$wheel"/basic_pitch-*.whl "$wheel"
    cp -r "$wheel/basic_pitch/saved_models/icassp_2022/nmp.mlpackage" "$folder/"
    rm -rf "$wheel"
fi
cd "$folder" && pwd
