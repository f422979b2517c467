"""Accelerate on CPUs, which names Gloo by itself."""

import torch
from accelerate import Accelerator
from report import report
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(16, 1)
rows = DataLoader(TensorDataset(torch.randn(128, 16)), batch_size=8)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
losses = []
for (batch,) in rows:
    loss = (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    losses += accelerator.gather(loss.detach().view(1)).tolist()
report(losses, model.parameters())
accelerator.end_training()
