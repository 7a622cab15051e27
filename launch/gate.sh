#!/usr/bin/env bash
# Sets up what is missing, then runs the four gates and writes a report.
#   launch/gate.sh [--quick] [...]              SmolLM2 on this machine's CPU, with a store below the cache
#   launch/gate.sh --launch "ARGS" --out DIR    servers of your own, started and stopped here
#   launch/gate.sh --server URL --out DIR       a server that runs already
# All other arguments are those of `radixtier gate run`.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/launch/setup.sh"
own=--cpu-demo
for word in "$@"; do
    case $word in
        --server | --server=* | --launch | --launch=* | --cpu-demo | -h | --help) own= ;;
    esac
done
exec "$RADIXTIER_PYTHON" -m radixtier.cli gate run ${own:+"$own"} "$@"
