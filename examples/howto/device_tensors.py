"""Sums tensors of the accelerator that is there, while it works on something else.

torchrun --standalone --nproc-per-node 2 examples/howto/device_tensors.py
"""

import torch
import torch.distributed as dist

dist.init_process_group("goccl")  # for tensors of the CPU, and of the accelerator
device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
if device.type != "cpu":
    device = torch.device(device.type, dist.get_rank() % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)

gradient = torch.full((1 << 20,), float(dist.get_rank() + 1), device=device)
activation = torch.ones(256, 256, device=device)

work = dist.all_reduce(gradient, async_op=True)  # begins once the device has made `gradient`
activation = activation @ activation  # meanwhile
work.wait()  # the stream, and so what follows, sees the result
gradient /= dist.get_world_size()

print(f"rank {dist.get_rank()}: mean {gradient[0].item()}")
dist.destroy_process_group()
