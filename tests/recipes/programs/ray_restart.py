"""Ray Train, whose rank 1 is killed once; all workers start again.

python ray_restart.py MARK: a file that tells that it was
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

mark = Path(sys.argv[1])


def train():
    tensor = torch.ones(1)
    for step in range(10):
        if step == 5 and dist.get_rank() == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(tensor)
    print(f"rank {dist.get_rank()}: {tensor.item():g} by {dist.get_backend()}", flush=True)


TorchTrainer(
    train,
    torch_config=TorchConfig(backend="goccl"),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(failure_config=FailureConfig(max_failures=1)),
).fit()
