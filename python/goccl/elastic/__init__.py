"""Training that goes on when workers die or join.

What a script needs: a state that is committed now and then, and a decorator on the function that
trains. When a worker dies the others go back to the last commit and go on without it, in the same
processes, with the same process group and the same DDP object.

    def make_state():
        model = DistributedDataParallel(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return goccl.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    @goccl.elastic.run
    def train(state):
        while state.step < STEPS:
            train_one(state.model, state.optimizer)
            state.step += 1
            state.commit()

    train(make_state)

Names and meaning are those of Horovod's elastic training; the page "Move from Horovod or Rabit" of
the documentation has a table of what differs. The state is kept in memory only.
"""

from __future__ import annotations

from goccl.elastic._run import run
from goccl.elastic._sampler import ElasticSampler
from goccl.elastic._sharded import ShardedState
from goccl.elastic._state import MembershipChanged, ObjectState, State, TorchState
from goccl.elastic._torch import mend_tables

__all__ = [
    "ElasticSampler",
    "MembershipChanged",
    "ObjectState",
    "ShardedState",
    "State",
    "TorchState",
    "mend_tables",
    "run",
]
