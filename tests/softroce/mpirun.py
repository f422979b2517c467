#!/usr/bin/env python3
"""Runs Open MPI's mpirun among guests, a rank on each: they have no ssh, so this does what it needs
of that.

    guests.py -n 2 -- tests/softroce/mpirun.py [OPTION...] COMMAND...

The mpirun that is first in PATH runs on the first guest. To start its daemons it calls what it
takes for ssh, ``mpirun.py --on HOST WORD...``, for which ``mpirun.py`` waits on the other guests.
Nothing is proved: nobody else can reach guests.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

PORT = 29700
STARTS, RUNS = 60.0, 600.0  # seconds


def launch(arguments: list[str]) -> None:
    size = int(os.environ["WORLD_SIZE"])
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        sys.exit("there is no mpirun in PATH")
    hosts = ",".join(f"host{i}" for i in range(size))
    agent = f"{sys.executable} {Path(__file__).resolve()} --on"
    # The daemons stay in the foreground, so that the commands on the other guests end with them.
    options = ["--prtemca", "plm_ssh_agent", agent, "--leave-session-attached", "--bind-to", "none"]
    os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    os.execv(mpirun, [mpirun, *options, "--host", hosts, "-n", str(size), *arguments])


def serve() -> int:
    """Runs the one command that this guest is told."""
    with socket.create_server(("", PORT)) as listener:
        listener.settimeout(STARTS)
        caller, _ = listener.accept()
    with caller, caller.makefile("rw") as lines:
        caller.settimeout(STARTS)
        code = subprocess.run(lines.readline(), shell=True, timeout=RUNS, check=False).returncode
        print(code, file=lines, flush=True)
    return code


def call(host: str, words: list[str]) -> int:
    end = time.monotonic() + STARTS
    while True:
        try:
            callee = socket.create_connection((host, PORT), STARTS)
            break
        except ConnectionRefusedError:  # that guest has not come so far
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    with callee, callee.makefile("rw") as lines:
        # As with ssh the words are joined by spaces, and a shell there takes them apart.
        print(" ".join(words), file=lines, flush=True)
        callee.settimeout(RUNS)
        return int(lines.readline())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--on"]:
        sys.exit(call(sys.argv[2], sys.argv[3:]))
    if os.environ["RANK"] == "0":
        launch(sys.argv[1:])
    sys.exit(serve())
