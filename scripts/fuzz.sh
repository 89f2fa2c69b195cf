#!/usr/bin/env bash
# Runs each fuzz target but `requests` for SECONDS (default 600) from the seeds in fuzz/seeds, and prints a line for each:
#
#     bash scripts/fuzz.sh [SECONDS] [TARGET..]
#
# A panic, memory used wrongly (AddressSanitizer), an allocation over 1 GiB, more than 2 GiB in all, and 20 s for one
# input are failures; the input is then kept in fuzz/artifacts/TARGET, and
# `target/debug/TARGET fuzz/artifacts/TARGET/FILE` shows it again. New inputs are kept in FUZZ_CORPUS/TARGET where
# FUZZ_CORPUS names a folder.
#
# It needs what the build needs and a C++ compiler (for libFuzzer, a crate), no nightly toolchain and no cargo-fuzz:
# fuzz/rustc.sh gives the flags that cargo-fuzz would give. Of the workspace only our crates are built for it: all else
# is as the tests have it, in the same folder, which is why the whole workspace is named.
set -euo pipefail

cd "$(dirname "$0")/.."
seconds=${1:-600}
shift || true
if [[ ! $seconds =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: bash scripts/fuzz.sh [SECONDS] [TARGET..]" >&2
    exit 2
fi
targets=("$@")
# The target `requests`, which runs a server, is run by name.
[[ ${#targets[@]} -gt 0 ]] || targets=(gguf safetensors mil_text package valid template tokenizer rows hub)

if ! command -v "${CXX:-c++}" >/dev/null; then
    echo "fuzz: no C++ compiler (${CXX:-c++}), which libFuzzer is built with: install one, such as the package g++" >&2
    exit 1
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/thane-fuzz.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
# libFuzzer ends a target where it stands: what it has written goes with the rest.
export TMPDIR=$work
target_dir=${CARGO_TARGET_DIR:-$PWD/target}

start=$SECONDS
features=thane-fuzz/libfuzzer
for target in "${targets[@]}"; do
    bins+=(--bin "$target")
    [[ $target != requests ]] || features+=,thane-fuzz/requests
done
if ! RUSTC_WORKSPACE_WRAPPER=$PWD/fuzz/rustc.sh cargo build --locked --quiet --workspace --target-dir "$target_dir" \
    --config fuzz/profile.toml --no-default-features --features "$features" "${bins[@]}" >"$work/build.log" 2>&1; then
    cat "$work/build.log" >&2
    echo "fuzz: the targets were not built" >&2
    exit 1
fi
echo "fuzz: built in $((SECONDS - start)) s"

# The first inputs: of `package` the packages that coremltools wrote, of `valid` functions of the cases of every op and
# programs of the ops that have no such cases.
seeds() { # target, folder
    local from op
    case $1 in
    package)
        for from in tests/packages/*.mlpackage; do
            local data=$from/Data/com.apple.CoreML
            local model=$data/model.mlmodel weights=$data/weights/weight.bin
            {
                printf '%08x' "$(stat -c %s "$model")" | sed 's/\(..\)\(..\)\(..\)\(..\)/\\x\4\\x\3\\x\2\\x\1/' | xargs -0 printf '%b'
                cat "$model"
                [[ ! -f $weights ]] || cat "$weights"
            } >"$2/$(basename "$from")"
        done
        ;;
    valid)
        for from in tests/ops/*.mil; do
            op=$(basename "$from" .mil)
            awk -v out="$2/$op" '/^    func / { n++ } n == 0 || n > 4 || /^ *\/\// { next }
                /^    func / { print "program(1.3)\n{" >(out "." n) } { print >(out "." n) } /^    } -> / { print "}" >(out "." n) }' "$from"
        done
        cp fuzz/seeds/valid/* "$2"
        ;;
    tokenizer)
        for from in tests/models/*/tokenizer.json tests/models/*/*/tokenizer.json; do
            cp "$from" "$2/$(basename "$(dirname "$from")").json"
        done
        ;;
    *) cp fuzz/seeds/"$1"/* "$2" ;;
    esac
}

failed=0
for target in "${targets[@]}"; do
    corpus=${FUZZ_CORPUS:-$work}/$target
    artifacts=fuzz/artifacts/$target
    mkdir -p "$corpus" "$artifacts"
    seeds "$target" "$corpus"
    options=(-max_total_time="$seconds" -malloc_limit_mb=1024 -rss_limit_mb=2048 -timeout=300 -max_len=16384
        -print_final_stats=1 -artifact_prefix="$artifacts/")
    case $target in
    mil_text | valid) options+=(-dict=fuzz/mil.dict) ;;
    template | tokenizer | requests) options+=(-dict="fuzz/$target.dict") ;;
    esac
    start=$SECONDS
    result=ok
    # Short stacks of allocations: to record them takes longer than all else. Leaks: what is safe Rust is not searched.
    ASAN_OPTIONS=detect_leaks=0:malloc_context_size=2 \
        "$target_dir/debug/$target" "$corpus" "${options[@]}" >"$work/$target.log" 2>&1 || result=FAILED
    figure() { sed -n "s/^stat::$1: *//p" "$work/$target.log"; }
    coverage=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$work/$target.log" | tail -1)
    echo "fuzz: $target: $(figure number_of_executed_units) runs in $((SECONDS - start)) s," \
        "coverage ${coverage:-0}, slowest $(figure slowest_unit_time_sec) s, peak $(figure peak_rss_mb) MiB: $result"
    if [[ $result != ok ]]; then
        failed=1
        grep -E -A 40 'panicked at|ERROR: ' "$work/$target.log" | head -60 >&2 || tail -40 "$work/$target.log" >&2
        echo "fuzz: the input is in $artifacts" >&2
    fi
done
exit $failed
