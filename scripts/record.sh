#!/bin/sh
# Runs the compiler for cargo, which calls this for each crate of the workspace (RUSTC_WORKSPACE_WRAPPER), and writes
# down the call in the folder THANE_CALLS, from which scripts/lint.py takes it.
case " $* " in
*" --crate-name "*)
    call=$(mktemp "$THANE_CALLS/XXXXXXXX") &&
        { env -0 | grep -z -e ^CARGO -e ^OUT_DIR=; printf '\0'; printf '%s\0' "$PWD" "$@"; } >"$call"
    ;;
esac
exec "$@"
