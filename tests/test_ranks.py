"""Processes that are forked, and how they end. What ranks do is tested with the bench."""

from __future__ import annotations

import os
import signal
import sys
import time

import harness
import pytest
from goccl._ranks.children import Child, fork


def fail() -> int:
    raise ValueError("no luck")


def interrupt() -> int:
    raise KeyboardInterrupt


def die() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def sleep() -> int:
    time.sleep(harness.DEADLINE)
    return 0


@pytest.mark.parametrize(
    ("run", "status"), [(lambda: 7, 7), (fail, 1), (interrupt, 130), (die, 137)]
)
def test_a_child_ends_with_the_status_of_its_function(run, status):
    child = Child(fork(run))
    assert child.wait(harness.DEADLINE) == status
    child.close()
    os.waitpid(child.pid, 0)


def test_a_child_that_does_not_end_is_killed():
    child = Child(fork(sleep))
    assert (child.has_ended(), child.wait(0)) == (False, 128 + signal.SIGKILL)
    child.kill()
    assert child.has_ended(harness.DEADLINE)
    child.close()
    os.waitpid(child.pid, 0)


def test_children_end_with_their_parent():
    code = f"""
import signal, time
from goccl._ranks.children import fork
def run():
    print("runs", flush=True)
    time.sleep({harness.DEADLINE})
    return 0
fork(run)
signal.pause()
"""
    parent = harness.start(sys.executable, "-c", code)
    assert parent.stdout.readline() == "runs\n"
    parent.kill()
    # The child has its pipes, too.
    (done,) = harness.finished(parent, seconds=harness.DEADLINE / 2)
    assert done.stderr == ""
