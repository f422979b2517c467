"""Several hosts on one machine: namespaces with a network and a host name each, joined by a
switch."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import harness

_NETWORK = "10.77.0"


class NoHosts(Exception):
    """The system makes no such hosts; the text says why."""


class Host:
    """A host, which lasts as long as the process that holds its namespaces.

    Args:
        name: of the host.
        names: a file to be its /etc/hosts.
    """

    def __init__(self, name: str, names: Path):
        self.name = name
        script = 'hostname "$0"; mount --bind "$1" /etc/hosts; ip link set lo up; echo; exec cat'
        unshare = ["unshare", "--net", "--uts", "--mount", "sh", "-ec", script, name, str(names)]
        try:
            self._holder = subprocess.Popen(
                unshare,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except FileNotFoundError as error:
            raise NoHosts(str(error)) from error
        assert self._holder.stdout is not None
        self.pid = self._holder.pid
        if self._holder.stdout.readline() != "\n":
            _, said = self._holder.communicate()
            raise NoHosts(said.strip())

    def words(self, *words: str) -> list[str]:
        """A command that runs another one there."""
        enter = ["nsenter", "-t", str(self.pid), "--net", "--uts", "--mount", f"--wd={Path.cwd()}"]
        return [*enter, "--", *words]

    def run(self, *lines: str) -> None:
        """Runs lines of a shell there."""
        done = subprocess.run(
            self.words("sh", "-ec", "\n".join(lines)), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NoHosts(done.stderr.strip())

    def start(self, *words: str, **env: str) -> "subprocess.Popen[str]":
        """Starts a program there."""
        return harness.start(*self.words(*words), **env)

    def close(self) -> None:
        """Takes it down."""
        self._holder.communicate()


class Hosts:
    """Hosts node0, node1 ..., all with an interface eth0 at one switch.

    Attributes:
        hosts: by number.
    """

    def __init__(self, hosts: list[Host], switch: Host):
        self.hosts = hosts
        self._switch = switch

    def address(self, number: int) -> str:
        """The address of a host."""
        return f"{_NETWORK}.{number + 1}"

    def plug(self, number: int, name: str, bridge: str, mtu: int = 1500) -> None:
        """Gives a host an interface, at a bridge of the switch whose port takes packets of so many
        bytes."""
        port = f"{name}-{number}"
        self.hosts[number].run(
            f"ip link add {name} type veth peer name {port} netns {self._switch.pid}",
            f"ip link set {name} up",
        )
        self._switch.run(f"ip link set {port} mtu {mtu} master {bridge} up")

    def wire(self, a: int, b: int, mtu: int = 1500, rate: str = "") -> None:
        """A wire of their own for two hosts.

        Args:
            a: one.
            b: the other.
            mtu: larger packets vanish on the way, and nobody is told.
            rate: as tc takes it.
        """
        self._switch.run(f"ip link add wire{a}{b} type bridge", f"ip link set wire{a}{b} up")
        for one, other in ((a, b), (b, a)):
            self.plug(one, f"to{other}", f"wire{a}{b}", mtu)
            # What is cut into packets later than the switch would pass it at any length.
            self.hosts[one].run(
                f"ip link set to{other} gso_max_segs 1",
                f"ip route add {self.address(other)}/32 dev to{other} src {self.address(one)}",
                f"tc qdisc add dev to{other} root tbf rate {rate} burst 32k latency 50ms"
                if rate
                else "",
            )

    def shape(self, rate: str, mtu: int = 1500) -> None:
        """Lets each host neither send nor receive faster.

        Args:
            rate: as tc takes it.
            mtu: the most bytes of a packet.
        """
        # A bucket of one packet: what is short is shaped, too. The switch loses nothing.
        shape = f"root tbf rate {rate} burst {mtu + 100} limit 32mb"
        for number, host in enumerate(self.hosts):
            port = f"eth0-{number}"
            self._switch.run(f"ip link set {port} mtu {mtu}", f"tc qdisc add dev {port} {shape}")
            host.run(f"ip link set eth0 mtu {mtu}", f"tc qdisc add dev eth0 {shape}")

    def split(self, a: int, b: int) -> None:
        """Lets two hosts not reach each other."""
        for one, other in ((a, b), (b, a)):
            self.hosts[one].run(f"ip route add blackhole {self.address(other)}/32")

    def start(self, *words: str, **env: str) -> "list[subprocess.Popen[str]]":
        """Starts a program on all hosts, a rank each."""
        job = {
            "MASTER_ADDR": "node0",
            "MASTER_PORT": "29500",
            "WORLD_SIZE": str(len(self.hosts)),
            **env,
        }
        return [host.start(*words, **job, RANK=str(rank)) for rank, host in enumerate(self.hosts)]


@contextlib.contextmanager
def hosts(count: int, directory: Path) -> Iterator[Hosts]:
    """Makes hosts.

    Args:
        count: how many.
        directory: for files.

    Raises:
        NoHosts: the system makes none.
    """
    names = directory / "hosts"
    numbers = range(count)
    lines = [
        "127.0.0.1 localhost",
        *(f"{_NETWORK}.{number + 1} node{number}" for number in numbers),
    ]
    names.write_text("\n".join(lines) + "\n")
    with contextlib.ExitStack() as stack:

        def make(name: str) -> Host:
            host = Host(name, names)
            stack.callback(host.close)
            return host

        switch = make("switch")
        switch.run("ip link add main type bridge", "ip link set main up")
        made = Hosts([make(f"node{number}") for number in numbers], switch)
        for number, host in enumerate(made.hosts):
            made.plug(number, "eth0", "main")
            host.run(f"ip addr add {made.address(number)}/24 dev eth0")
        yield made
