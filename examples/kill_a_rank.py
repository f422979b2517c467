"""Rank 2 is killed in the middle of a job. The other ranks are told at once, and which rank it was.

torchrun --standalone --nproc-per-node 3 examples/kill_a_rank.py
"""

import os
import signal

import goccl
import torch
import torch.distributed as dist

dist.init_process_group("goccl")
rank = dist.get_rank()
tensor = torch.ones(1 << 20)
try:
    for step in range(10):
        if rank == 2 and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(tensor)
except goccl.PeerFailedError as error:
    print(f"rank {rank}, step {step}: ranks {error.ranks} have failed.\n{error}", flush=True)
    raise SystemExit(1) from None
