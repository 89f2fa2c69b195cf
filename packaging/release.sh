#!/usr/bin/env bash
# Pack a built program for a release: packaging/release.sh THANE TARGET OUT [URL]
#
# THANE is the program, TARGET its platform as rustup names it. OUT gets thane-VERSION-TARGET.tar.gz
# (program, completions, manual pages, licenses), its line in SHA256SUMS, and thane.rb, a Homebrew
# formula that names the archives of all platforms in OUT below URL, where the release will be.
# THANE runs to write completions and manual pages; RUNNER names a program that runs it where it is
# one of another platform.
set -euo pipefail
cd "$(dirname "$0")/.."
thane=$1
target=$2
out=$3
url=${4:-https://example.com/releases}
run() { ${RUNNER:-} "$thane" "$@"; }
version=$(run --version)
version=${version##* }
name=thane-$version-$target
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/$name
mkdir -p "$folder/completions" "$folder/man" "$out"
install -m 755 "$thane" "$folder/thane"
cp LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md "$folder/"
run completions bash >"$folder/completions/thane.bash"
run completions zsh >"$folder/completions/_thane"
run completions fish >"$folder/completions/thane.fish"
run man >"$folder/man/thane.1"
for verb in $(run --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    [ "$verb" = help ] || run man "$verb" >"$folder/man/thane-$verb.1"
done
# The same files give the same bytes.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$work" -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
(
    cd "$out"
    { grep -v "  $name.tar.gz\$" SHA256SUMS 2>/dev/null || true; } >SHA256SUMS.new
    sha256sum "$name.tar.gz" >>SHA256SUMS.new
    sort -k 2 -o SHA256SUMS.new SHA256SUMS.new
    mv SHA256SUMS.new SHA256SUMS
)
hash_of() { sed -n "s/  thane-$version-$1.tar.gz\$//p" "$out/SHA256SUMS"; }
# A platform that has no archive in OUT has no block.
block() { # condition of Homebrew, target
    local hash
    hash=$(hash_of "$2")
    [ -n "$hash" ] || return 0
    cat <<EOF
  $1 do
    url "$url/v$version/thane-$version-$2.tar.gz"
    sha256 "$hash"
  end

EOF
}
{
    cat <<EOF
# Written by packaging/release.sh. Its URLs and hashes are checked, its steps are run by a test; brew
# itself has not run it.
class Thane < Formula
  desc "Core ML programs for the Apple Neural Engine from checkpoints"
  homepage "$url"
  version "$version"
  license any_of: ["MIT", "Apache-2.0"]

EOF
    block on_macos aarch64-apple-darwin
    block on_linux x86_64-unknown-linux-musl
    cat <<'EOF'
  def install
    bin.install "thane"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/thane.bash" => "thane"
    zsh_completion.install "completions/_thane"
    fish_completion.install "completions/thane.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/thane --version")
  end
end
EOF
} >"$out/thane.rb"
echo "$out/$name.tar.gz"
