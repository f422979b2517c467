"""How ranks meet at rank 0: a store that it serves while a communicator is made.

Whoever connects must first prove to know GOCCL_SECRET, and so must rank 0. Without a secret whoever
reaches the port gets in, as at a store of torch. What connects and proves nothing costs a
connection, of which few are open at once and none for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

from goccl import errors

_HELLO = b"goccl.numpy 1\n"
_NONCE = 32
_PROOF = struct.Struct(f"<I{_NONCE}s32s")  # rank, nonce, MAC
_REQUEST = struct.Struct("<cHI")  # what, bytes of the key, bytes of the value
_ANSWER = struct.Struct("<?I")  # whether there is a value, its bytes
_WELCOME, _AGAIN, _STRANGER = b"W", b"A", b"S"
_SET, _GET, _BYE = b"S", b"G", b"B"

_LONG_SECRET = 32  # bytes; a shorter one may be a word: then each guess is to cost much
_STRETCHING = 600_000
_MOST_STRANGERS = 256
_MOST_KEY = 2048
_MOST_VALUE = 64 << 20
_MOST_BYTES = 256 << 20  # of all values
_GREETING = 5.0  # seconds for a stranger to prove who it is
_TRANSFER = 30.0  # seconds for a request and its answer to pass
_LINGER = 30.0  # seconds for ranks that still read, once rank 0 has met them
_UNKNOWN = 30.0  # seconds until a name must be known
_PAUSE = 0.05


def key_of(secret: str) -> bytes:
    """Returns the key by which ranks prove that they know a secret; "": there is none."""
    given, salt = os.fsencode(secret), b"goccl.numpy meeting"
    if not secret or len(given) >= _LONG_SECRET:
        return hmac.digest(given, salt, "sha256")
    return hashlib.pbkdf2_hmac("sha256", given, salt, _STRETCHING)


def _mac(key: bytes, who: bytes, theirs: bytes, rank: int, own: bytes) -> bytes:
    return hmac.digest(key, who + theirs + struct.pack("<I", rank) + own, "sha256")


class Server:
    """The store of rank 0, which is a store itself. A thread serves it from the start.

    Args:
        host: where it listens, if that is a name or an address of this host; else everywhere.
        port: where.
        key: of key_of().

    Raises:
        goccl.Error: it cannot listen there.
    """

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self._listeners = _listen(host, port)
        self._key = key
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._strangers: dict[int, asyncio.StreamWriter] = {}
        self._members: dict[int, asyncio.StreamWriter] = {}  # by rank
        self._gone: set[int] = set()  # ranks that have met the others
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="goccl.numpy meeting", daemon=True)
        self._thread.start()

    def set(self, key: str, value: bytes, /) -> None:
        """Stores a value. ValueError where it is too much."""
        size = self._bytes + len(value) - len(self._values.get(key, b""))
        if size > _MOST_BYTES or len(self._values) > 1 << 20:
            raise ValueError("the store is full")
        self._values[key] = value
        self._bytes = size

    def get(self, key: str, /) -> bytes | None:
        """Returns a value; None where there is none."""
        return self._values.get(key)

    def close(self) -> None:
        """Gives the port back. Ranks that are still there can read for a while."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._closed.wait(_GREETING)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))

    async def _serve(self) -> None:
        servers = [await asyncio.start_server(self._attend, sock=s) for s in self._listeners]
        await self._closing.wait()
        for server in servers:
            server.close()
        self._closed.set()
        end = time.monotonic() + _LINGER
        while self._members and time.monotonic() < end:
            await asyncio.sleep(_PAUSE)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = None
        if len(self._strangers) >= _MOST_STRANGERS:
            self._strangers.pop(next(iter(self._strangers))).transport.abort()
        self._strangers[id(writer)] = writer
        try:
            rank = await asyncio.wait_for(self._greet(reader, writer), _GREETING)
            self._strangers.pop(id(writer), None)
            while rank is not None and await self._answer(rank, reader, writer):
                pass
        except (OSError, EOFError, ValueError, asyncio.TimeoutError):
            pass  # it has gone, or is none of ours
        finally:
            self._strangers.pop(id(writer), None)
            if rank is not None and self._members.get(rank) is writer:
                del self._members[rank]
            writer.transport.abort() if rank is None else writer.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> int | None:
        """Returns the rank of who has connected; None where it is to come again, or is none."""
        nonce = os.urandom(_NONCE)
        writer.write(_HELLO + nonce)
        rank, theirs, mac = _PROOF.unpack(await reader.readexactly(_PROOF.size))
        if not hmac.compare_digest(mac, _mac(self._key, b"rank", nonce, rank, theirs)):
            answer = _STRANGER
        elif self._closing.is_set() or rank in self._gone or rank in self._members:
            answer = _AGAIN
        else:
            self._members[rank] = writer
            writer.write(_WELCOME + _mac(self._key, b"root", theirs, rank, nonce))
            return int(rank)
        writer.write(answer + bytes(32))
        await writer.drain()
        await reader.read(1)  # it closes: what is written must not be lost
        return None

    async def _answer(
        self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answers a request. Returns whether there may be another one."""
        what, length, size = _REQUEST.unpack(await reader.readexactly(_REQUEST.size))
        if what == _BYE:
            self._gone.add(rank)
            return False
        if length > _MOST_KEY or size > _MOST_VALUE:
            raise ValueError("too long")
        body = await asyncio.wait_for(reader.readexactly(length + size), _TRANSFER)
        key, found = body[:length].decode(), None
        if what == _SET:
            self.set(key, body[length:])
        else:
            found = self.get(key)
        writer.write(_ANSWER.pack(found is not None, len(found or b"")) + (found or b""))
        await asyncio.wait_for(writer.drain(), _TRANSFER)
        return True


@contextlib.contextmanager
def _unless(*numbers: int) -> Iterator[None]:
    """Passes over errors of the system by their numbers."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise


def _listen(host: str, port: int) -> list[socket.socket]:
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:  # only other hosts know the name
        places = []
    made: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((place[0], place[4]) for place in places):
            with _unless(errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                made.append(socket.create_server(address[:2], family=family, backlog=4096))
        if not made:  # the address is that of a proxy
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            made.append(
                socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=4096)
            )
    except OSError as error:
        for listener in made:
            listener.close()
        raise errors.Error(
            f"init: rank 0 cannot listen at {host}, port {port}: {os.strerror(error.errno or 0)}. "
            "Give all ranks another MASTER_PORT, and look whether two processes are rank 0",
            operation="init",
        ) from None
    return made


class Client:
    """The store of rank 0, as another rank has it.

    Args:
        host: of rank 0.
        port: where it listens.
        rank: this one.
        key: of key_of().
        timeout: seconds until it must be there.

    Raises:
        goccl.OperationTimeoutError: it is not.
        goccl.MismatchError: it has another secret.
        goccl.Error: the name of the host is not known, or somebody else listens there.
    """

    def __init__(self, host: str, port: int, rank: int, key: bytes, timeout: float) -> None:
        self._where = f"{host}, port {port}"
        begun, why = time.monotonic(), ""
        while True:
            left = timeout - (time.monotonic() - begun)
            if left <= 0:
                raise errors.OperationTimeoutError(
                    f"init: rank {rank} has not met rank 0 at {self._where} within {timeout:g} s: "
                    f"{why or 'there is no answer'}",
                    operation="init",
                    absent=[0],
                    group_absent=[0],
                )
            try:
                self._socket = socket.create_connection((host, port), min(left, _GREETING))
            except socket.gaierror as error:
                why = f"the name {host!r} is not known: {error.strerror}"
                if time.monotonic() - begun > _UNKNOWN:
                    raise errors.Error(
                        f"init: {why}. Set MASTER_ADDR to the host of rank 0", operation="init"
                    ) from None
            except TimeoutError:
                why = why or "there is no answer"  # what was said before says more
            except OSError as error:
                why = f"{error.strerror or error}"
            else:
                try:
                    # Where nobody listens a socket of this host may meet itself, by chance.
                    alone = self._socket.getsockname() == self._socket.getpeername()
                    if not alone and self._greet(rank, key):
                        return
                    why = f"another process is rank {rank}, or rank 0 has not begun"
                except TimeoutError:
                    why = why or "it does not greet"
                except (OSError, EOFError) as error:
                    why = f"it does not greet: {error}"
                except BaseException:
                    self._socket.close()
                    raise
                self._socket.close()
            time.sleep(min(_PAUSE, max(left, 0)))

    def _greet(self, rank: int, key: bytes) -> bool:
        """Proves who this is, and returns whether rank 0 takes it now."""
        greeting = self._exactly(len(_HELLO) + _NONCE)
        theirs, own = greeting[len(_HELLO) :], os.urandom(_NONCE)
        if not greeting.startswith(_HELLO):
            raise errors.Error(
                f"init: at {self._where} another program listens than rank 0. Give all ranks "
                "another MASTER_PORT",
                operation="init",
            )
        self._socket.sendall(_PROOF.pack(rank, own, _mac(key, b"rank", theirs, rank, own)))
        answer = self._exactly(33)
        if answer[:1] == _AGAIN:
            return False
        root = _mac(key, b"root", own, rank, theirs)
        if answer[:1] == _WELCOME and hmac.compare_digest(answer[1:], root):
            self._socket.settimeout(_TRANSFER)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return True
        raise errors.MismatchError(
            f"init: rank 0 at {self._where} and rank {rank} have different secrets: GOCCL_SECRET, "
            "or the option secret, must be the same on all ranks",
            operation="init",
        )

    def set(self, key: str, value: bytes, /) -> None:
        """Stores a value."""
        self._ask(_SET, key, value)

    def get(self, key: str, /) -> bytes | None:
        """Returns a value; None where there is none."""
        return self._ask(_GET, key, b"")

    def close(self) -> None:
        """Tells rank 0 that this rank needs it no more."""
        with contextlib.suppress(OSError):
            self._socket.sendall(_REQUEST.pack(_BYE, 0, 0))
        self._socket.close()

    def _ask(self, what: bytes, key: str, value: bytes) -> bytes | None:
        name = key.encode()
        try:
            self._socket.sendall(_REQUEST.pack(what, len(name), len(value)) + name + value)
            there, size = _ANSWER.unpack(self._exactly(_ANSWER.size))
            found = self._exactly(size)
        except (OSError, EOFError) as error:
            raise OSError(f"rank 0 at {self._where} answers no more: {error}") from error
        return found if there else None

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise EOFError("the connection was closed")
            data += part
        return bytes(data)
