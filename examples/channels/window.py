"""torch's Window: each rank puts its numbers into a tensor of the next one, and goes on meanwhile.

torchrun --standalone --nproc-per-node 2 examples/channels/window.py
"""

import goccl
import torch
import torch.distributed as dist

COUNT = 1 << 16  # numbers of each rank

dist.init_process_group("goccl")
rank, size = dist.get_rank(), dist.get_world_size()
after, before = (rank + 1) % size, (rank - 1) % size

inbox = goccl.zeros(size * COUNT)  # what peers write is shareable memory
window = dist._new_window(inbox)  # on all ranks

mine = torch.full((COUNT,), float(rank))  # any memory
sent = window.put(mine, after, rank * COUNT, True)  # a put signals, too
came = window.wait_signal(before, True)
# ... what needs neither `inbox` nor to change `mine` ...
came.wait()
assert (inbox[before * COUNT : (before + 1) * COUNT] == before).all()
sent.wait()

window.tensor_deregister()  # on all ranks
print(f"rank {rank} has the numbers of rank {before}")
dist.destroy_process_group()
