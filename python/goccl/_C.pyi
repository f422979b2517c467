"""The C++ part of goccl. Importing it loads no Go: that happens at the first process group."""

from datetime import timedelta

from torch._C._distributed_c10d import Backend, Store

torch_version: str

def library_version() -> str: ...
def info() -> str: ...

class ProcessGroupGoccl(Backend):
    class Options(Backend.Options):
        """Options of one process group, for the argument pg_options of init_process_group() and new_group().

        timeout: how long making the group and every operation may take; 30 minutes.
        transport: "" for the best of each pair of ranks, or "shm" or "tcp" forced for all.
        interface: the network interface to use; "" for that of the route to the store.
        liveness_grace: a host that acknowledges nothing is given up after it; 10 seconds.
        secret: what ranks must prove to know; "" for one that rank 0 makes and hands on through the store.
        """

        timeout: timedelta
        transport: str
        interface: str
        liveness_grace: timedelta
        secret: str
        def __init__(
            self,
            *,
            timeout: timedelta = ...,
            transport: str = "",
            interface: str = "",
            liveness_grace: timedelta = ...,
            secret: str = "",
        ) -> None: ...

    def __init__(
        self, store: Store, rank: int, size: int, options: Options | None = None, group_name: str = ""
    ) -> None: ...
    def transport(self, peer: int) -> str: ...
    @property
    def options(self) -> Options: ...
