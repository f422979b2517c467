#!/usr/bin/env python3
"""Hosts with an RDMA device, on a machine that has none and whose kernel knows none.

A guest is a user-mode Linux kernel with rdma_rxe (SoftRoCE) in it: ordinary processes, up in half a
second, without root. ``build_kernel.sh`` builds the kernel once, in minutes.

From the command line::

    tests/softroce/guests.py -- ibv_devinfo                          # several arguments: a command
    tests/softroce/guests.py -n 2 -- 'ping -c 1 host$((1 - RANK))'   # one argument: a line of shell
    tests/softroce/guests.py -n 2 -e 'loss 1%' -w out -- ./verbs.test -test.v

The exit code is the first one that is not 0; 124 stands for a timeout, 125 for a guest that died.

From a test::

    with Guests(["./server", "./client host0"], deadline=60) as guests:
        guests[1].wait_for("connected")
        guests[0].power_off()  # or cut(), and mend() later
        assert guests[1].wait(timeout=10) == 3

A guest

- has one CPU, and sees the machine's file tree, with the same working directory and environment.
  What it writes stays in its memory and is lost, except in ``writable`` folders and in /share,
  which outside is ``Guest.share``: a file there can tell a running command something.
- is called host0, host1, ..., with address 192.168.77.1, .2, ... on vec0, MTU 9000. Its RDMA device
  is rxe0, whose GID 1 is the IPv4 address. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set.
- runs its command when all guests are on the network, and stays there after it, until all are
closed.
- takes its memory from the machine as it is touched. /dev/shm and the overlay may each fill half of
it.

Everything is killed and removed when the launcher ends, however it ends, or soon after the
deadline.
"""

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import BinaryIO, TypeVar

from cables import MAC_PREFIX, Cable, network

HERE = Path(__file__).resolve().parent
MAX_GUESTS = 8
TIMED_OUT, DIED = 124, 125
BOOT_TIMEOUT = 60.0
GRACE = 5.0  # from the deadline until the guard acts
POLL = 0.01

# Kills the process groups that it is told of, when the launcher's end of the pipe closes or the
# time is up.
GUARD = """
trap '' INT TERM HUP
while read -r -t "$2" pid; do groups+=" -$pid"; done
[ -z "$groups" ] || kill -KILL -- $groups
cat >/dev/null
rm -rf "$1"
"""

Command = str | Sequence[str]  # a line of shell, or a command and its arguments
T = TypeVar("T")


class GuestError(Exception):
    """A command or a guest ended otherwise than the test expects."""


class Guest:
    """A user-mode kernel, and the command in it."""

    def __init__(
        self,
        rank: int,
        kernel: Sequence[str],
        share: Path,
        cable: Cable,
        wire: socket.socket,
        end: float,
    ):
        self.rank = rank
        self.share = share
        self._cable = cable
        self._end = end
        # Held open, to be read when the folder is gone.
        self._files = {
            name: (share / name).open("w+b") for name in ("stdout", "stderr", "code", "console")
        }
        self._kernel = subprocess.Popen(
            kernel,
            stdin=subprocess.DEVNULL,
            stdout=self._files["console"],
            stderr=self._files["console"],
            start_new_session=True,
            pass_fds=[wire.fileno()],
            env={**os.environ, "TMPDIR": memory_folder()},
        )
        self.pid = self._kernel.pid

    def read(self, name: str, start: int = 0) -> bytes:
        """What there is so far of "stdout", "stderr" or "console"."""
        fd = self._files[name].fileno()
        return os.pread(fd, os.fstat(fd).st_size, start)

    @property
    def stdout(self) -> str:
        return self.read("stdout").decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.read("stderr").decode(errors="replace")

    @property
    def alive(self) -> bool:
        """Whether the kernel runs, be its command at an end or not."""
        if self._kernel.returncode is not None:
            return False
        # It is reaped by close() only, so that its number stays its own until the guard has used
        # it.
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended:
            self.cut()  # or frames would pile up at the dead end, and hold up their sender
        return not ended

    @property
    def code(self) -> int | None:
        """The exit code of the command: None while it runs, DIED if the guest ended before it."""
        alive = self.alive  # first, for the code may come between the two
        text = self.read("code")
        if text.endswith(b"\n"):
            return int(text)
        return None if alive else DIED

    def wait(self, timeout: float = inf) -> int:
        """Waits for the end of the command, and returns its exit code."""
        code = until(lambda: self.code, self._deadline(timeout))
        if code is None:
            raise TimeoutError(f"the command is still running\n{self}")
        return code

    def wait_for(self, pattern: str, timeout: float = inf) -> re.Match[str]:
        """Waits until the command has written what matches to its standard output."""

        def outcome() -> re.Match[str] | bool | None:
            ended = self.code is not None  # first, for the last words may come between the two
            return re.search(pattern, self.stdout, re.MULTILINE) or (False if ended else None)

        match = until(outcome, self._deadline(timeout))
        if match is None:
            raise TimeoutError(f"the command has not written {pattern!r}\n{self}")
        if not isinstance(match, re.Match):
            raise GuestError(f"the command ended and has not written {pattern!r}\n{self}")
        return match

    def _deadline(self, timeout: float) -> float:
        return min(self._end, time.monotonic() + timeout)

    def cut(self) -> None:
        """Cuts the network cable: all frames are lost, and nobody is told. Two guests share one
        cable."""
        self._cable.cut()

    def mend(self) -> None:
        self._cable.mend()

    def power_off(self) -> None:
        """Ends the guest at once: it says no last word to its peers."""
        os.killpg(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.cut()

    def reap(self) -> None:
        self._kernel.wait()

    def __str__(self) -> str:
        """The end of all that the guest has written."""
        parts = [f"-- host{self.rank}: exit code {self.code}"]
        for name in ("stdout", "stderr", "console"):
            lines = self.read(name).decode(errors="replace").splitlines()[-40:]
            if lines:
                parts += [f"-- host{self.rank}: {name}", *lines]
        return "\n".join(parts)


class Guests:
    """Starts a guest for each command, waits until all are on the network, and starts the commands.

    memory: of each guest, in MiB
    netem: what `tc netem` does to all that a guest sends, such as "loss 1%" or "delay 2ms"
    writable: folders of the machine that the guests may write to
    env: added to the environment
    deadline: seconds until everything is killed
    """

    def __init__(
        self,
        commands: Sequence[Command],
        *,
        memory: int = 1024,
        netem: str = "",
        writable: Iterable[Path | str] = (),
        env: Mapping[str, str] | None = None,
        deadline: float = 120,
    ) -> None:
        if not 1 <= len(commands) <= MAX_GUESTS:
            raise ValueError(f"{len(commands)} guests, not 1 to {MAX_GUESTS}")
        self.end = time.monotonic() + deadline
        self._guests: list[Guest] = []
        kernel = find_kernel()
        settings = f"HOSTS={len(commands)}\nNETEM={shlex.quote(netem)}\n"
        folders = "".join(f"{Path(folder).resolve(strict=True)}\n" for folder in writable)
        # perftest reads the clock rate there, and a guest's own file has none.
        cpuinfo = Path("/proc/cpuinfo").read_text().split("\n\n")[0] + "\n"
        with contextlib.ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="goccl-softroce."))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            ends = stack.enter_context(network(len(commands)))
            stack.callback(self._reap)
            guard = stack.enter_context(guarded(folder, deadline + GRACE))
            for rank, (command, (cable, wire)) in enumerate(zip(commands, ends, strict=True)):
                share = folder / str(rank)
                shutil.copytree(HERE / "guest", share)
                world = {"RANK": str(rank), "WORLD_SIZE": str(len(commands))}
                write_script(share / "command", command, {**world, **(env or {})})
                (share / "settings").write_text(f"RANK={rank}\n{settings}")
                (share / "writable").write_text(folders)
                (share / "cpuinfo").write_text(cpuinfo)
                argv = kernel_command(kernel, share, rank, memory, wire)
                guest = Guest(rank, argv, share, cable, wire, self.end)
                guard(guest.pid)
                self._guests.append(guest)
            self._start_commands()
            self._closing = stack.pop_all()

    def _start_commands(self) -> None:
        def ready() -> bool | None:
            return all((guest.share / "up").exists() or not guest.alive for guest in self) or None

        if not until(ready, min(self.end, time.monotonic() + BOOT_TIMEOUT)):
            raise TimeoutError(f"the guests are not up\n{self}")
        if not all(guest.alive for guest in self):
            raise GuestError(f"a guest died as it started\n{self}")
        for guest in self:
            (guest.share / "go").touch()

    def wait(self, timeout: float = inf) -> list[int]:
        """Waits for the end of all commands, and returns their exit codes."""
        end = time.monotonic() + timeout
        return [guest.wait(end - time.monotonic()) for guest in self]

    def check(self, timeout: float = inf) -> None:
        """Waits for the end of all commands; a GuestError unless all exit with 0."""
        if any(self.wait(timeout)):
            raise GuestError(f"a command has failed\n{self}")

    def close(self) -> None:
        self._closing.close()

    def _reap(self) -> None:
        for guest in self:
            guest.reap()

    def __enter__(self) -> "Guests":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._guests)

    def __getitem__(self, rank: int) -> Guest:
        return self._guests[rank]

    def __iter__(self) -> Iterator[Guest]:
        return iter(self._guests)

    def __str__(self) -> str:
        return "\n".join(map(str, self))


@contextlib.contextmanager
def guarded(folder: Path, seconds: float) -> Iterator[Callable[[int], object]]:
    """Starts a guard, which outlives this process, and yields a function that tells it of a process
    group."""
    guard = subprocess.Popen(
        ["bash", "-c", GUARD, "softroce-guard", folder, str(seconds)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdin
    pipe = guard.stdin.fileno()
    try:
        yield lambda group: os.write(pipe, f"{group}\n".encode())
    finally:
        guard.stdin.close()
        guard.wait()


def find_kernel() -> str:
    found = subprocess.run(
        [HERE / "build_kernel.sh", "--find"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise GuestError(found.stderr.strip())
    return found.stdout.strip()


def kernel_command(
    kernel: str, share: Path, rank: int, memory: int, wire: socket.socket
) -> list[str]:
    # Kernel and processes of a guest take turns; across two CPUs each turn would wake an idle one,
    # and take twice the time.
    cpus = sorted(os.sched_getaffinity(0))
    mac = (MAC_PREFIX + bytes([rank + 1])).hex(":")
    return [
        *("taskset", "-c", str(cpus[(os.getpid() + rank) % len(cpus)])),
        *(kernel, f"mem={memory}M", f"umid={rank}", f"uml_dir={share.parent}/uml"),
        *(
            "root=/dev/root",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            f"init={share}/init",
            f"share={share}",
        ),
        *("con=null", "con0=null,fd:1", "ssl=null", "quiet", "loglevel=4"),
        f"vec0:transport=fd,fd={wire.fileno()},mtu=9000,depth=128,gro=0,mac={mac}",
    ]


def write_script(path: Path, command: Command, env: Mapping[str, str]) -> None:
    """Writes a script that runs the command as it would run outside."""
    sbin = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    master = {"MASTER_ADDR": "192.168.77.1", "MASTER_PORT": "29500"}
    variables = {**os.environ, "PATH": sbin, **master, **env}
    lines = [
        f"export {k}={shlex.quote(v)}"
        for k, v in variables.items()
        if re.fullmatch(r"[A-Za-z_]\w*", k)
    ]
    lines.append(f"cd {shlex.quote(str(Path.cwd()))}")
    lines.append(
        f"exec {shlex.join(['bash', '-c', command] if isinstance(command, str) else command)}"
    )
    path.write_text("\n".join([*lines, ""]), errors="surrogateescape")


def memory_folder() -> str:
    """Where the guests' memory is: a user-mode kernel cannot run from a mount that forbids
    execution."""
    shm = "/dev/shm"
    return tempfile.gettempdir() if os.statvfs(shm).f_flag & os.ST_NOEXEC else shm


def until(value: Callable[[], T | None], end: float) -> T | None:
    """Waits until there is a value, or for the end."""
    while (found := value()) is None and time.monotonic() < end:
        time.sleep(POLL)
    return found


class Echo:
    """Passes on what a command writes; in whole lines with a prefix, where several commands
    write."""

    def __init__(self, guest: Guest, name: str, target: BinaryIO, prefix: str):
        self._guest, self._name, self._target, self._prefix = guest, name, target, prefix.encode()
        self._passed = 0

    def pump(self, last: bool = False) -> None:
        data = self._guest.read(self._name, self._passed)
        if self._prefix and not last:
            data = data[: data.rfind(b"\n") + 1]
        self._passed += len(data)
        self._target.writelines(self._prefix + line for line in data.splitlines(keepends=True))
        self._target.flush()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    sizes = range(1, MAX_GUESTS + 1)
    add(
        "-n",
        type=int,
        default=1,
        choices=sizes,
        metavar="N",
        dest="guests",
        help="how many guests, 1 to 8",
    )
    add(
        "-m",
        type=int,
        default=1024,
        dest="memory",
        metavar="MIB",
        help="memory of a guest, 1024 if not given",
    )
    add(
        "-w",
        action="append",
        default=[],
        dest="writable",
        metavar="DIR",
        help="a folder to write to",
    )
    add(
        "-e",
        default="",
        dest="netem",
        metavar="SPEC",
        help="tc netem on every guest, such as 'loss 1%%'",
    )
    add(
        "-t",
        type=float,
        default=500,
        dest="deadline",
        metavar="S",
        help="seconds until the guests are killed",
    )
    add(
        "-v",
        action="store_true",
        dest="verbose",
        help="show the end of all output, with the consoles",
    )
    add("command", nargs="+", help="one argument is a line of shell")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    command = args.command[0] if len(args.command) == 1 else args.command
    with Guests(
        [command] * args.guests,
        memory=args.memory,
        netem=args.netem,
        writable=args.writable,
        deadline=args.deadline,
    ) as guests:
        echoes = [
            Echo(guest, name, stream.buffer, f"[{guest.rank}] " if len(guests) > 1 else "")
            for guest in guests
            for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr))
        ]

        def codes() -> list[int] | None:
            found = [guest.code for guest in guests]
            for echo in echoes:
                echo.pump(last=None not in found)
            return [code for code in found if code is not None] if None not in found else None

        ended = until(codes, guests.end)
        if args.verbose or ended is None or DIED in ended:
            print(guests, file=sys.stderr)
    if ended is None:
        print(f"killed after {args.deadline:g} s", file=sys.stderr)
        return TIMED_OUT
    return next(filter(None, ended), 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (GuestError, TimeoutError) as error:
        sys.exit(str(error))
