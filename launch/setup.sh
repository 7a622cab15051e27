# Finds or makes a Python environment with SGLang 0.5.23 and this checkout of radixtier; exports RADIXTIER_PYTHON.
#   . launch/setup.sh          from another script
#   bash launch/setup.sh       prints the interpreter's path
# Uses, in this order: an active virtual environment that has the right SGLang; $RADIXTIER_VENV (made if missing);
# .venv in the checkout; the python3 on the path if it has the right SGLang; otherwise makes .venv.
# RADIXTIER_EXTRAS (default "demo,test") chooses what else of radixtier's extras is installed.
set -euo pipefail

_rt_say() { printf 'setup: %s\n' "$*" >&2; }

_rt_has_sglang() {
    [ -x "$1" ] && "$1" -c '
import importlib.metadata as m, sys
sys.exit(m.version("sglang") != sys.argv[1])' "$_rt_sglang" 2>/dev/null
}

_rt_python_fits() {
    # sglang 0.5.23 has wheels for CPython 3.11, 3.12 and 3.13.
    "$1" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13)))' 2>/dev/null
}

# Prints the interpreter that a new environment is made with.
_rt_base_python() {
    local name
    for name in python3 python3.12 python3.11 python3.13; do
        if command -v "$name" >/dev/null && _rt_python_fits "$name"; then
            command -v "$name"
            return 0
        fi
    done
    _rt_say "no suitable Python: SGLang $_rt_sglang needs Python 3.11, 3.12 or 3.13, and python3 here is" \
        "$(python3 --version 2>&1 || echo missing). Install one (Debian, Ubuntu: apt-get install python3.11" \
        "python3.11-venv) and run this again."
    return 1
}

# _rt_make_venv DIRECTORY [OPTION]: makes a virtual environment, or leaves one that works as it is.
_rt_make_venv() {
    local directory=$1 base
    shift
    if [ -x "$directory/bin/python" ] && "$directory/bin/python" -m pip --version >/dev/null 2>&1; then
        if _rt_python_fits "$directory/bin/python"; then return 0; fi
        _rt_say "$directory has $("$directory/bin/python" --version), SGLang $_rt_sglang needs 3.11 to 3.13:" \
            "remove it, or name another with RADIXTIER_VENV."
        return 1
    fi
    base=$(_rt_base_python) || return 1
    _rt_say "making the virtual environment $directory with $base"
    if ! "$base" -m venv "$@" "$directory" >&2; then
        _rt_say "$base could not make it. If it says that ensurepip is missing: apt-get install python3-venv" \
            "(or python3.11-venv, to match $base), remove $directory and run this again."
        return 1
    fi
}

# Installs radixtier from this checkout with the named extras; shows the large downloads, and pip's end if it fails.
_rt_install() {
    local python=$1 extras=$2 log shown='^ *Downloading .*([0-9]{3}(\.[0-9])? M|G)B|^Installing'
    log=$(mktemp)
    if ! "$python" -m pip install --disable-pip-version-check --progress-bar off -e "$_rt_root[$extras]" 2>&1 |
        tee "$log" | { grep --line-buffered -E "$shown" | cut -c1-100 >&2 || true; }; then
        tail -n 15 "$log" >&2
        rm -f "$log"
        _rt_say "pip failed (above). No space? SGLang needs 15 GB in $(dirname "$(dirname "$python")") and" \
            "1 GB in ${TMPDIR:-/tmp}. No network? pip reads PIP_INDEX_URL, PIP_PROXY and PIP_CERT. Then run this again."
        return 1
    fi
    rm -f "$log"
}

# Says what is missing: radixtier from this checkout, or a requirement of one of the extras.
_rt_missing() {
    (cd / && "$1" - "$_rt_root" "$_rt_extras" <<'PY')
import importlib.metadata as metadata, importlib.util, os, re, sys
root, extras = sys.argv[1], sys.argv[2].split(",")
try:
    requirements = metadata.requires("radixtier") or []
except metadata.PackageNotFoundError:
    sys.exit("radixtier")
spec = importlib.util.find_spec("radixtier")
here = os.path.join(root, "radixtier")
if spec is None or not spec.origin or os.path.realpath(os.path.dirname(spec.origin)) != os.path.realpath(here):
    sys.exit("radixtier from this checkout")
for requirement in requirements:
    needed, _, marker = requirement.partition(";")
    name = re.match(r"[\w.-]+", needed).group()
    extra = re.search(r"extra == ['\"](\w+)['\"]", marker)
    if extra and extra.group(1) not in extras:
        continue
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        sys.exit(name)
PY
}

_rt_choose() {
    local path_python
    path_python=$(command -v python3 || true)
    if [ -n "${VIRTUAL_ENV:-}" ] && _rt_has_sglang "$VIRTUAL_ENV/bin/python"; then
        _rt_say "using the active virtual environment $VIRTUAL_ENV: it has SGLang $_rt_sglang"
        RADIXTIER_PYTHON=$VIRTUAL_ENV/bin/python
    elif [ -n "${RADIXTIER_VENV:-}" ]; then
        _rt_say "using $RADIXTIER_VENV: RADIXTIER_VENV names it"
        _rt_make_venv "$RADIXTIER_VENV" || return 1
        RADIXTIER_PYTHON=$RADIXTIER_VENV/bin/python
    elif [ -x "$_rt_root/.venv/bin/python" ]; then
        _rt_say "using $_rt_root/.venv: an earlier run made it"
        _rt_make_venv "$_rt_root/.venv" || return 1
        RADIXTIER_PYTHON=$_rt_root/.venv/bin/python
    elif [ -n "$path_python" ] && _rt_has_sglang "$path_python"; then
        if "$path_python" -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)'; then
            _rt_say "using $path_python: it has SGLang $_rt_sglang"
            RADIXTIER_PYTHON=$path_python
        else
            # A system Python is not written to: what it has is seen from an environment on top of it.
            _rt_say "reusing SGLang $_rt_sglang of $path_python through .venv on top of it"
            _rt_make_venv "$_rt_root/.venv" --system-site-packages || return 1
            RADIXTIER_PYTHON=$_rt_root/.venv/bin/python
        fi
    else
        _rt_make_venv "$_rt_root/.venv" || return 1
        RADIXTIER_PYTHON=$_rt_root/.venv/bin/python
    fi
}

_rt_setup() {
    local missing
    _rt_choose || return 1
    if ! _rt_has_sglang "$RADIXTIER_PYTHON"; then
        _rt_say "installing SGLang $_rt_sglang and radixtier: 11 GB, some minutes"
        _rt_install "$RADIXTIER_PYTHON" "sglang,$_rt_extras" || return 1
    elif ! missing=$(_rt_missing "$RADIXTIER_PYTHON" 2>&1); then
        _rt_say "installing radixtier with $_rt_extras (missing: $missing)"
        _rt_install "$RADIXTIER_PYTHON" "$_rt_extras" || return 1
    fi
    export RADIXTIER_PYTHON
}

_rt_sglang=0.5.23
_rt_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
_rt_extras=${RADIXTIER_EXTRAS:-demo,test}
_rt_setup || { return 1 2>/dev/null || exit 1; }
[ "${BASH_SOURCE[0]}" != "$0" ] || echo "$RADIXTIER_PYTHON"
