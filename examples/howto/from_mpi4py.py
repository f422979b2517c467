"""A program of mpi4py, call by call, with torch.distributed and GoCCL.

torchrun --standalone --nproc-per-node 2 examples/howto/from_mpi4py.py
"""

import numpy as np
import torch
import torch.distributed as dist

dist.init_process_group("goccl")  # comm = MPI.COMM_WORLD
rank, size = dist.get_rank(), dist.get_world_size()  # comm.Get_rank(), comm.Get_size()

array = np.full(4, float(rank))
tensor = torch.from_numpy(array)  # the same memory: what a call leaves in one is in both

dist.all_reduce(tensor)  # comm.Allreduce(MPI.IN_PLACE, array, MPI.SUM)
assert array[0] == sum(range(size))

dist.broadcast(tensor, src=0)  # comm.Bcast(array, root=0)

everything = torch.empty(size * 4, dtype=tensor.dtype)
dist.all_gather_into_tensor(everything, tensor)  # comm.Allgather(array, everything)

right, left = (rank + 1) % size, (rank - 1) % size
received = torch.empty_like(tensor)
works = dist.batch_isend_irecv(  # comm.Sendrecv(array, right, recvbuf=received, source=left)
    [dist.P2POp(dist.isend, tensor, right), dist.P2POp(dist.irecv, received, left)]
)
for work in works:
    work.wait()

names: list[str | None] = [None] * size
dist.all_gather_object(names, f"rank {rank}")  # comm.allgather(f"rank {rank}")

parts = [list(range(color, size, 2)) for color in range(min(2, size))]
part, _ = dist.new_subgroups_by_enumeration(parts)  # part = comm.Split(rank % 2)
assert dist.get_rank(part) == rank // 2
dist.barrier()  # comm.Barrier()
print(f"rank {rank}: {array.tolist()}, {names}")
dist.destroy_process_group()
