import torch
import torch.distributed as dist

dist.init_process_group("goccl")  # was: "gloo"
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total}")
