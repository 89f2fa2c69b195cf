#!/bin/sh
# Install thane: curl -fsSL URL/install.sh | sh
#
# THANE_URL is the folder of releases, THANE_VERSION the one to install (default: what URL/latest
# says), THANE_PREFIX where it goes (default: ~/.local). The archive is checked against SHA256SUMS
# of its release before anything is installed. Needs curl or wget, tar, and sha256sum or shasum.
set -eu

url=${THANE_URL:-https://example.com/releases}
prefix=${THANE_PREFIX:-$HOME/.local}

fail() {
    echo "thane is not installed: $1" >&2
    exit 1
}
fetch() { # address, file
    if command -v curl >/dev/null 2>&1; then
        curl -fsSL --retry 2 -o "$2" "$1"
    elif command -v wget >/dev/null 2>&1; then
        wget -q -O "$2" "$1"
    else
        fail "expected curl or wget, found neither"
    fi
}
hash_of() {
    if command -v sha256sum >/dev/null 2>&1; then
        sha256sum "$1" | cut -d ' ' -f 1
    elif command -v shasum >/dev/null 2>&1; then
        shasum -a 256 "$1" | cut -d ' ' -f 1
    else
        fail "expected sha256sum or shasum, found neither"
    fi
}

# All of it is read before the first line runs, so that half a script does nothing.
main() {
    case $(uname -s)-$(uname -m) in
    Linux-x86_64) target=x86_64-unknown-linux-musl ;;
    Linux-aarch64) target=aarch64-unknown-linux-musl ;;
    Darwin-arm64) target=aarch64-apple-darwin ;;
    *) fail "no build for $(uname -s) on $(uname -m); see README.md for a build from source" ;;
    esac
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT INT TERM
    version=${THANE_VERSION:-}
    if [ -z "$version" ]; then
        fetch "$url/latest" "$work/latest" || fail "could not fetch $url/latest"
        version=$(tr -d ' \n\r' <"$work/latest")
    fi
    case $version in
    '' | *[!0-9A-Za-z.+-]*) fail "expected a version such as 1.2.3, found '$version' (THANE_VERSION, or $url/latest)" ;;
    esac
    name=thane-$version-$target
    fetch "$url/v$version/SHA256SUMS" "$work/SHA256SUMS" || fail "could not fetch $url/v$version/SHA256SUMS"
    wanted=$(sed -n "s/  $name.tar.gz\$//p" "$work/SHA256SUMS")
    [ -n "$wanted" ] || fail "release $version has no build for $target"
    fetch "$url/v$version/$name.tar.gz" "$work/$name.tar.gz" || fail "could not fetch $url/v$version/$name.tar.gz"
    found=$(hash_of "$work/$name.tar.gz")
    [ "$wanted" = "$found" ] || fail "$name.tar.gz: expected the SHA-256 $wanted, found $found: try again later"
    tar -xzf "$work/$name.tar.gz" -C "$work"
    folder=$work/$name
    "$folder/thane" --version >/dev/null || fail "the program does not run on this machine"
    mkdir -p "$prefix/bin" "$prefix/share/man/man1" "$prefix/share/bash-completion/completions" \
        "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d"
    # A program that runs stays whole: the new one takes its name at once.
    cp "$folder/thane" "$prefix/bin/.thane.new"
    chmod 755 "$prefix/bin/.thane.new"
    mv -f "$prefix/bin/.thane.new" "$prefix/bin/thane"
    cp "$folder"/man/*.1 "$prefix/share/man/man1/"
    cp "$folder/completions/thane.bash" "$prefix/share/bash-completion/completions/thane"
    cp "$folder/completions/_thane" "$prefix/share/zsh/site-functions/_thane"
    cp "$folder/completions/thane.fish" "$prefix/share/fish/vendor_completions.d/thane.fish"
    echo "thane $version is installed in $prefix/bin"
    case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) echo "put it on your PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
}

main
