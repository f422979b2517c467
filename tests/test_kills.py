"""Processes that are killed, stopped and replaced while they work: see kills.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# How many schedules are run: more than a few by the environment.
SEEDS = int(os.environ.get("GOCCL_TEST_KILLS", "24"))


@pytest.mark.timeout(120 + 10 * SEEDS)
@pytest.mark.parametrize(
    "options",
    [(f"1:{SEEDS}",), ("1:2", "--lasting", "60"), (f"1:{SEEDS}", "--completes")],
    ids=["seeds", "lasting", "completes"],
)
def test_survivors_go_on(options):
    """In all schedules those that live end, with the same members and the same bits, and a process
    that lives through many epochs holds no more of the system than at first."""
    program = Path(__file__).with_name("kills.py")
    done = subprocess.run(
        [sys.executable, program, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
