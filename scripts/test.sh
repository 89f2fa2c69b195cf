#!/usr/bin/env bash
# Run every check: bash scripts/test.sh
#
# Needs a Rust toolchain with clippy and rustfmt, and pip with network for the real models and the Python oracles. What
# cannot be had is skipped, and the last lines say what was skipped and why. THANE_TEST_FUZZ_SECONDS=0 leaves fuzzing out;
# behind THANE_TEST_SECONDS, 1500, what is dear and last is skipped too.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
skipped=()
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# Everything is built once here.
export CARGO_INCREMENTAL=0
# coremltools draws a progress bar for each of thousands of packages.
export TQDM_DISABLE=1
# Sets `cpu` to the processor seconds of all children so far: what a step costs on a busy machine.
cpu_seconds() {
    times >"$logs/times" # not in a subshell, which has no children
    cpu=$(awk 'NR == 2 { split($1, u, /[ms]/); split($2, s, /[ms]/); printf "%d", u[1] * 60 + u[2] + s[1] * 60 + s[2] }' "$logs/times")
}
step() { # name, command..
    local name=$1 start=$SECONDS cpu before log=$logs/${1//\//-}
    cpu_seconds
    before=$cpu
    shift
    echo "== $name"
    if "$@" 2>&1 | tee "$log"; then
        cpu_seconds
        echo "== $name: ok, $((SECONDS - start)) s, $((cpu - before)) processor seconds"
    else
        echo "== $name: FAILED, $((SECONDS - start)) s"
        failed+=("$name")
    fi
}
# On a slow machine what is dear and comes last gives way, so that the whole ends within 25 minutes.
most=${THANE_TEST_SECONDS:-1500}
has_time() { # seconds that a step and all behind it take
    ((SECONDS + $1 <= most))
}
skip() { # name, reason
    echo "== $1: skipped: $2"
    skipped+=("$1: $2")
}

convert_encoders() { # folder
    local model
    for model in tests/models/tiny-embed/*/modules.json; do
        model=$(dirname "$model")
        # Two poolings side by side are refused, and tested as such.
        [[ $model == */bert-weighted ]] && continue
        "$thane" convert --quiet --force --task embed --buckets 24,48 "$model" -o "$1/$(basename "$model").mlpackage" || return
    done
    "$thane" convert --quiet --force --task embed --chunks --buckets 24 tests/models/tiny-embed/qwen3-pplx -o "$1/chunks.mlpackage"
}

# The examples of the library compute what the command does.
examples_of_runtime() {
    local examples=${thane%/thane}/examples models=tests/models
    diff <("$thane" run --quiet $models/tiny-chat "Hello there") \
        <("$examples/generate" $models/tiny-chat "Hello there") || return
    diff <("$thane" embed --quiet --similarity $models/tiny-embed/bert-mean "a cat" "a kitten") \
        <("$examples/embed" $models/tiny-embed/bert-mean "a cat" "a kitten")
}

convert_decoders() { # folder
    local model
    for model in tests/models/tiny/*/ tests/models/tiny-gguf/*.gguf; do
        "$thane" convert --quiet --force --form engine --context 64 --block 8 "$model" \
            -o "$1/engine-$(basename "$model").mlpackage" || return
    done
}

venv=target/oracle-venv
# Fetched while the processor is at work; what fails here is tried again, and said, below.
{ mkdir -p target && { [ -x "$venv/bin/python" ] || python3 -m venv "$venv"; } &&
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/oracle/requirements.txt; } >/dev/null 2>&1 &
oracles=$!
bash scripts/neon.sh prepare >"$logs/neon-prepare" 2>"$logs/neon-fetch" &
neon=$!

step format cargo fmt --all --check
# Fuzzing, which comes last, would fail for it.
step "lock file of fuzzing" cargo fetch --quiet --locked --manifest-path fuzz/Cargo.toml
step clippy cargo clippy --quiet --workspace --all-targets -- -D warnings
step docs env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps

# Without the module that scores labeled data, as pages in a browser use it. A folder of its own keeps what is built for
# this machine.
if rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown ||
    rustup target add wasm32-unknown-unknown >/dev/null 2>&1; then
    step "audit for WebAssembly" cargo check --quiet -p thane-audit --no-default-features \
        --target wasm32-unknown-unknown --target-dir target/wasm
else
    skip "audit for WebAssembly" "rustup could not add the target wasm32-unknown-unknown"
fi

# The profile of the tests, so that nothing is built twice; kernels and the CPU backend are optimized in it too.
thane=${CARGO_TARGET_DIR:-$PWD/target}/debug/thane
if models=$(PROFILE=dev bash scripts/models.sh); then
    export THANE_MODELS=$models
else
    skip "real models" "thane pull could not fetch them; the reason stands above"
fi
step tests cargo test --quiet --workspace --no-fail-fast

step "examples of the runtime" examples_of_runtime

seconds=${THANE_TEST_FUZZ_SECONDS:-4}
neon_skipped=
wait "$neon" || neon_skipped=$(tail -n 1 "$logs/neon-prepare")
# While the oracles, which are Python on one core, are at work. What failed shows where it is done anew below.
builds() {
    [ "$seconds" -le 0 ] || bash scripts/fuzz.sh build >"$logs/fuzz-build" 2>&1
    [ -n "$neon_skipped" ] || bash scripts/neon.sh build >"$logs/neon-build" 2>&1
}
builds &

wait "$oracles" || true
if [ -x "$venv/bin/python" ] || python3 -m venv "$venv"; then
    if "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/oracle/requirements.txt; then
        step "oracle: gguf" "$venv/bin/python" crates/blocks/tests/make_blocks.py --check
        step "oracle: the engine's sums" "$venv/bin/python" tests/oracle/make_ane.py --check
        step "oracle: formats of embeddings" "$venv/bin/python" tests/oracle/make_embed.py --check
        step "oracle: coremltools" "$venv/bin/python" tests/oracle/make_ops.py --check
        step "oracle: symbolic types" "$venv/bin/python" tests/oracle/make_types.py --check
        packages=target/op-packages
        step "build of thane" cargo build --quiet -p thane-cli
        step "oracle: optimize" "$venv/bin/python" tests/oracle/check_optimize.py "$thane" target/optimized-packages
        for from in tests/ops tests/packages target/optimized-packages; do
            # Built with the tests; by itself it would be built anew, with other features of what it depends on.
            step "packages of $from" "${thane%/thane}/examples/write_packages" "$from" "$packages"
        done
        step "packages of embedding models" convert_encoders "$packages"
        step "packages of decoders for the engine" convert_decoders "$packages"
        step "oracle: packages" "$venv/bin/python" tests/oracle/check_packages.py "$packages"
        step "oracle: predict" "$venv/bin/python" tests/oracle/check_predict.py "$thane"
        step "oracle: SARIF" "$venv/bin/python" tests/oracle/check_sarif.py "$thane"
        step "oracle: opset" "$venv/bin/python" tests/oracle/make_opset.py --check
    else
        skip oracles "pip could not install tests/oracle/requirements.txt"
    fi
else
    skip oracles "python3 -m venv does not work here"
fi

echo "== waiting for builds beside"
wait
[ -n "$neon_skipped" ] || has_time 250 || neon_skipped="$SECONDS s of $most are over (THANE_TEST_SECONDS)"
if [ -z "$neon_skipped" ]; then
    step "kernels on NEON, emulated" bash scripts/neon.sh
else
    skip "kernels on NEON, emulated" "$neon_skipped"
fi
# Its build takes minutes of two cores; bash scripts/sanitize.sh [address|thread] does it by hand.
if [ -n "${THANE_TEST_SANITIZER:-}" ]; then
    step "kernels under the $THANE_TEST_SANITIZER sanitizer" bash scripts/sanitize.sh "$THANE_TEST_SANITIZER"
else
    skip "kernels under a sanitizer" "THANE_TEST_SANITIZER names none (address or thread)"
fi
step "malformed inputs" python3 scripts/attack.py "$thane" --count 600
step "work that is stopped" python3 scripts/attack.py "$thane" --kills 28
step "audit of published figures" "$thane" audit --self-check
step "time of audits" python3 scripts/audit_time.py "$thane" 1
if browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome); then
    step "page of an audit" python3 tests/oracle/check_page.py "$thane" "$browser"
else
    skip "page of an audit" "no Chromium here (apt-get install chromium)"
fi

step "tables of measurements" python3 scripts/measurements.py --check
step "transcripts of the documents" python3 scripts/transcripts.py --check "$thane"
if [ -n "${THANE_MODELS:-}" ]; then
    step "memory of run" env THANE="$thane" bash scripts/memory.sh "$THANE_MODELS"
    step "memory of convert" python3 scripts/convert_memory.py "$thane" "$THANE_MODELS"/*.gguf
fi

if ! has_time 80; then
    skip fuzzing "$SECONDS s of $most are over (THANE_TEST_SECONDS)"
elif [ "$seconds" -gt 0 ]; then
    step fuzzing bash scripts/fuzz.sh "$seconds"
else
    skip fuzzing "THANE_TEST_FUZZ_SECONDS is 0"
fi

for what in "${skipped[@]}"; do echo "skipped: $what"; done
if [ ${#failed[@]} -gt 0 ]; then
    # Again at the end, where a reader of a long output looks first.
    for what in "${failed[@]}"; do
        echo "failed: $what"
        grep -E '^(failures:|---- |test .* FAILED|error|thread .* panicked)|assertion|panicked' "$logs/${what//\//-}" | head -40
        tail -40 "$logs/${what//\//-}"
    done
    exit 1
fi
echo "all checks passed in $SECONDS s"
