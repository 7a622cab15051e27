#!/usr/bin/env bash
# Starts servers on all GPUs of a node, each with its own tier, and SGLang's router in front of them.
#   launch/eight_gpus.sh MODEL_DIRECTORY [STORE_DIRECTORY ...] [-- more arguments of every server]
#
# A model that fits on one GPU gets eight servers, and not one with --tp-size 8: they have the same FLOPs and the same HBM
# without any traffic between GPUs. One that does not fit gets servers over as few GPUs as will do, with --tp-size 2, 4
# or 8: `radixtier suggest` decides. One server over all GPUs needs no router.
#
# Why a router: a prefix is in the tiers of one server only. `cache_aware` sends a prompt to the server that has seen
# the longest part of it. With ROUTER_POLICY=manual it follows the header X-SMG-Routing-Key instead: give it a session's
# or a user's name. Both forget when the router is restarted. A proxy that hashes the header does not: launch/nginx.conf,
# with ROUTER_POLICY=none here.
#
# Store directories: one per NVMe drive, each on a file system of its own, or one on a RAID 0 over the drives. With as
# many drives as servers (or a multiple) each gets drives of its own; otherwise each has a directory on every drive.
# RAM, room and write budget are shared out evenly by `radixtier suggest`.
#
#   DRY_RUN=1             print what would be started, and start nothing
#   PYTHON                interpreter that has SGLang, radixtier and sglang-router (default: python3)
#   CUDA_VISIBLE_DEVICES  the GPUs to use (default: all)
#   FIRST_PORT            of the servers (default: 30000); all listen on 127.0.0.1
#   ROUTER_PORT           of the router (default: 8000), on ROUTER_HOST (default: 127.0.0.1)
#   ROUTER_POLICY         cache_aware (default), manual, or none for no router
#   LOGS                  directory for the servers' logs and start scripts (default: ./radixtier-logs)
#   KV_BYTES_PER_TOKEN    KV of a token, if MODEL is no directory with a config.json
#   DWPD                  drive writes per day that the drives are rated for (default: 1)
#
# Stop it with Ctrl-C or SIGTERM: the router goes first, then every server writes what its NVMe does not have yet.
#
# This script has been run with stand-ins for nvidia-smi and SGLang only, never on a GPU. sglang-router 0.3.2 takes these
# arguments.
set -euo pipefail

usage() {
    sed -n '2,3s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
say() { printf 'eight_gpus.sh: %s\n' "$*" >&2; }

[ $# -gt 0 ] || usage
case $1 in -*) usage ;; esac
model=$1
shift
path=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in -*) usage ;; esac
    path+=("$1")
    shift
done
[ $# -eq 0 ] || shift
[ ${#path[@]} -eq 0 ] || path=(--path "${path[@]}")

export PYTHON=${PYTHON:-python3}
first_port=${FIRST_PORT:-30000}
policy=${ROUTER_POLICY:-cache_aware}
logs=${LOGS:-radixtier-logs}
kv=()
[ -z "${KV_BYTES_PER_TOKEN:-}" ] || kv=(--kv-bytes-per-token "$KV_BYTES_PER_TOKEN")

ask=("$PYTHON" -m radixtier.cli suggest --model-path "$model" "${path[@]}" "${kv[@]}" --dwpd "${DWPD:-1}"
    --port "$first_port")
# Fails, with one line for each reason, if something is in the way.
if ! plan=$("${ask[@]}" --json); then
    "${ask[@]}" >&2 || true
    exit 1
fi
read -r -a gpus <<<"$("$PYTHON" -c 'import json, sys
print(*(server["gpu"] for server in json.load(sys.stdin)["servers"] if server["gpu"] is not None))' <<<"$plan")"
if [ ${#gpus[@]} -eq 0 ]; then
    say "nvidia-smi shows no GPU here; on a CPU use: radixtier suggest --model-path $model"
    exit 1
fi

[ ${#gpus[@]} -gt 1 ] || policy=none
urls=()
for number in "${!gpus[@]}"; do
    urls+=("http://127.0.0.1:$((first_port + number))")
done
# A session's place is worth more than usual here: NVMe keeps it for days.
sticky=()
[ "$policy" != manual ] || sticky=(--assignment-mode min_group --max-idle-secs 604800)
router=("$PYTHON" -m sglang_router.launch_router --host "${ROUTER_HOST:-127.0.0.1}" --port "${ROUTER_PORT:-8000}"
    --policy "$policy" "${sticky[@]}" --worker-startup-timeout-secs 1800 --worker-urls "${urls[@]}")

# All scripts are made before the first server takes RAM away from the others' sizes.
scripts=()
for gpu in "${gpus[@]}"; do
    scripts+=("$("${ask[@]}" --gpu "$gpu" --shell)")
done
if [ -n "${DRY_RUN:-}" ]; then
    printf '%s\n\n' "${scripts[@]}"
    [ "$policy" = none ] || printf '%s\n' "${router[*]}"
    exit 0
fi

declare -A pid_of=()
router_pid=""
# shellcheck disable=SC2317  # called by the trap
stop() {
    trap '' INT TERM
    say "stopping; servers may take a minute to write what is not on NVMe yet"
    [ -z "$router_pid" ] || kill -TERM "$router_pid" 2>/dev/null || true
    for gpu in "${!pid_of[@]}"; do
        kill -TERM "${pid_of[$gpu]}" 2>/dev/null || true
    done
    wait
    exit 0
}
trap stop INT TERM

mkdir -p "$logs"
for number in "${!gpus[@]}"; do
    gpu=${gpus[$number]}
    printf '%s\n' "${scripts[$number]}" >"$logs/gpu$gpu.sh"
    # A session of its own: Ctrl-C in this terminal would reach the schedulers, which take it for a crash.
    setsid sh "$logs/gpu$gpu.sh" --host 127.0.0.1 "$@" >"$logs/gpu$gpu.log" 2>&1 &
    pid_of[$gpu]=$!
    say "GPU $gpu: ${urls[$number]}, log $logs/gpu$gpu.log"
done
if [ "$policy" = none ]; then
    say "no router; send each session to one of: ${urls[*]}"
else
    # It waits for the servers, and serves those that are healthy.
    setsid "${router[@]}" >"$logs/router.log" 2>&1 &
    router_pid=$!
    say "router: http://${ROUTER_HOST:-127.0.0.1}:${ROUTER_PORT:-8000}, log $logs/router.log"
fi

# A server that ends does not end the others.
while [ ${#pid_of[@]} -gt 0 ]; do
    wait -n || true
    for gpu in "${!pid_of[@]}"; do
        if ! kill -0 "${pid_of[$gpu]}" 2>/dev/null; then
            say "the server on GPU $gpu has ended: see $logs/gpu$gpu.log"
            unset "pid_of[$gpu]"
        fi
    done
    if [ -n "$router_pid" ] && ! kill -0 "$router_pid" 2>/dev/null; then
        say "the router has ended: see $logs/router.log (pip install sglang-router, or ROUTER_POLICY=none)"
        router_pid=""
    fi
done
say "every server has ended"
[ -z "$router_pid" ] || kill -TERM "$router_pid" 2>/dev/null || true
exit 1
