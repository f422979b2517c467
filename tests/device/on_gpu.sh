#!/usr/bin/env bash
# Checks and figures of device tensors on the accelerator of this machine: about six minutes.
#
#   tests/device/on_gpu.sh [FOLDER]           FOLDER: where the figures go; out/device where none is
#   GOCCL_TEST_DEVICE=testdev tests/device/on_gpu.sh    a dry run, on the device of the tests
#
# It takes the Python in $PYTHON, or else that of .venv, in which goccl is installed. Where no Go is:
#   GOCCL_LIB=libgoccl.so.0 pip install --no-deps --no-build-isolation -e .
# with a libgoccl.so.0 that was built elsewhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${1:-out/device}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$out"
device=${GOCCL_TEST_DEVICE:-$("$python" -c 'import torch
found = torch.accelerator.current_accelerator(check_available=True)
print(found.type if found else "")')}
if [[ -z $device ]]; then
  echo "torch finds no accelerator here; GOCCL_TEST_DEVICE=testdev runs with that of the tests" >&2
  exit 2
fi
export GOCCL_TEST_DEVICE=$device

{
  echo "device $device"
  "$python" -c 'import platform, torch; print("torch", torch.__version__, "python",
    platform.python_version())'
  if [[ $device == cuda ]]; then
    nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current \
      --format=csv
  fi
  lscpu | grep -E '^(Model name|CPU\(s\)|NUMA node\(s\))'
} | tee "$out/facts.txt"

status=0
timeout 240 "$python" -m pytest -q tests/test_device_tensors.py 2>&1 | tee "$out/tests.txt" || status=$?
if [[ $device == testdev ]]; then # as a vendor's package says it to torch
  export PYTHONPATH=tests/device/autoload:tests${PYTHONPATH:+:$PYTHONPATH}
fi
timeout 120 "$python" -m goccl bench allreduce --device "$device" --transport shm \
  --sizes 4,4K,64K,1M,16M,64M,256M --json "$out/bench.json" 2>&1 | tee "$out/bench.txt" || status=$?
timeout 60 "$python" -m goccl bench allgather,reduce_scatter,broadcast,alltoall --sizes 64M \
  --device "$device" --transport shm 2>&1 | tee -a "$out/bench.txt" || status=$?
timeout 60 "$python" tests/device/copies.py --device "$device" --json "$out/copies.json" 2>&1 |
  tee "$out/copies.txt" || status=$?
exit "$status"
