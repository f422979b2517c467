"""Tensors in memory that the ranks of a host map: collectives copy nothing on the way.

torchrun --standalone --nproc-per-node 2 examples/howto/shareable.py
"""

import goccl
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("goccl")

gradients = goccl.empty(1 << 20)  # as torch.empty()
gradients.fill_(1)
dist.all_reduce(gradients)
assert goccl.is_shareable(gradients)
assert gradients[0] == dist.get_world_size()

with goccl.use_shareable_memory():  # what torch allocates here lies there: DDP's buckets, too
    model = DistributedDataParallel(torch.nn.Linear(512, 512), gradient_as_bucket_view=True)
    for _ in range(3):
        model(torch.randn(8, 512)).sum().backward()

shared = [goccl.is_shareable(parameter.grad) for parameter in model.parameters()]
print(f"rank {dist.get_rank()}: gradients in shareable memory: {shared}")
dist.destroy_process_group()
