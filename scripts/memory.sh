#!/usr/bin/env bash
# Peak memory of `thane run` against its bound: bash scripts/memory.sh [MODELS]   (default: $THANE_MODELS, else target/models)
#
# MODELS is the folder that scripts/models.sh fills. The bound is 1.35 x the file + the part of the KV cache that was used
# + 60 MB; the figure is the kernel's VmHWM, so pages of the mapped file count. Linux only. THANE is the binary to measure
# (default: a release build). Fails when a figure is above its bound.
set -euo pipefail
models=${1:-${THANE_MODELS:-}}
[ -z "$models" ] || models=$(cd "$models" && pwd)
cd "$(dirname "$0")/.."
models=${models:-target/models}
if [ -z "${THANE:-}" ]; then
    cargo build --quiet --release -p thane-cli
    THANE=${CARGO_TARGET_DIR:-target}/release/thane
fi

# The first number called $1 in the JSON on stdin.
number() { grep -o "\"$1\":[0-9]*" | head -n 1 | cut -d: -f2; }

long=$(head -c 4600 tests/models/perplexity.txt)
failed=0
printf '%-36s %-4s %6s %6s %9s %9s %9s\n' model how prompt answer file_MB peak_MB bound_MB
for file in "$models"/*.gguf; do
    size=$(stat -L -c %s "$file")
    for how in fast f32; do
        shown=$("$THANE" show --json --numerics "$how" "$file")
        cache=$(number cache_bytes <<<"$shown")
        context=$(number context <<<"$shown")
        for prompt in "Why is the sky blue?" "$long"; do
            # What a long prompt adds is the cache, of the same shape in both; in f32 it takes minutes.
            [[ $how != f32 || $prompt != "$long" ]] || continue
            report=$("$THANE" run --quiet --json --raw --numerics "$how" --max-tokens 32 "$file" "$prompt")
            n_prompt=$(number prefill_tokens <<<"$report")
            n_answer=$(number decode_tokens <<<"$report")
            peak=$(number peak_memory_bytes <<<"$report")
            bound=$((size * 135 / 100 + cache / context * (n_prompt + n_answer) + 60000000))
            printf '%-36s %-4s %6d %6d %9.1f %9.1f %9.1f\n' "$(basename "$file")" "$how" "$n_prompt" "$n_answer" \
                "$((size / 100000))e-1" "$((peak / 100000))e-1" "$((bound / 100000))e-1"
            if [ "$peak" -gt "$bound" ]; then
                echo "above the bound by $(((peak - bound) / 1000)) kB" >&2
                failed=1
            fi
        done
    done
done
exit "$failed"
