#!/usr/bin/env bash
# Starts one server with the tier on one GPU, for models of the 8B class (Llama 3.1 8B, Qwen3 8B), with FlashInfer.
#   launch/one_gpu.sh MODEL_DIRECTORY [STORE_DIRECTORY ...] [-- more arguments of the server]
# One store directory per NVMe drive, each on a file system of its own; none for a tier of DRAM only. The sizes are
# computed from this machine by `radixtier suggest`, which also says why, or what is in the way.
#
#   DRY_RUN=1               print what would be started, with the reasons, and start nothing
#   PYTHON                  interpreter that has SGLang and radixtier (default: python3)
#   CUDA_VISIBLE_DEVICES    which GPU (default: 0)
#   KV_BYTES_PER_TOKEN      KV of a token, if MODEL is no directory with a config.json: 128KiB for Llama 3.1 8B,
#                           144KiB for Qwen3 8B, both in bfloat16
#   DWPD                    drive writes per day that the drives are rated for (default: 1)
#
# Stop it with SIGTERM to this process (`kill PID`): it waits for running requests, writes what NVMe does not have yet
# (up to 10 s) and ends within SGLang's 15 s after that. Ctrl-C is taken for a crash by SGLang's schedulers, and what was
# not on NVMe is lost.
#
# A supervisor should start a fixed file rather than compute sizes each time:
#   DRY_RUN=1 launch/one_gpu.sh MODEL STORE > start.sh
#
# This script has been run with stand-ins for nvidia-smi and SGLang only, never on a GPU.
set -euo pipefail

usage() {
    sed -n '2,3s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

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

export PYTHON=${PYTHON:-python3} CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0}
kv=()
[ -z "${KV_BYTES_PER_TOKEN:-}" ] || kv=(--kv-bytes-per-token "$KV_BYTES_PER_TOKEN")

# Fails, with one line for each reason, if something is in the way.
script=$("$PYTHON" -m radixtier.cli suggest --model-path "$model" "${path[@]}" "${kv[@]}" --dwpd "${DWPD:-1}" --shell)
case $script in
    *"--device cpu"*)
        echo "one_gpu.sh: nvidia-smi shows no GPU here; on a CPU use: radixtier suggest --model-path $model" >&2
        exit 1
        ;;
esac
if [ -n "${DRY_RUN:-}" ]; then
    printf '%s\n' "$script"
    exit 0
fi
# FlashInfer takes pages of any size; on some GPUs SGLang would choose a backend of its own.
exec sh -c "$script" one_gpu --attention-backend flashinfer "$@"
