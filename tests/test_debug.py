"""The page of torch's debug server."""

import json
import subprocess
import sys
import urllib.request

import pytest
import torch
import torch.distributed as dist

try:
    import goccl.debug
except ImportError:
    pytest.skip("this torch's debug server takes no handlers", allow_module_level=True)

from torch._C._distributed_c10d import _WorkerServer
from torch.distributed.debug import _frontend


def fetched(port, path):
    """What a rank's worker server answers, as torch's frontend has it."""
    request = urllib.request.Request(f"http://localhost:{port}/handler/{path}?", data=b"")
    with urllib.request.urlopen(request, timeout=100) as answer:
        return _frontend.Response(answer.status, answer.read().decode())


def serve_status(rank):
    rank.init(timeout=300)
    dist.all_reduce(torch.ones(8))
    server = _WorkerServer("::", 0)
    rank.tell(server.port)
    rank.hear()
    server.shutdown()


def test_page(make_world, monkeypatch):
    world = make_world(3)
    world.start(serve_status)
    ports = [world.told(rank) for rank in range(3)]

    def fetch_all(path, args="", *, timeout):
        return [f"rank {rank}" for rank in range(3)], [fetched(port, path) for port in ports]

    monkeypatch.setattr(goccl.debug, "fetch_all", fetch_all)
    one = json.loads(fetched(ports[1], "goccl_status").text)
    assert one["groups"][0]["rank"] == 1
    handler = goccl.debug.Handler()
    text = handler.dump()
    assert "all is well: all at #1" in text
    assert text.count("allreduce(float32, 8 elements, SUM)") == 3
    (route,) = handler.routes()
    assert [route.path] == [link.path for link in handler.nav_links()] == ["/goccl"]

    def fetch_some(path, args="", *, timeout):
        addresses, responses = fetch_all(path, timeout=timeout)
        return addresses, [*responses[:2], _frontend.Response(503, "it has ended")]

    monkeypatch.setattr(goccl.debug, "fetch_all", fetch_some)
    text = handler.dump()
    assert "PARTIAL DATA: 2/3 workers responded" in text
    assert "rank 2 does not answer" in text
    world.say(None)
    world.finish()


def test_the_handler_does_not_disturb_the_end():
    """torch lets go of it when the interpreter has ended."""
    done = subprocess.run(
        [sys.executable, "-c", "import goccl.debug"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
