#!/usr/bin/env bash
# Plays real multi-turn chats on SGLang without and with the tier, and compares them.
#   launch/demo.sh [--quick] [--json FILE] [--keep]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. launch/setup.sh
exec "$RADIXTIER_PYTHON" -m radixtier.demo.run "$@"
