"""What a type checker and an IDE see of the package. Mypy reads this file, too: each `type: ignore`
here is an error to it where it finds nothing to ignore."""
# mypy: enable-error-code="arg-type, deprecated"

import pickle
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import goccl
import pytest
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from typing import Literal

    from typing_extensions import assert_type


def fresh(code):
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_names_that_there_are_not():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = goccl.nonsense  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        from goccl import nonsense  # type: ignore[attr-defined]  # noqa: F401


def test_choices_are_literals():
    for wrong in (
        lambda: goccl.Options(transport="ssh"),  # type: ignore[arg-type]
        lambda: goccl.Options(quorum="all"),  # type: ignore[arg-type]
        lambda: goccl.Options(recovery="always"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="allowed are"):
            wrong()
    options = goccl.Options(transport="tcp", quorum="any", recovery="survivors")
    assert (options.transport, options.quorum, options.recovery) == ("tcp", "any", "survivors")


def test_dir_is_the_public_list():
    names = [name for name in dir(goccl) if not name.startswith("__")]
    assert names == sorted(goccl.__all__)
    assert {"__version__", "__all__", "__doc__"} < set(dir(goccl))
    for name in names:
        assert getattr(goccl, name).__doc__, name


def test_star_brings_the_public_names_alone():
    code = "before = set(globals()); from goccl import *; print(*sorted(set(globals()) - before))"
    brought = set(fresh(code).split()) - {"before"}
    assert brought == set(goccl.__all__)


@pytest.mark.parametrize(
    "code",
    [
        "import goccl; goccl.errors.PeerFailedError",
        "import goccl; goccl.elastic.run; import goccl.elastic",
        "import goccl.errors; import goccl; goccl.errors.Error is goccl.Error or 1 / 0",
        "import goccl, torch; goccl.Options(); goccl.Communicator",
        "import torch, goccl; goccl.Options(); goccl.Communicator",
        "from goccl import errors, elastic",
    ],
)
def test_modules_come_when_they_are_used(code):
    assert fresh(f"{code}; print('well')") == "well"


def test_torchft_says_what_is_missing():
    code = """
import sys
sys.modules["torchft"] = None
import goccl
try:
    goccl.torchft
except ImportError as error:
    print(error)
"""
    assert "torchft" in fresh(code)


def test_import_brings_no_torch():
    assert fresh("import goccl, sys; dir(goccl); print('torch' in sys.modules)") == "False"


# -- old names


def test_old_name_of_a_context():
    with pytest.warns(DeprecationWarning, match=r"goccl\.MemPool is now goccl\.use_shareable"):
        old = goccl.MemPool  # type: ignore[deprecated]
    assert old is goccl.use_shareable_memory


def test_old_names_of_memory_stats():
    stats = goccl.memory_stats()
    of_adapters = {"registered_bytes", "read_by_peers_bytes", "read_from_peers_bytes"}
    assert set(stats) == {*of_adapters, "staged_bytes", "staged_peak_bytes"}
    for old, new in (
        ("registered", "registered_bytes"),
        ("given", "read_by_peers_bytes"),
        ("taken", "read_from_peers_bytes"),
    ):
        with pytest.warns(DeprecationWarning, match=new):
            assert stats[old] == stats[new]
    with pytest.raises(KeyError, match="nonsense"):
        stats["nonsense"]
    assert pickle.loads(pickle.dumps(stats)) == stats


def run_old(rank):
    rank.init()
    comm = goccl.Communicator()
    with pytest.warns(DeprecationWarning, match="joining is now num_waiting"):
        assert comm.joining == comm.num_waiting == 0  # type: ignore[deprecated]
    with pytest.warns(DeprecationWarning, match="version_number is now checkpoint_version"):
        assert comm.version_number == comm.checkpoint_version == 0  # type: ignore[deprecated]
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    with pytest.warns(DeprecationWarning, match="num_waiting"):
        assert backend.joining == 0
    if TYPE_CHECKING:
        assert_type(goccl.transports()[0], Literal["self", "mem", "shm", "tcp", "verbs"])


def test_old_names_of_methods(make_world):
    make_world(1).run(run_old)


# -- a description


def run_printed(rank):
    rank.init(timeout=60, pg_options=goccl.Options(transport="tcp", secret="s" * 40))
    described = goccl.describe()
    assert pickle.loads(pickle.dumps(described)) == described
    text = str(described)
    assert text == repr(described)
    first, *rest = text.splitlines()
    assert first == f"group {described.name!r}: rank {rank.rank} of {rank.size}, epoch 0"
    assert sum(line.startswith("rank ") for line in rest) in (2, 3)  # runs of alike ranks
    assert any(line.startswith(f"rank {rank.rank} ") and "this process" in line for line in rest)
    assert any('tcp: "tcp" is demanded' in line for line in rest)
    assert any(str(timedelta(seconds=60)) in line for line in rest)
    assert "set           transport=tcp (option)" in rest
    assert "s" * 40 not in text
    assert max(map(len, rest)) < 200


def test_a_description_prints_well(make_world):
    make_world(3).run(run_printed)


def test_a_description_of_many_ranks_stays_short():
    size = 4096
    described = goccl.Description(
        name="g", rank=5, size=size, epoch=3,
        global_ranks=list(reversed(range(size))), pids=list(range(0, 2 * size, 2)),
        hosts=[f"host{rank % 64}" for rank in range(size)],
        transports=["tcp"] * size, reasons=["they are on different hosts"] * size, device="",
        interface="eth0", addresses=["10.0.0.1:1"], congestion_control="cubic",
        oversubscribed=True, thresholds={}, alltoall_schedule="", algorithms="",
        timeout=timedelta(seconds=1), liveness_grace=timedelta(seconds=1), stands_in_for="",
        settings={},
    )  # fmt: skip
    lines = str(described).splitlines()
    assert len(lines) < 50
    assert any("more ranks" in line for line in lines)
    assert "set           nothing" in lines
