"""The device of tests does to its users what a real one would."""

import ctypes
import time

import device
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def built():
    """Ranks load what is built: one process builds it."""
    return device.build()


def alone(make_world, fn):
    """Runs a function in a process of its own, whose torch has the device."""
    make_world(1).run(fn)


def tensors(rank):
    device.load()
    assert str(torch.accelerator.current_accelerator()) == "testdev"
    assert torch.accelerator.device_count() == device.DEVICES
    x = torch.arange(12.0, device="testdev:1")
    assert x.device == torch.device("testdev", 1)
    assert x.cpu().tolist() == list(range(12))
    assert x.view(3, 4).t().reshape(12).cpu()[1] == 4
    assert torch.equal((x + 1).sum().cpu(), torch.tensor(78.0))
    assert x.resize_(20).shape == (20,)
    assert x.cpu()[:12].tolist() == list(range(12))
    c = torch.tensor([1 + 2j, 3 - 1j], device="testdev")
    assert c.conj().cpu().tolist() == [1 - 2j, 3 + 1j]
    assert torch.equal(c.conj().imag.cpu(), torch.tensor([-2.0, 1.0]))
    assert torch.empty(0, device="testdev").cpu().shape == (0,)
    assert torch.empty(0, device="testdev").copy_(torch.empty(0)).numel() == 0
    half = torch.ones(4, device="testdev", dtype=torch.bfloat16)
    assert torch.cat([half, half]).cpu().sum() == 8
    model = torch.nn.Linear(4, 3).to("testdev")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 4, device="testdev")).sum().backward()
    optimizer.step()
    assert model.weight.grad.cpu().tolist() == [[2.0] * 4] * 3


def test_tensors(make_world):
    """Operators give what those of the CPU do."""
    alone(make_world, tensors)


def streams(rank):
    device.load()
    host = torch.ones(1000).pin_memory()
    assert host.is_pinned()
    assert not torch.ones(2).is_pinned()
    device.configure(held=True)
    x = torch.empty(1000, device="testdev")
    stream = torch.Stream(device="testdev")
    with stream:
        assert torch.accelerator.current_stream() == stream
        x.copy_(host, non_blocking=True)
        event = torch.Event(device="testdev")
        event.record()
    assert not event.query()
    torch.accelerator.current_stream().wait_event(event)
    device.configure(delay=1000)
    y = x + 1  # behind the copy
    assert y.cpu().sum() == 2000
    assert event.query()
    device.configure(rate=10_000_000)
    began = time.monotonic()
    x.copy_(host, non_blocking=True)
    torch.accelerator.synchronize()
    assert time.monotonic() - began >= 4000 / 10e6
    device.configure(held=True)
    x.copy_(host, non_blocking=True)
    del host
    assert device.count()["pinned"] == 4000  # the stream still reads it
    device.configure()
    torch.accelerator.synchronize()
    counts = device.count()
    assert (counts["pinned"], counts["events"], counts["late_writes"]) == (0, 1, 0)


def test_streams(make_world):
    """Copies run late, in the order of their streams, and pinned memory lasts as long."""
    alone(make_world, streams)


def misuse(rank):
    device.load()
    host = torch.ones(1000).pin_memory()
    x = torch.zeros(1000, device="testdev")
    address = x.data_ptr()
    stream = torch.Stream(device="testdev")
    stream.wait_stream(torch.accelerator.current_stream())
    device.configure(held=True)
    with stream:
        x.copy_(host, non_blocking=True)
    del x  # though another stream than its own is about to write there
    device.configure()
    torch.accelerator.synchronize()
    assert device.count()["late_writes"] == 1
    assert torch.empty(1000, device="testdev").data_ptr() == address  # given out again at once
    device.configure(fail_copy=1)
    with pytest.raises(RuntimeError, match="this copy fails"):
        torch.ones(4).to("testdev")
    device.configure()
    x = torch.zeros(1000, device="testdev")
    device.configure(fail_copy=1, fail_late=True)
    x.copy_(host, non_blocking=True)
    with pytest.raises(RuntimeError, match="a copy has failed"):
        torch.accelerator.synchronize()
    with pytest.raises(RuntimeError, match="a copy has failed"):
        x.cpu()  # as CUDA's, the error stays
    device.configure(events=False, pinned=False)
    with pytest.raises(NotImplementedError, match="no events"):
        torch.Event(device="testdev").record()
    with pytest.raises(NotImplementedError, match="no pinned memory"):
        torch.ones(2).pin_memory()


def test_misuse(make_world):
    """Memory that is freed while a stream uses it, copies that fail, and devices that have less."""
    alone(make_world, misuse)


def touches(rank):
    device.load()
    ctypes.string_at(torch.ones(4, device="testdev").data_ptr(), 4)


def test_the_host_cannot_touch_its_memory(make_world):
    """Who takes a device's address for the host's is ended."""
    world = make_world(1)
    with pytest.raises(AssertionError, match=r"signal 11|SIGSEGV|-11"):
        world.run(touches)
    world.close(check=False)
