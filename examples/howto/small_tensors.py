"""Sums a loss of 4 bytes at each step, past most of what torch.distributed costs.

torchrun --standalone --nproc-per-node 2 examples/howto/small_tensors.py
"""

import goccl
import torch
import torch.distributed as dist

dist.init_process_group("goccl")
communicator = goccl.Communicator()  # of the default group; any group with backend goccl will do

loss = torch.tensor([float(dist.get_rank())])
for _ in range(1000):
    communicator.all_reduce_(loss, "avg")  # blocks; `loss` is the result

print(f"rank {dist.get_rank()}: mean loss {loss.item()}")
dist.destroy_process_group()
