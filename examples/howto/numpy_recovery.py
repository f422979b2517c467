"""Steps that go on when a rank dies, from a checkpoint in the memory of the others.

torchrun --standalone --nproc-per-node 3 examples/howto/numpy_recovery.py
"""

import goccl
import goccl.numpy
import numpy as np

with goccl.numpy.init(timeout=60) as comm:
    state = np.zeros(5)  # the number of steps, and the model
    while state[0] < 10:
        gradients = np.ones(4)
        try:
            mean = comm.allreduce(gradients, "avg")
            state = np.append(state[0] + 1, state[1:] + mean)
            comm.checkpoint(state)
        except goccl.Error as error:
            print(error)
            comm.recover()  # among those that are left; rank and size may be others
            saved = comm.load_checkpoint()  # all go on from there
            state = np.frombuffer(saved.global_model) if saved.version else np.zeros(5)
    print(f"rank {comm.rank} of {comm.size}: {state[1:].tolist()}")
