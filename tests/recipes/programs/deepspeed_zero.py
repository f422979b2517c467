"""DeepSpeed on CPUs, whose accelerator names Gloo: deepspeed_zero.py STAGE."""

import sys

import deepspeed
import torch
from report import report

torch.manual_seed(0)
deepspeed.init_distributed()
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": int(sys.argv[1])},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    },
)
torch.manual_seed(1 + engine.global_rank)
losses = []
for _ in range(8):
    rows = torch.randn(8, 16)
    loss = (engine(rows) - rows.sum(dim=1, keepdim=True)).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
report(losses, model.parameters())
deepspeed.comm.destroy_process_group()
