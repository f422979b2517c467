"""`goccl store`: says where it listens, is used, and ends."""

import signal
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist

COMMAND = [sys.executable, "-m", "goccl", "store"]


def started(*options):
    return subprocess.Popen(
        [*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_it_is_used_and_ends_when_told(end):
    store = started("--port", "0", "--host", "127.0.0.1")
    try:
        line = store.stdout.readline()
        host, port = line.split()[-1].split(":")
        assert line == f"the store listens on 127.0.0.1:{port}\n"
        gone = [dist.TCPStore(host, int(port), is_master=False) for _ in range(3)]
        gone[0].set("key", "value")
        del gone
        client = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=60))
        assert client.get("key") == b"value"
        # What is no client harms nothing, and is not worth a line.
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.get("key") == b"value"
        store.send_signal(end)
        assert store.communicate(timeout=60) == ("", "")
        assert store.returncode == 0
    finally:
        store.kill()
        store.wait()


def refused(*options):
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--port", "x"], 2, "'x' is not a port: allowed are 1 to 65535, and 0 for one"),
        (["--port", "65536"], 2, "'65536' is not a port: allowed are 1 to 65535"),
        (["--port", "0", "--host", "192.0.2.1"], 1, "cannot listen on 192.0.2.1, port 0: Cannot"),
        (["--port", "0", "--host", "no host"], 1, "cannot listen on no host, port 0: Name or"),
    ],
)
def test_wrong_arguments(options, status, text):
    given, error = refused(*options)
    assert given == status
    assert text in error


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        status, error = refused("--port", port)
    assert status == 1
    assert error == (
        f"goccl store: cannot listen on all addresses, port {port}: Address already in use"
    )
