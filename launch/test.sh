#!/usr/bin/env bash
# Sets up what is missing, then runs the style checks and every test, a real SGLang server on this CPU included.
#   launch/test.sh [arguments of pytest]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
RADIXTIER_EXTRAS=${RADIXTIER_EXTRAS:-demo,test,dev,docs}
. launch/setup.sh
if [ $# -eq 0 ]; then
    echo "radixtier: ruff and mypy"
    "$RADIXTIER_PYTHON" -m ruff check .
    "$RADIXTIER_PYTHON" -m mypy
fi
echo "radixtier: tests"
exec "$RADIXTIER_PYTHON" -m pytest "$@"
