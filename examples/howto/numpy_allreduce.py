"""Sums arrays over the ranks, without torch.

Under any launcher, as mpirun -n 2, srun -n 2 or
torchrun --standalone --nproc-per-node 2 examples/howto/numpy_allreduce.py
"""

import goccl.numpy
import numpy as np

with goccl.numpy.init() as comm:
    gradients = np.arange(4.0) + comm.rank
    total = comm.allreduce(gradients)  # an array; gradients is as it was
    comm.allreduce(gradients, "avg", out=gradients)  # in place

    everything = comm.allgather(gradients)  # everything[r] is that of rank r
    work = comm.broadcast(everything, root=0, async_op=True)
    work.wait()

    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty(4)
    with comm.group():  # both at the same time
        comm.send(gradients, after)
        comm.recv(received, before)
    print(f"rank {comm.rank}: {total.tolist()}, {received.tolist()}")
