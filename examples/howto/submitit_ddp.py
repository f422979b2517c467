"""A job of submitit: of Slurm where there is one, else of two processes on this host.

python examples/howto/submitit_ddp.py
"""

import submitit
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train() -> float:
    submitit.helpers.TorchDistributedEnvironment().export()  # the variables that torch reads
    dist.init_process_group("goccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        data = torch.randn(8, 16)
        loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    return loss.item()


executor = submitit.AutoExecutor("submitit_jobs")  # a folder of logs and results
hosts = 1 if executor.cluster == "local" else 2
executor.update_parameters(nodes=hosts, tasks_per_node=2 // hosts, cpus_per_task=1, timeout_min=10)
for rank, loss in enumerate(executor.submit(train).results()):
    print(f"rank {rank}: loss {loss:.4f}")
