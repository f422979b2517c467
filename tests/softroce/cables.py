"""The network between guests: Ethernet frames on pairs of sockets, with a switch for more than two
guests.

It belongs to the launcher, not to the guests, so that a test can cut and mend a cable at any
moment.
"""

import contextlib
import ctypes
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence

MAC_PREFIX = bytes.fromhex("5254000000")  # and the number of the port, from 1

# <linux/filter.h>, <asm-generic/socket.h>: a program whose one instruction is to keep nothing of a
# frame.
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
RETURN_0 = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
LOSE_ALL = struct.pack("HP", 1, ctypes.addressof(RETURN_0))


class Cable:
    """A network cable with a socket at each end. Cut, it loses all frames, and neither end is
    told."""

    def __init__(self) -> None:
        self.ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in self.ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            end.setblocking(False)

    def cut(self) -> None:
        # The host's kernel filters what a socket is sent, so a cable needs no process that moves
        # its frames.
        for end in self.ends:
            end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, LOSE_ALL)

    def mend(self) -> None:
        for end in self.ends:
            with contextlib.suppress(FileNotFoundError):  # it was not cut
                end.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)

    def close(self) -> None:
        for end in self.ends:
            end.close()


class Switch:
    """Passes frames from port to port."""

    QUEUE = 4096  # frames that wait for a port, for the socket itself may hold as few as 10

    def __init__(self, ports: Sequence[socket.socket]) -> None:
        self._ports = ports
        self._queues: dict[socket.socket, deque[bytes]] = {port: deque() for port in ports}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="softroce-switch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing:
            waiting = [port for port, queue in self._queues.items() if queue]
            for port in select.select(self._ports, waiting, [])[0]:
                with contextlib.suppress(BlockingIOError):
                    self._forward(port, port.recv(65536))
            for port, queue in self._queues.items():
                with contextlib.suppress(BlockingIOError):
                    while queue:
                        port.send(queue[0])
                        queue.popleft()

    def _forward(self, source: socket.socket, frame: bytes) -> None:
        if frame[:5] == MAC_PREFIX and 0 < frame[5] <= len(self._ports):
            targets = [self._ports[frame[5] - 1]]
        else:
            targets = [port for port in self._ports if port is not source]
        for target in targets:
            if len(self._queues[target]) < self.QUEUE:
                self._queues[target].append(frame)

    def close(self) -> None:
        self._closing = True
        for port in self._ports:
            port.shutdown(socket.SHUT_RD)  # wakes the thread
        self._thread.join()


@contextlib.contextmanager
def network(guests: int) -> Iterator[list[tuple[Cable, socket.socket]]]:
    """Every guest's cable, and its end of it. Two guests share a cable; others each have one to a
    switch."""
    with contextlib.ExitStack() as stack:
        cables = [Cable() for _ in range(1 if guests == 2 else guests)]
        for cable in cables:
            stack.callback(cable.close)
        if guests == 2:
            yield [(cables[0], end) for end in cables[0].ends]
        else:
            stack.callback(Switch([cable.ends[1] for cable in cables]).close)
            yield [(cable, cable.ends[0]) for cable in cables]
