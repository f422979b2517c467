#!/usr/bin/env bash
# On each of the two hosts, with the same arguments: the address of one of them, and the program.
#
#     several_hosts.sh host0:29500 examples/train_digits.py
set -eu
torchrun --nnodes 2 --nproc-per-node "${RANKS_PER_HOST:-1}" \
  --rdzv-backend c10d --rdzv-endpoint "$1" "${@:2}"
