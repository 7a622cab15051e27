#!/usr/bin/env bash
# Builds the documentation as a site that can be read without a network, or shows it while it is written.
#   launch/docs.sh DIRECTORY     builds it there (a new or empty directory, or one of an earlier build)
#   launch/docs.sh --serve       shows it at http://127.0.0.1:8000 and follows every change
# Takes a Python that has mkdocs-material: that of the active virtual environment, of .venv, or python3; without one it
# makes an environment below $RADIXTIER_CACHE (~/.cache/radixtier), some 100 MB.
set -euo pipefail

say() { printf 'docs: %s\n' "$*" >&2; }

usage() {
    say "usage: launch/docs.sh DIRECTORY | --serve"
    exit 2
}

has_mkdocs() { [ -x "$1" ] && "$1" -c 'import material, mkdocs' 2>/dev/null; }

find_python() {
    local candidate made=${RADIXTIER_CACHE:-$HOME/.cache/radixtier}/docs-venv
    for candidate in "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "$root/.venv/bin/python" "$(command -v python3 || true)" \
        "$made/bin/python"; do
        if [ -n "$candidate" ] && has_mkdocs "$candidate"; then
            echo "$candidate"
            return 0
        fi
    done
    say "making $made with mkdocs-material"
    python3 -m venv "$made" >&2 || {
        say "python3 could not make it (Debian, Ubuntu: apt-get install python3-venv)"
        return 1
    }
    "$made/bin/python" -m pip install --disable-pip-version-check --quiet 'mkdocs-material>=9.5,<10' >&2 || {
        say "pip failed (above). No network? pip reads PIP_INDEX_URL, PIP_PROXY and PIP_CERT."
        return 1
    }
    echo "$made/bin/python"
}

[ $# -eq 1 ] && [ -n "$1" ] || usage
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
config=$root/.ci/mkdocs.yml
export NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true # an advertisement of the theme
case $1 in
    -h | --help)
        sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    --serve)
        python=$(find_python)
        exec "$python" -m mkdocs serve --strict --config-file "$config" --dev-addr 127.0.0.1:8000
        ;;
    -*) usage ;;
esac
# A build empties its directory first, so it must be one that holds nothing else.
if [ -e "$1" ] && [ ! -e "$1/.radixtier-docs" ] && { [ ! -d "$1" ] || [ -n "$(ls -A -- "$1")" ]; }; then
    say "$1 holds something else, and a build empties its directory: name a new one"
    exit 2
fi
python=$(find_python)
mkdir -p -- "$1"
site=$(cd -- "$1" && pwd)
"$python" -m mkdocs build --strict --quiet --config-file "$config" --site-dir "$site"
touch "$site/.radixtier-docs"
say "open $site/index.html; its search needs a server: python3 -m http.server --bind 127.0.0.1 --directory $site"
