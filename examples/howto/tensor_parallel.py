"""Splits the matrices of a layer over the ranks: each computes a part, an allreduce sums the parts.

torchrun --standalone --nproc-per-node 2 examples/howto/tensor_parallel.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("goccl")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)

layer = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
data = torch.randn(4, 256)
with torch.inference_mode():
    alone = layer(data)
    parallel = parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    together = parallel(data)

torch.testing.assert_close(together, alone)
weight = parallel.get_parameter("0.weight")
assert isinstance(weight, DTensor)
print(f"rank {dist.get_rank()} has {weight.to_local().shape[0]} of {weight.shape[0]} columns")
dist.destroy_process_group()
