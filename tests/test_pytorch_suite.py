"""PyTorch's own test suite of torch.distributed, from the wheel, on our backend.

Each test runs in ranks of its own, forked from a server that has the suite imported. The suite is
never imported into the test process: it changes torch's global settings.
"""

import ast
import importlib.util
import os
import re
import tempfile
from pathlib import Path

import harness
import pytest
import torch

# Tests that we leave out, each with its reason. None of them looks for what it needs.
NAMES = "makes no model for a name other than gloo, mpi and nccl; test_as_gloo runs it"
LEFT_OUT = {
    "test_accumulate_gradients_no_sync": NAMES,
    "test_accumulate_gradients_no_sync_allreduce_hook": NAMES,
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": NAMES,
    "test_accumulate_gradients_no_sync_grad_is_view": NAMES,
    "test_ddp_logging_data_cpu": 'expects the name "gloo"; of any plug-in the logger of DDP says '
    '"custom"',
    "test_SyncBatchNorm_process_group": "needs torchvision",
    "test_all_to_all_cuda": "needs a GPU per rank",
    "test_all_to_all_cuda_complex": "needs a GPU per rank",
    "test_all_to_all_full_group_cuda": "needs a GPU per rank",
    "test_batch_isend_irecv_op_err": "needs a GPU per rank",
    "test_batch_isend_irecv_mixed_backend_err": "makes a group of NCCL",
}

# Those of them that run as "gloo", where goccl stands in for it.
AS_GLOO = {name for name, why in LEFT_OUT.items() if why is NAMES}

# Tests that need 4 ranks and do not look for them.
NEEDS_4 = {"test_new_subgroups_with_group_param"}

# Why a test of the suite skips itself: a pattern of its reason, and our reason to be content.
SKIPS = {
    r"accelerator|CUDA|cuda|GPU|gpu": "needs an accelerator per rank",
    r"[Nn]ccl|NCCL": "is about NCCL",
    r"MPI|mpi": "is about MPI",
    r"[Ww]orld ?_?size|at least \d+ (?:processes|ranks|nodes)": "needs another number of ranks",
    r"github.com/pytorch/pytorch/(?:issues|pull)/|flaki|internal CI": "PyTorch has switched it "
    "off for all",
    r"torchvision": "needs torchvision",
    r"HPU|XPU|XCCL|xccl|ucc|UCC": "is about another backend",
}


def suite_tests():
    """The suite's tests, read from its source: by name, whether it asks for a number of ranks."""
    where = importlib.util.find_spec("torch").submodule_search_locations[0]  # type: ignore[index]
    path = Path(where) / "testing/_internal/distributed/distributed_test.py"
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "DistributedTest":
            base = next(
                n for n in node.body if isinstance(n, ast.ClassDef) and n.name == "_DistTestBase"
            )
            return {
                n.name: any("world" in ast.unparse(d) for d in n.decorator_list)
                for n in base.body
                if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")
            }
    raise LookupError("the suite has another shape in this torch")


def prepare():
    """In the fork server, before the ranks: imports the suite and tells it our backend's name."""
    name = os.environ["BACKEND"]
    from torch.testing._internal import common_distributed

    # Before the import of the suite, whose decorators look at once.
    for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add(name)
    from torch.testing._internal.distributed import distributed_test as suite

    for listed in (
        "PROFILING_SUPPORTED_BACKENDS",
        "CUDA_PROFILING_SUPPORTED_BACKENDS",
        "SEND_RECV_PROFILING_SUPPORTED_BACKENDS",
    ):
        backends = getattr(suite, listed)
        if name not in backends:
            backends.append(name)
        if name == "gloo":  # whose spans are still those of goccl
            backends.remove(name)
    if name == "gloo":
        replace_gloo()


made = 0  # groups of goccl that were asked for as Gloo


def replace_gloo():
    """Has goccl serve all groups of the suite, and has none of Gloo's own be made."""
    import goccl
    import torch.distributed.distributed_c10d as c10d

    class NoGloo(c10d.ProcessGroupGloo):
        def __init__(self, *_, **__):
            raise AssertionError("a group of Gloo itself is made")

    goccl.replace_gloo()
    c10d.ProcessGroupGloo = NoGloo  # type: ignore[misc]
    plugin = c10d.Backend._plugins["GOCCL"]

    def create(*args):
        global made
        backend = plugin.creator_fn(*args)
        made += 1
        return backend

    c10d.Backend._plugins["GOCCL"] = plugin._replace(creator_fn=create)


def run_one(rank, name, port, timeout):
    """Runs one test of the suite as the suite itself would in this rank: "" or why it was
    skipped."""
    os.environ.update(
        WORLD_SIZE=str(rank.size),
        RANK=str(rank.rank),
        TEMP_DIR=str(rank.dir),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    import torch.multiprocessing
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test as suite

    class Test(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def _barrier(self, *args, **kwargs):
            # The suite's own polls files ten times a second.
            kwargs.setdefault("timeout", timeout)
            suite.Barrier.sync(*args, **kwargs)

    suite.time.sleep = quick_sleep(suite.time.sleep)
    ours, theirs = torch.multiprocessing.Pipe()
    try:
        Test._run(rank.rank, name, str(rank.dir / "init_dir" / "store"), theirs)
    except SystemExit as e:
        if e.code == 0:
            assert made or os.environ["BACKEND"] != "gloo", "no group is made"
            return ""
        for skip in common_distributed.TEST_SKIPS.values():
            if e.code == skip.exit_code:
                return skip_reason(Test, name) or skip.message
        text = ours.recv() if ours.poll() else ""
        raise AssertionError(f"exit code {e.code}: {text}") from None
    return ""


def quick_sleep(sleep):
    """For the suite's file barrier, whose 0.1 s would be most of a test's time."""
    return lambda seconds: sleep(0.005 if seconds == 0.1 else seconds)


def skip_reason(case, name):
    return getattr(getattr(case, name), "__unittest_skip_why__", "")


class Servers:
    """Fork servers with the suite imported: its decorators look at the environment when it is."""

    def __init__(self):
        self._servers = {}

    def get(self, size, name):
        if (size, name) not in self._servers:
            env = {"BACKEND": name, "WORLD_SIZE": str(size), "TEMP_DIR": tempfile.gettempdir()}
            server = self._servers[size, name] = harness.Server(env)
            server.ask("import", __name__)
            server.ask("call", __name__, "prepare")
        return self._servers[size, name]

    def close(self):
        for server in self._servers.values():
            server.close()


@pytest.fixture(scope="module")
def suite_servers():
    servers = Servers()
    yield servers
    servers.close()


# The reason of a test that runs only where the backend's name is "gloo". There goccl stands in.
ASKS_FOR_GLOO = re.compile(r"to be one of \{'gloo'\}|[Oo]nly (?:Nccl & )?[Gg]loo backend")


def run_case(servers, name, size):
    if name in LEFT_OUT:
        pytest.skip(LEFT_OUT[name])
    reason = run_in_ranks(servers.get(size, harness.BACKEND), name, size)
    if ASKS_FOR_GLOO.search(reason):
        reason = run_in_ranks(servers.get(size, "gloo"), name, size)
    skip(reason)


def skip(reason):
    """Skips a test that skips itself, if its reason is known."""
    if reason:
        for pattern, why in SKIPS.items():
            if re.search(pattern, reason):
                pytest.skip(f"{why} ({reason})")
        pytest.fail(f"skips itself for a reason that is not in the table: {reason}")


def run_in_ranks(server, name, size):
    with harness.World(server, size) as world:
        for directory in ("barrier", "test_dir", "init_dir"):
            (world.dir / directory).mkdir()
        reasons = set(world.run(run_one, name, harness.free_port(), 60))
        # The suite leaves groups behind on purpose, and its hooks hold the world's directory.
        world.healthy = False
    return next((r for r in reasons if r), "")


TESTS = suite_tests()


@pytest.mark.parametrize("name", sorted(TESTS.keys() - NEEDS_4))
def test_suite_2_ranks(suite_servers, name):
    run_case(suite_servers, name, 2)


# A part of the suite once more with the name "gloo": what no other name runs, and a few of each
# kind.
SAMPLE = AS_GLOO | {
    "test_all_gather_object_default_pg",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_sum",
    "test_all_to_all_single_unequal_split",
    "test_barrier_full_group",
    "test_batch_isend_irecv_gloo",
    "test_broadcast_object_list",
    "test_ddp_uneven_inputs",
    "test_gather_object",
    "test_get_backend",
    "test_isend",
    "test_monitored_barrier_gloo",
    "test_new_subgroups",
    "test_send_recv_any_source",
}


@pytest.mark.skipif(harness.BACKEND != "goccl", reason="is about goccl in place of Gloo")
@pytest.mark.parametrize("name", sorted((SAMPLE & TESTS.keys()) - (LEFT_OUT.keys() - AS_GLOO)))
def test_as_gloo(suite_servers, name):
    skip(run_in_ranks(suite_servers.get(2, "gloo"), name, 2))


@pytest.mark.parametrize("name", sorted(NEEDS_4 | {n for n, asks in TESTS.items() if asks}))
def test_suite_4_ranks(suite_servers, name):
    run_case(suite_servers, name, 4)


# A test that is not in the wheel: of the reconfiguring of groups, by whatever back end is named
# there. CHECKOUT is where PyTorch's source is.
CHECKOUT = os.environ.get("GOCCL_TEST_PYTORCH", "")
FAULT_TOLERANCE = Path(CHECKOUT, "test/distributed/test_c10d_fault_tolerance.py")


FAULT_TOLERANCE_LEFT_OUT = {
    "test_reconfigure_rejects_multiple_backends": "looks at a group of two other back ends",
    "test_reconfigure_after_timeout": "NCCL has a watchdog; our hooks are called when somebody "
    "asks for a work that has failed",
}


def fault_tolerance_tests():
    if not CHECKOUT:
        return []
    return [
        node.name
        for node in ast.walk(ast.parse(FAULT_TOLERANCE.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if node.name not in FAULT_TOLERANCE_LEFT_OUT
    ]


def run_fault_tolerance(rank, name):
    import torch.distributed as dist
    from torch.testing._internal.common_utils import TestCase

    spec = importlib.util.spec_from_file_location("fault_tolerance", FAULT_TOLERANCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Name(str):
        """It is asked whether it is that of NCCL, whose groups break at abort(), as ours do."""

        def __eq__(self, other):
            return other == "nccl2" or str.__eq__(self, other)

        __ne__ = object.__ne__
        __hash__ = str.__hash__

    class Test(module.AbstractFaultToleranceTest, TestCase):  # type: ignore[name-defined]
        device_type, backend_name = "cpu", Name(harness.BACKEND)

    test = Test(name)
    test.rank, test.file_name = rank.rank, str(rank.dir / "file_store")
    getattr(test, name)()
    dist.destroy_process_group()


@pytest.mark.skipif(not CHECKOUT, reason="GOCCL_TEST_PYTORCH names no checkout of PyTorch")
@pytest.mark.skipif(
    not hasattr(torch.distributed, "_reconfigure"), reason="this torch reconfigures no groups"
)
@pytest.mark.parametrize("name", fault_tolerance_tests())
def test_fault_tolerance(server, name):
    with harness.World(server, 3) as world:
        world.run(run_fault_tolerance, name)
