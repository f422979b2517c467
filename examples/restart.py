"""Trains with checkpoints. Rank 1 is killed once, the launcher restarts the job, and it goes on.

torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/restart.py checkpoint.pt
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
checkpoint = Path(sys.argv[1])

dist.init_process_group("goccl")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

begin = 0
if checkpoint.exists():  # an earlier start of this job got so far
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begin = saved["step"]

for step in range(begin, STEPS):
    data = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 1000 + rank))
    loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:  # a new file takes the place of the old one: a death in between spoils neither
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, f"{checkpoint}.new")
        Path(f"{checkpoint}.new").rename(checkpoint)
    if step == 10 and rank == 1 and begin == 0:
        os.kill(os.getpid(), signal.SIGKILL)

if rank == 0:
    print(f"done: steps {begin} to {STEPS} in this start, loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
