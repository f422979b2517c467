"""Ranks that are killed, stopped and replaced while they use verbs: see kills.py."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from guests import Guests

# How many schedules are run for each case: more than a few by the environment.
SEEDS = int(os.environ.get("GOCCL_KILLS_SEEDS", "4"))
KILLS = Path(__file__).resolve().parents[1] / "kills.py"
PACE = 4  # such a host is slow

pytestmark = [pytest.mark.softroce, pytest.mark.timeout(120 + 35 * PACE * SEEDS)]


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_survivors_go_on(hosts):
    """All ranks are joined by verbs, those of one host, too."""
    program = shlex.join([sys.executable, str(KILLS)])
    seeds = f"{1000 * hosts}:{1000 * hosts + SEEDS - 1}"
    line = (
        f"[ $RANK = 0 ] || exec {program} --host host0; {program} --host localhost & "
        f"exec {program} {seeds} --hosts {hosts} --transport verbs --pace {PACE}"
    )
    settings = {"GOCCL_SOCKET_IFNAME": "vec0"}
    with Guests([line] * hosts, env=settings, deadline=100 + 35 * PACE * SEEDS) as guests:
        guests.check()
