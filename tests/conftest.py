"""Fixtures of all tests: worlds of rank processes."""

import signal

import harness
import pytest


def pytest_configure(config):
    # A job that a shell started in the background ignores it, and so would the programs that are
    # tested.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers",
        "also_on_device: run once more with all tensors of make_world's ranks on a device",
    )
    config.addinivalue_line(
        "markers", "slow: the slowest parts of the grids (-m 'not slow' leaves them out)"
    )


@pytest.fixture(scope="session")
def server():
    """The fork server of all ranks."""
    server = harness.Server()
    yield server
    server.close()


@pytest.fixture
def where():
    """The device of tensors for which ranks name none."""
    return "cpu"


@pytest.fixture
def make_world(server, request, where):
    """Makes worlds that end with the test."""
    worlds = []

    def make(size, env=None, **kw):
        if where != "cpu":
            env = {**(env or {}), harness.PLACE: where}
        world = harness.World(server, size, env=env, module=request.module.__name__, **kw)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        if world.pids:
            world.close(check=not getattr(request.node, "failed", False))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" and report.failed:
        item.failed = True
    return report


class Kept:
    """A world that lives through many tests, and is replaced after one has broken it."""

    def __init__(self, server, size, transport, module):
        self.size, self.transport = size, transport
        self._server, self._module = server, module
        self._world = None

    def run(self, fn, *args, deadline=harness.DEADLINE):
        if self._world is None:
            on_device = self.transport == harness.DEVICE
            env = {} if on_device else {"GOCCL_TRANSPORT": self.transport}
            self._world = harness.World(self._server, self.size, env=env, module=self._module)
            self._world.run(init_group, on_device)
        try:
            return self._world.run(fn, *args, deadline=deadline)
        except harness.WorldError:
            self._world.close(check=False)
            self._world = None
            raise

    def close(self):
        if self._world is not None:
            self._world.close()


def init_group(rank, on_device):
    if on_device:
        harness.use_device()
    rank.init()


def pytest_generate_tests(metafunc):
    """`world` runs a test once for every size and transport of the module's SIZES, and for those of
    its ON_DEVICE with tensors of a device. Tests marked so run once more with all tensors there."""
    if harness.DEVICE and metafunc.definition.get_closest_marker("also_on_device"):
        metafunc.parametrize("where", ["cpu", harness.DEVICE])
    if "world" not in metafunc.fixturenames:
        return
    params = [
        pytest.param(
            (size, transport), id=f"{size}-{transport}", marks=[pytest.mark.slow] * (size > 4)
        )
        for size in metafunc.module.SIZES
        for transport in (harness.TRANSPORTS if size > 1 else harness.TRANSPORTS[:1])
    ]
    if harness.DEVICE:
        params += [
            pytest.param((size, harness.DEVICE), id=f"{size}-{harness.DEVICE}")
            for size in getattr(metafunc.module, "ON_DEVICE", ())
        ]
    metafunc.parametrize("world", params, indirect=True, scope="module")


def pytest_collection_modifyitems(config, items):
    """Beyond 4 ranks only the dtypes of the module's WIDE are tested, and each with one transport a
    size: with another one at the next size, so that there is each pair of size, transport and
    dtype. On a device there are these dtypes, and no tests of one case."""

    def wanted(item):
        params = item.callspec.params if hasattr(item, "callspec") else {}
        on_device = params.get("world", ("", ""))[1] == harness.DEVICE
        if "world" not in params or "dtype" not in params:
            return not on_device
        size, transport = params["world"]
        if on_device:
            return params["dtype"] in item.module.WIDE
        if size <= 4:
            return True
        if params["dtype"] not in item.module.WIDE:
            return False
        turn = item.module.WIDE.index(params["dtype"]) + item.module.SIZES.index(size)
        return transport == harness.TRANSPORTS[turn % len(harness.TRANSPORTS)]

    config.hook.pytest_deselected(items=[i for i in items if not wanted(i)])
    items[:] = [i for i in items if wanted(i)]


@pytest.fixture(scope="module")
def world(server, request):
    """Ranks that are kept from test to test: cheap, for cases that leave the group working."""
    size, transport = request.param
    kept = Kept(server, size, transport, request.module.__name__)
    yield kept
    kept.close()
