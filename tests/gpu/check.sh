#!/usr/bin/env bash
# What a GPU is checked with, in at most eight minutes: the tests that need one, then size S of `paper` in six arms: tokens
# a second, MFU, step time beside `rope`, peak memory, errors against float64. Put the table into docs/gpu.md.
# Without a GPU, or with --tiny: the same commands at toy sizes on the CPU, to see that they run.
# PYTHON: the interpreter (default: that of .venv).
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
tiny=()
[ "${1:-}" = --tiny ] && tiny=(--tiny)
failed=0
if command -v nvidia-smi > /dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
fi
timeout 230 "$python" -m pytest -q -rs tests/gpu || failed=1
# The rows that a time limit leaves are printed all the same.
timeout 240 "$python" -m causal_priors bench gpu "${tiny[@]}" || failed=1
exit $failed
