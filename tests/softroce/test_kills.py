"""Ranks that are killed, stopped and replaced while they use verbs: see kills.py."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from guests import Guests

# How many schedules are run on so many hosts: more than a few by the environment.
SEEDS = int(os.environ.get("GOCCL_TEST_KILLS", "4"))
KILLS = Path(__file__).resolve().parents[1] / "kills.py"
PACE = 4  # such a host is slow
DEADLINE = 100 + 35 * PACE * SEEDS

pytestmark = [pytest.mark.softroce, pytest.mark.timeout(DEADLINE + 20)]


def check(hosts, *options):
    """Runs schedules. All ranks are joined by verbs, those of one host, too."""
    program = shlex.join([sys.executable, str(KILLS)])
    line = (
        f"[ $RANK = 0 ] || exec {program} --host host0; {program} --host localhost & "
        f"exec {program} {shlex.join(options)} --hosts {hosts} --transport verbs --pace {PACE}"
    )
    with Guests([line] * hosts, env={"GOCCL_SOCKET_IFNAME": "vec0"}, deadline=DEADLINE) as guests:
        guests.check()


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_survivors_go_on(hosts):
    first = 1000 * hosts
    check(hosts, f"{first}:{first + SEEDS - 1}")


def test_nothing_is_left_over():
    """Neither are registrations of memory, with peers that come and go."""
    check(1, "1", "--lasting", "30")
