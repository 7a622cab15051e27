#!/usr/bin/env bash
# Takes the pictures of the documentation on a real server on this CPU; needs a Chromium, and a few minutes.
#   launch/screenshots.sh [--out DIRECTORY] [--only FILE...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
RADIXTIER_EXTRAS=${RADIXTIER_EXTRAS:-demo,test}
. launch/setup.sh
exec "$RADIXTIER_PYTHON" -m radixtier.demo.screenshots "$@"
