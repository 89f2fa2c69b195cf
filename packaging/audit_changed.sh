#!/usr/bin/env bash
# Audit the packages that a change touches: audit_changed.sh [--base REF] [--flags "FLAG.."] [FILE..]
#
# FILE is a changed file, as pre-commit names them; with --base, those that differ between REF and
# the working folder, or all files if REF is empty or zeros, as for a new branch. A file in a
# package (.mlpackage, .mlmodelc), or a .mil file, stands for it. Flags, with spaces between, go to
# `thane audit`. THANE names the program, and SARIF a folder that gets a report of each package for
# code scanning. Ends with the worst exit status of the audits. Works in bash 3.2, which macOS has.
set -euo pipefail
list=$(mktemp)
trap 'rm -f "$list"' EXIT
flags=(--format concise)
while [ $# -gt 0 ]; do
    case $1 in
    --base)
        base=${2?--base: expected a revision}
        if [ -z "${base//0/}" ]; then
            git ls-files -z >>"$list"
        else
            git diff --relative --name-only -z --diff-filter=d "$base" -- >>"$list"
        fi
        shift 2
        ;;
    --flags)
        read -r -a given <<<"${2?--flags: expected flags of thane audit}"
        flags+=(${given[@]+"${given[@]}"})
        shift 2
        ;;
    *)
        printf '%s\0' "$1" >>"$list"
        shift
        ;;
    esac
done
subjects=$(
    while IFS= read -r -d '' file; do
        case $file in
        *.mlpackage/*) subject=${file%%.mlpackage/*}.mlpackage ;;
        *.mlmodelc/*) subject=${file%%.mlmodelc/*}.mlmodelc ;;
        *.mlpackage | *.mlmodelc | *.mil) subject=$file ;;
        *) continue ;;
        esac
        # What was removed is not audited.
        if [ -e "$subject" ]; then
            printf '%s\n' "$subject"
        fi
    done <"$list" | sort -u
)
if [ -z "$subjects" ]; then
    echo "no package was changed"
    exit 0
fi
worst=0
while IFS= read -r subject; do
    echo "== $subject"
    status=0
    "${THANE:-thane}" audit "${flags[@]}" "$subject" </dev/null || status=$?
    if [ -n "${SARIF:-}" ] && [ "$status" -le 1 ]; then
        mkdir -p "$SARIF"
        report=$SARIF/${subject//\//-}.sarif
        # The status is known already.
        "${THANE:-thane}" audit --quiet --force -o "$report" "${flags[@]:2}" "$subject" </dev/null || true
    fi
    if [ "$status" -gt "$worst" ]; then
        worst=$status
    fi
done <<<"$subjects"
exit "$worst"
