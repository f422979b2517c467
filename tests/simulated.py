"""What `goccl simulate` says, beside what is measured: ``python tests/simulated.py [FILE.csv]``

Hosts are namespaces of this one, with a rank each and links that are shaped in both directions. For
each number of hosts, speed, collective, algorithm and size it prints the median of `goccl bench`,
the time of the simulation, and the error. Root, and minutes of a quiet machine, are needed. Where
the links are so fast that the CPUs of the one machine bind, it measures those.

The simulation is told what a user can find out: what plain connections carry, what `goccl tune`
finds of a message within a host, and how long a link takes for a packet. Its second time is by what
connections carry among all hosts at once, which is less than one way.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from goccl import _capi
from goccl._command import Progress
from goccl._tune import measure_link
from harness import finished
from hosts import Hosts, hosts

SPEEDS = {"100mbit": 1500, "1gbit": 9000}  # and the bytes of a packet, which cost CPUs
SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
# By hosts; each line is measured in one run.
DIRECT = {"allreduce": "two_shot", "allgather": "linear", "alltoall": "linear", "broadcast": "flat"}
ALGORITHMS = {
    2: (DIRECT, {"allreduce": "one_shot", "broadcast": "binomial_tree"}),
    4: (
        DIRECT,
        {
            "allreduce": "one_shot",
            "allgather": "hierarchical",
            "alltoall": "pairwise",
            "broadcast": "scatter_allgather",
        },
        {"allreduce": "hierarchical", "broadcast": "binomial_tree"},
    ),
}
# Hosts exchange so many bytes with each other by plain connections; one prints the bits a second at
# which it has received. Where both is 0, only the last host sends, to the first.
STREAM = """
import socket, sys, threading, time
me, hosts, size, both = map(int, sys.argv[1:])
links, times = {}, []
def accept():
    for _ in range(hosts - 1 - me):
        link, _ = server.accept()
        link.settimeout(60)
        links[link.recv(1)[0]] = link
def receive(link):
    left, piece = size, bytearray(1 << 16)
    while left:
        n = link.recv_into(piece, min(left, len(piece)))
        assert n, "the connection has ended"
        left -= n
server = socket.create_server(("", 29600), backlog=hosts)
server.settimeout(60)
accepts = threading.Thread(target=accept)
accepts.start()
for peer in range(me):
    until = time.monotonic() + 30
    while peer not in links:
        try:
            links[peer] = socket.create_connection((f"node{peer}", 29600), 60)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    links[peer].sendall(bytes([me]))
accepts.join()
assert len(links) == hosts - 1, "some hosts did not come"
work = []
for peer, link in links.items():
    if both or (me, peer) == (0, hosts - 1):
        work.append(threading.Thread(target=receive, args=(link,)))
    if both or (peer, me) == (0, hosts - 1):
        work.append(threading.Thread(target=link.sendall, args=(bytes(size),)))
begin = time.perf_counter()
for each in work:
    each.start()
for each in work:
    each.join()
received = (hosts - 1 if both else 1) * size
print(8 * received / (time.perf_counter() - begin))
"""


def speed(network: Hosts, both: bool) -> float:
    """Bits a second that plain connections bring a host, from one other or among all of them."""
    hosts = len(network.hosts)
    per = 16 << 20 if not both else (16 << 20) // (hosts - 1)
    words = [str(hosts), str(per), str(int(both))]
    ends = [
        h.start(sys.executable, "-c", STREAM, str(i), *words) for i, h in enumerate(network.hosts)
    ]
    done = finished(*ends, seconds=120)
    if any(end.returncode for end in done):
        sys.exit("\n".join(end.stderr for end in done))
    return float(done[0].stdout)


def measured(network: Hosts, algorithms: dict[str, str], directory: Path) -> dict:
    """Medians in microseconds, by collective and bytes."""
    out = directory / "rows.json"
    words = ["-m", "goccl", "bench", ",".join(algorithms), "--through", "c", "--peers", ""]
    words += ["--transport", "tcp", "--sizes", ",".join(map(str, SIZES)), "--blocks", "6"]
    words += ["--warmup", "1", "--iters", "2", "--limit", "6", "--json", str(out)]
    named = ";".join(f"{c}:{a}" for c, a in algorithms.items())
    done = finished(
        *network.start(sys.executable, *words, GOCCL_ALGO=named, GOCCL_SOCKET_IFNAME="eth0"),
        seconds=900,
    )
    if any(rank.returncode for rank in done):
        sys.exit("\n".join(rank.stderr for rank in done))
    rows = json.loads(out.read_text())["rows"]
    return {(row["collective"], row["bytes"]): row["median_us"] for row in rows}


def simulated(
    count: int, bits: float, packet: int, collective: str, algorithm: str, nbytes: int
) -> int:
    """Microseconds that the simulation says."""
    names = [f"node{i}" for i in range(count)]
    # Half of what a packet takes on a link: on its way are two, of which one only passes it on.
    latency = packet * 8 / bits * 1e6 / 2
    links = [
        {"between": [name, "switch"], "speed": f"{bits / 1e6:.0f}m", "latency_us": latency}
        for name in names
    ]
    net = {"format": "goccl.net/1", "hosts": names, "switches": ["switch"], "links": links}
    request = {
        "collective": collective,
        "ranks": count,
        "ranks_per_host": 1,
        "bytes": nbytes,
        "net": json.dumps(net),
    }
    os.environ["GOCCL_ALGO"] = f"{collective}:{algorithm}"
    return round(_capi.call("goccl_simulate", json.dumps(request).encode())["last_us"])


def main() -> None:
    latency, overhead, gap = measure_link("tcp", 9, 60.0, Progress(sys.stderr))
    links = f"loopback={latency}:{overhead}:{gap},tcp={latency}:{overhead}:{gap}"
    print(f"GOCCL_LINKS={links}, load {os.getloadavg()[0]:.1f}")
    os.environ["GOCCL_LINKS"] = links
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count, lines in ALGORITHMS.items():
            for rate, packet in SPEEDS.items():
                with hosts(count, Path(folder)) as network:
                    network.shape(rate, packet)
                    one, both = (
                        max(speed(network, ways) for _ in range(5)) for ways in (False, True)
                    )
                    carried = f"{one / 1e6:.0f} Mbit/s one way, {both / 1e6:.0f} among all"
                    print(f"{count} hosts, {rate}: plain connections carry {carried}", flush=True)
                    for algorithms in lines:
                        times = measured(network, algorithms, Path(folder))
                        for (collective, nbytes), us in times.items():
                            what = (packet, collective, algorithms[collective], nbytes)
                            says = [simulated(count, bits, *what) for bits in (one, both)]
                            row = {
                                "hosts": count,
                                "speed": rate,
                                "collective": collective,
                                "algorithm": algorithms[collective],
                                "bytes": nbytes,
                                "measured_us": round(us),
                                "simulated_us": says[0],
                                "error_percent": round(100 * (says[0] / us - 1), 1),
                                "simulated_among_all_us": says[1],
                                "error_among_all_percent": round(100 * (says[1] / us - 1), 1),
                            }
                            rows.append(row)
                            print(*row.values(), flush=True)
    report(rows)
    if len(sys.argv) > 1:
        with Path(sys.argv[1]).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def report(rows: list[dict]) -> None:
    """Prints the errors, and how often the faster of two algorithms is told."""
    for rate in SPEEDS:
        for name in ("error_percent", "error_among_all_percent"):
            errors = sorted(abs(row[name]) for row in rows if row["speed"] == rate)
            most = (
                f"{errors[int(0.9 * len(errors))]:.1f} % in nine of ten, {errors[-1]:.1f} % in all"
            )
            print(f"{rate}, {name}: up to {statistics.median(errors):.1f} % in half, {most}")
    right = pairs = 0
    for a in rows:
        for b in rows:
            same = all(a[name] == b[name] for name in ("hosts", "speed", "collective", "bytes"))
            if same and b["measured_us"] > 1.15 * a["measured_us"]:
                pairs += 1
                right += b["simulated_us"] > a["simulated_us"]
    print(f"of {pairs} pairs of algorithms that differ by 15 % or more {right} are told in order")


if __name__ == "__main__":
    main()
