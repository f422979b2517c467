"""DDP with torchft: replicas may die and come back. Here each is one process.

torchft_lighthouse --min_replicas 1 --join_timeout_ms 10000
TORCHFT_LIGHTHOUSE=http://localhost:29510 REPLICA_GROUP_ID=0 \
    torchrun --standalone --nproc-per-node 1 --max-restarts 9 examples/howto/torchft_ddp.py 300
"""

import os
import sys
from datetime import timedelta

import goccl.torchft
import torch
from torchft import DistributedDataParallel, Manager, Optimizer

torch.manual_seed(0)
layer = torch.nn.Linear(16, 1)
adamw = torch.optim.AdamW(layer.parameters(), lr=0.01)
replica = int(os.environ["REPLICA_GROUP_ID"])
manager = Manager(
    pg=goccl.torchft.ProcessGroupGoccl(timeout=timedelta(seconds=30)),
    min_replica_size=1,
    replica_id=f"replica_{replica}",
    state_dict=lambda: {"layer": layer.state_dict(), "adamw": adamw.state_dict()},
    load_state_dict=lambda state: (
        layer.load_state_dict(state["layer"]),
        adamw.load_state_dict(state["adamw"]),
    ),
)
model = DistributedDataParallel(manager, layer)
optimizer = Optimizer(manager, adamw)

while manager.current_step() < int(sys.argv[1]):
    torch.manual_seed(1000 * manager.current_step() + replica)
    data = torch.randn(8, 16)
    optimizer.zero_grad()
    loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    step, replicas = manager.current_step(), manager.num_participants()
    print(f"step {step} of {replicas} replicas: bias {layer.bias.item():.9f}", flush=True)
manager.shutdown()
