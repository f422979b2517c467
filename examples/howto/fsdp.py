"""Each rank keeps a part of the parameters, gradients and optimizer state (FSDP2, on CPU).

torchrun --standalone --nproc-per-node 2 examples/howto/fsdp.py
"""

import goccl
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

dist.init_process_group("goccl")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)

with (
    goccl.use_shareable_memory()
):  # what FSDP gathers lies in shareable memory: nothing is copied on the way
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        data = torch.randn(8, 256)
        loss = (model(data) - data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

kept = sum(part.to_local().numel() for part in model.parameters() if isinstance(part, DTensor))
total = sum(parameter.numel() for parameter in model.parameters())
print(f"rank {dist.get_rank()} keeps {kept} of {total} parameters")
dist.destroy_process_group()
