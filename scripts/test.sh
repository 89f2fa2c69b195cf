#!/usr/bin/env bash
# Run every check: bash scripts/test.sh
#
# Needs a Rust toolchain with clippy and rustfmt, and pip with network for the real models and the
# Python oracles. What cannot be had is skipped, and the last lines say what was skipped and why.
# THANE_TEST_FUZZ_SECONDS=0 leaves fuzzing out.
#
# Two lanes run side by side. The first builds the tests, runs them, and then what is mostly Python
# on one core. The second takes what the first leaves of the processor: WebAssembly, NEON, clippy,
# docs, fuzzing. Its output is shown at the end.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
skipped=()
logs=$(mktemp -d)
trap 'rm -rf "$logs"; kill $(jobs -p) 2>/dev/null' EXIT
# Everything is built once here, and panics name their lines without debug information.
export CARGO_INCREMENTAL=0
export CARGO_PROFILE_DEV_DEBUG=0
# coremltools draws a progress bar for each of thousands of packages.
export TQDM_DISABLE=1
# What `time` prints: seconds on the clock, and processor seconds of the program and the system.
TIMEFORMAT='%0R %0U %0S'

step() { # name, command..
    local log=$logs/${1//\//-} status=0
    echo "== $1"
    { time "${@:2}" 2>&1 | tee "$log"; } 2>"$log.time" || status=$?
    ended "$1" "$status"
}
# As step, where there is time left: the whole is to end within 1,500 seconds on two cores.
late() { # name, command..
    if ((SECONDS > 1290)); then
        skip "$1" "$SECONDS s are over, and the whole is to end within 1500"
    else
        step "$@"
    fi
}
ended() { # name, status
    local wall user system
    read -r wall user system < <(tail -n 1 "$logs/${1//\//-}.time")
    if [ "$2" = 0 ]; then
        echo "== $1: ok, $wall s, $((user + system)) processor seconds"
    else
        echo "== $1: FAILED, $wall s"
        failed+=("$1")
    fi
}
# A step of the second lane.
beside() { # name, command..
    local log=$logs/${1//\//-}
    { time "${@:2}" >"$log" 2>&1; } 2>"$log.time"
    echo $? >"$log.status"
}
# Shows a step of the second lane, which has ended.
show() { # name
    local log=$logs/${1//\//-}
    [ -e "$log.status" ] || return 0
    echo "== $1"
    cat "$log"
    ended "$1" "$(cat "$log.status")"
}
skip() { # name, reason
    echo "== $1: skipped: $2"
    skipped+=("$1: $2")
}
# Whether pip fetches a small package: a list of requirements that fails then contradicts itself or
# names what does not exist, which is a fault of the list, no lack of network.
pip_has_network() { # pip
    "$1" download --quiet --no-deps --no-cache-dir --disable-pip-version-check --dest "$logs" iniconfig >/dev/null 2>&1
}
no_oracles() { # name, pip, list
    if pip_has_network "$2"; then
        echo "== $1: FAILED: pip has network and cannot install $3" | tee "$logs/${1//\//-}"
        failed+=("$1")
    else
        skip "$1" "pip could not install $3"
    fi
}

convert_encoders() { # folder
    local model
    for model in tests/models/tiny-embed/*/modules.json; do
        model=$(dirname "$model")
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
    for model in tests/models/tiny/*/ tests/models/tiny-gguf/{llama,gemma3}-*.gguf; do
        case $(basename "$model") in
        # This form cannot have them yet.
        gemma4* | mixtral | olmoe* | *_moe*) continue ;;
        # Others have the same ops.
        llama2c* | compressed* | gptq* | awq | fp8 | *-plain | *-full | *-old) continue ;;
        esac
        "$thane" convert --quiet --force --form ane --context 64 --block 8 "$model" \
            -o "$1/engine-$(basename "$model").mlpackage" || return
    done
    # Every mode of a form with one cache size, and of one with several.
    for model in gemma4 qwen3 gpt2 lfm2 qwen3_5; do
        "$thane" convert --quiet --force --form ane --context 64 --block 8 --contexts 24 --verify 3 --kv explicit \
            --lanes 4 --lookup host --split 2 "tests/models/tiny/$model" -o "$1/chunks-$model" || return
    done
    "$thane" convert --quiet --force --form ane --context 64 --block 8 --contexts 24 --verify 3 --split 0-1,1-2,head \
        tests/models/tiny/llama-bias -o "$1/chunks-state" || return
    for model in llama-bias qwen2 qwen3 gemma3; do
        "$thane" convert --quiet --force --form anemll --context 64 --block 8 --split 2 "tests/models/tiny/$model" \
            -o "$1/chunks-anemll-$model" || return
    done
}

venv=target/oracle-venv
# Fetched while the processor is at work; what fails here is tried again, and said, below.
# Python compiles the modules that are imported; pip would compile all.
{ mkdir -p target && { [ -x "$venv/bin/python" ] || python3 -m venv "$venv"; } &&
    "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check -r tests/oracle/requirements.txt; } >/dev/null 2>&1 &
oracles=$!
# Plugins that need other versions.
llama=target/llama-index-venv
{ mkdir -p target && { [ -x "$llama/bin/python" ] || python3 -m venv "$llama"; } &&
    "$llama/bin/pip" install --quiet --no-compile --disable-pip-version-check -r tests/oracle/llama-index-requirements.txt; } >/dev/null 2>&1 &
llama_index=$!
# The auditor as pages and Node have it, in the profile of the tests.
web=target/web-dev
audit_for_web() {
    bash scripts/web.sh --dev "$web"
}
wasm_target() {
    rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown ||
        rustup target add wasm32-unknown-unknown >/dev/null 2>&1
}
seconds=${THANE_TEST_FUZZ_SECONDS:-10}
second_lane() {
    renice -n 19 "$BASHPID" >/dev/null
    if wasm_target; then
        beside "audit for WebAssembly" audit_for_web
    else
        echo "rustup could not add the target wasm32-unknown-unknown" >"$logs/no-wasm"
    fi
    if bash scripts/neon.sh prepare >"$logs/no-neon" 2>"$logs/neon-fetch"; then
        rm "$logs/no-neon"
        beside "kernels on NEON, emulated" bash scripts/neon.sh
    fi
    # These share a folder with the tests, for which cargo has then built all.
    wait_for "$logs/built"
    if [ -n "$recorded" ]; then
        beside "clippy and docs" python3 scripts/lint.py "$calls"
    else
        beside clippy cargo clippy --quiet --workspace --all-targets -- -D warnings
        beside docs env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps
    fi
    if [ "$seconds" -le 0 ]; then
        echo "THANE_TEST_FUZZ_SECONDS is 0" >"$logs/no-fuzzing"
    elif ((SECONDS > 900)); then
        echo "$SECONDS s are over, and the whole is to end within 1500" >"$logs/no-fuzzing"
    else
        beside fuzzing bash scripts/fuzz.sh "$seconds"
    fi
}
# Where nothing is built, the calls of the compiler are written down, for clippy to make again.
calls=$logs/calls
recorded=
[ -d "${CARGO_TARGET_DIR:-target}/debug" ] || { recorded=yes && mkdir "$calls"; }
build() { # command..
    if [ -n "$recorded" ]; then
        THANE_CALLS=$calls RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/record.sh "$@"
    else
        "$@"
    fi
}
wait_for() { # file
    until [ -e "$1" ]; do sleep 1; done
}
second_lane &
second_lane=$!

step format cargo fmt --all --check

# The profile of the tests, so that nothing is built twice; kernels and the CPU backend are optimized
# in it too.
step "build of the tests" build cargo test --quiet --workspace --no-run
thane=${CARGO_TARGET_DIR:-$PWD/target}/debug/thane
if models=$(THANE=$thane bash scripts/models.sh); then
    export THANE_MODELS=$models
else
    skip "real models" "thane pull could not fetch them; the reason stands above"
fi
# Cargo needs its folder no more once the first test prints.
{ until [ -s "$logs/tests" ]; do sleep 1; done && touch "$logs/built"; } &
step tests build cargo test --quiet --workspace --no-fail-fast
touch "$logs/built"

late "examples of the runtime" examples_of_runtime

wait "$oracles" || true
if [ -x "$venv/bin/python" ] || python3 -m venv "$venv"; then
    if "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check -r tests/oracle/requirements.txt; then
        late "oracle: gguf" "$venv/bin/python" crates/blocks/tests/make_blocks.py --check
        late "oracle: the engine's sums" "$venv/bin/python" tests/oracle/make_ane.py --check
        late "oracle: formats of embeddings" "$venv/bin/python" tests/oracle/make_embed.py --check
        late "oracle: coremltools" "$venv/bin/python" tests/oracle/make_ops.py --check
        late "oracle: patterns of tokenizers" "$venv/bin/python" tests/oracle/make_regexes.py --check
        late "oracle: symbolic types" "$venv/bin/python" tests/oracle/make_types.py --check
        packages=target/op-packages
        late "oracle: optimize" "$venv/bin/python" tests/oracle/check_optimize.py "$thane" target/optimized-packages
        for from in tests/ops tests/packages target/optimized-packages; do
            # Built with the tests; by itself it would be built anew, with other features of what it depends on.
            late "packages of $from" "${thane%/thane}/examples/write_packages" "$from" "$packages"
        done
        late "packages of embedding models" convert_encoders "$packages"
        late "packages of decoders for the engine" convert_decoders "$packages"
        late "oracle: packages" "$venv/bin/python" tests/oracle/check_packages.py "$packages"
        late "oracle: predict" "$venv/bin/python" tests/oracle/check_predict.py "$thane"
        late "oracle: serve" "$venv/bin/python" tests/oracle/check_serve.py "$thane"
        if wait "$llama_index"; then
            late "oracle: llama-index" "$llama/bin/python" tests/oracle/check_llama_index.py "$thane"
        else
            no_oracles "oracle: llama-index" "$llama/bin/pip" tests/oracle/llama-index-requirements.txt
        fi
        late "oracle: batch" "$venv/bin/python" tests/oracle/check_batch.py "$thane"
        late "oracle: Parquet" "$venv/bin/python" tests/oracle/check_parquet.py "$thane"
        late "load on serve" "$venv/bin/python" tests/oracle/load_serve.py "$thane" --requests 400 --connections 16
        late "oracle: structured" "$venv/bin/python" tests/oracle/check_structured.py "$thane"
        late "python module" "$venv/bin/python" crates/python/tests/run.py "${thane%/thane}/deps/lib_thane.so" "$thane"
        # Ray and Spark take half a gigabyte and two minutes each: python3 crates/python/tests/engines.py by hand.
        late "python engines" "$venv/bin/python" crates/python/tests/engines.py "${thane%/thane}/deps/lib_thane.so" daft langchain
        late "action and hook" "$venv/bin/python" tests/oracle/check_ci_files.py "$thane"
        late "release and install script" "$venv/bin/python" tests/oracle/check_install.py "$thane"
        late "oracle: SARIF" "$venv/bin/python" tests/oracle/check_sarif.py "$thane"
        late "oracle: opset" "$venv/bin/python" tests/oracle/make_opset.py --check
    else
        no_oracles oracles "$venv/bin/pip" tests/oracle/requirements.txt
    fi
else
    skip oracles "python3 -m venv does not work here"
fi

# Its build takes minutes of two cores; bash scripts/sanitize.sh [address|thread] does it by hand.
if [ -n "${THANE_TEST_SANITIZER:-}" ]; then
    late "kernels under the $THANE_TEST_SANITIZER sanitizer" bash scripts/sanitize.sh "$THANE_TEST_SANITIZER"
else
    skip "kernels under a sanitizer" "THANE_TEST_SANITIZER names none (address or thread)"
fi
late "malformed inputs" python3 scripts/attack.py "$thane" --count 600
late "work that is stopped" python3 scripts/attack.py "$thane" --kills 28
late "accuracy of predictions" python3 scripts/accuracy.py --check "$thane"
late "time of audits" python3 scripts/audit_time.py "$thane" 1
if browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome); then
    late "page of an audit" python3 tests/oracle/check_page.py "$thane" "$browser"
    # Carries axe-core; what it depends on is for other browsers.
    "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps axe-playwright-python==0.1.8 ||
        skip "axe on pages" "pip could not install axe-playwright-python"
    python=$venv/bin/python
    [ -x "$python" ] || python=python3
    late "page of the server" "$python" tests/oracle/check_serve_page.py "$thane" "$browser"
else
    skip "page of an audit" "no Chromium here (apt-get install chromium)"
    skip "page of the server" "no Chromium here (apt-get install chromium)"
fi
node=$(command -v node)
until [ -e "$logs/no-wasm" ] || [ -e "$logs/audit for WebAssembly.status" ]; do sleep 1; done
if [ -e "$logs/no-wasm" ] || [ "$(cat "$logs/audit for WebAssembly.status")" != 0 ]; then
    skip "audit in a browser" "the auditor was not built for WebAssembly"
elif [ -n "$browser$node" ]; then
    late "audit in a browser" "${python:-python3}" tests/oracle/check_web.py "$thane" "$web" \
        ${browser:+--browser "$browser"} ${node:+--node "$node"}
else
    skip "audit in a browser" "neither Chromium nor Node is here (apt-get install chromium)"
fi

step "size of the source" python3 scripts/size.py
step "tables of measurements" python3 scripts/measurements.py --check
step "table of compressed packages" python3 scripts/compression.py page --check
late "transcripts of the documents" python3 scripts/transcripts.py --check "$thane"
if [ -n "${THANE_MODELS:-}" ]; then
    late "memory of run" env THANE="$thane" bash scripts/memory.sh "$THANE_MODELS"
    late "memory of convert" python3 scripts/convert_memory.py "$thane" "$THANE_MODELS"/*.gguf
fi

echo "== waiting for the second lane"
wait "$second_lane"
for name in "audit for WebAssembly" "kernels on NEON, emulated" clippy docs "clippy and docs" fuzzing; do show "$name"; done
[ ! -e "$logs/no-wasm" ] || skip "audit for WebAssembly" "$(cat "$logs/no-wasm")"
[ ! -e "$logs/no-neon" ] || skip "kernels on NEON, emulated" "$(tail -n 1 "$logs/no-neon")"
[ ! -e "$logs/no-fuzzing" ] || skip fuzzing "$(cat "$logs/no-fuzzing")"

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
