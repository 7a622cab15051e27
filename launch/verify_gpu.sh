#!/usr/bin/env bash
# Checks on a machine with a GPU that pages go from NVMe to HBM, straight and through DRAM, and what that gives: the
# engine, GB/s both ways, byte equality, and a server's answers and times to first token from each tier. Under 5 minutes.
#   launch/verify_gpu.sh DIRECTORY [--model-path MODEL] [--json FILE]
# DIRECTORY lies on the drive and has 8 GiB free; nothing but scratch files is changed there.
#
#   PYTHON     interpreter that has SGLang, radixtier and KvikIO (default: python3)
#
# Ends with 0 if all is well, 1 with the reason if not, 2 for a wrong command line, and 3 where there is no GPU.
#
# This script has never run on a GPU; `--rehearse` goes through its steps on a CPU.
set -euo pipefail
exec "${PYTHON:-python3}" -m radixtier.gate.verify_gpu "$@"
