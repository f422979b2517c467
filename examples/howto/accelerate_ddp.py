"""Accelerate takes a group that is there already. It would make one with Gloo.

torchrun --standalone --nproc-per-node 2 examples/howto/accelerate_ddp.py
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
dist.init_process_group("goccl")  # before the Accelerator
accelerator = Accelerator(cpu=True)

model = torch.nn.Linear(16, 1)
data = DataLoader(TensorDataset(torch.randn(256, 16)), batch_size=8)
model, optimizer, data = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), lr=0.01), data
)
for (batch,) in data:
    loss = (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()

print(f"rank {dist.get_rank()}: backend {dist.get_backend()}, loss {loss.item():.6f}")
dist.destroy_process_group()
