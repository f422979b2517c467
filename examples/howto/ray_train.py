"""Ray Train with two CPU workers.

python examples/howto/ray_train.py
"""

import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train():
    torch.manual_seed(dist.get_rank())
    model = prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        data = torch.randn(8, 16)
        loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {dist.get_rank()}: backend {dist.get_backend()}, loss {loss.item():.4f}")


TorchTrainer(
    train, torch_config=TorchConfig(backend="goccl"), scaling_config=ScalingConfig(num_workers=2)
).fit()
