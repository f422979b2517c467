"""DeepSpeed, ZeRO stage 2, on CPU.

torchrun --standalone --nproc-per-node 2 examples/howto/deepspeed_zero.py
"""

import deepspeed
import torch
import torch.distributed as dist

# before deepspeed.initialize(), which takes the group that is there
dist.init_process_group("goccl")
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(16, 1)
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_batch_size": 8 * dist.get_world_size(),
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    },
)
for _ in range(5):
    data = torch.randn(8, 16)
    loss = (engine(data) - data.sum(dim=1, keepdim=True)).square().mean()
    engine.backward(loss)
    engine.step()
print(f"rank {dist.get_rank()}: backend {dist.get_backend()}, loss {loss.item():.6f}")
dist.destroy_process_group()
