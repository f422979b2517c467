"""The rig itself: what tests on its guests rely on."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from guests import DIED, HERE, TIMED_OUT, Guests, until

pytestmark = pytest.mark.softroce

PROGRAM = [sys.executable, str(HERE / "guests.py")]
PING = "ping -q -c 1 -W 1 host0 >/dev/null"
PINGPONG = "ibv_rc_pingpong -d rxe0 -g 1 -m 4096 -s 65536 -n 100"


def processes_with(text: str) -> list[str]:
    """The command lines that name it."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            lines.append(file.read_text(errors="replace"))
    return [line for line in lines if text in line]


def test_a_guest_has_an_active_port_and_an_ipv4_gid() -> None:
    with Guests(["ibv_devinfo -v -d rxe0; ulimit -l"]) as guests:
        guests.check()
    for text in (
        "PORT_ACTIVE",
        "active_mtu:\t\t4096",
        "GID[  1]:\t\t::ffff:192.168.77.1",
        "unlimited",
    ):
        assert text in guests[0].stdout


@pytest.mark.parametrize("size", [2, 4])  # a cable alone, and a switch
def test_data_crosses_by_rdma(size: int) -> None:
    client = f"until {PINGPONG} host0; do :; done"  # the server may not be listening yet
    with Guests([PINGPONG, *["true"] * (size - 2), client]) as guests:
        guests.check(timeout=60)
    assert "13107200 bytes in" in guests[-1].stdout


@pytest.mark.parametrize("size", [2, 4])
def test_a_cable_is_cut_and_mended(size: int) -> None:
    pings = (
        f"{PING} && echo first; while {PING}; do :; done; echo cut; "
        f"until {PING}; do :; done; echo mended"
    )
    bystander = f"until [ -e /share/try ]; do :; done; {PING}"
    with Guests(["true", *[bystander] * (size - 2), pings]) as guests:
        guests[-1].wait_for("first")
        guests[-1].cut()
        guests[-1].wait_for("cut", timeout=10)
        for guest in list(guests)[1:-1]:
            (guest.share / "try").touch()
            assert guest.wait(timeout=10) == 0
        guests[-1].mend()
        guests[-1].wait_for("mended", timeout=10)


def test_a_guest_without_power_is_gone() -> None:
    with Guests(["sleep 1000", f"{PING} && echo first; while {PING}; do :; done"]) as guests:
        guests[1].wait_for("first")
        guests[0].power_off()
        assert not guests[0].alive
        assert guests.wait(timeout=10) == [DIED, 0]


def test_a_guest_stays_on_the_network_after_its_command() -> None:
    with Guests(["exit 3", f"until [ -e /share/try ]; do :; done; {PING}"]) as guests:
        assert guests[0].wait(timeout=10) == 3
        (guests[1].share / "try").touch()
        assert guests[1].wait(timeout=10) == 0


def test_exit_codes() -> None:
    with Guests(["exit 3", "kill -KILL $$", "echo o >/proc/sysrq-trigger; sleep 1000"]) as guests:
        assert guests.wait(timeout=10) == [3, 128 + signal.SIGKILL, DIED]


def test_timeouts() -> None:
    with Guests(["echo begun; sleep 1000"], deadline=5) as guests:
        guests[0].wait_for("begun")
        with pytest.raises(TimeoutError, match="still running"):
            guests.wait(timeout=0.1)
        with pytest.raises(TimeoutError, match="has not written 'more'"):
            guests[0].wait_for("more")


def test_netem() -> None:
    with Guests(["true", PING], netem="loss 100%") as guests:
        assert guests[1].wait(timeout=10) == 1


def test_writes_reach_writable_folders_only(tmp_path: Path) -> None:
    results, other = tmp_path / "results", tmp_path / "other"
    results.mkdir()
    other.mkdir()
    with Guests([f"echo $RANK | tee {other}/file >{results}/file"], writable=[results]) as guests:
        guests.check()
    assert (results / "file").read_text() == "0\n"
    assert not list(other.iterdir())


def test_command_line() -> None:
    program = [*PROGRAM, "-n", "2", "--", "echo out; echo err >&2; exit $((RANK * 4))"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert sorted(done.stdout.splitlines()) == ["[0] out", "[1] out"]
    assert sorted(done.stderr.splitlines()) == ["[0] err", "[1] err"]


def test_command_line_timeout() -> None:
    program = [*PROGRAM, "-t", "2", "--", "sleep", "1000"]
    assert (
        subprocess.run(program, capture_output=True, timeout=60, check=False).returncode
        == TIMED_OUT
    )


def test_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    program = [*PROGRAM, "-n", "2", "--", "echo begun; sleep 1000"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(program, stdout=subprocess.PIPE, env=env) as launcher:
        assert launcher.stdout
        assert b"begun" in launcher.stdout.readline()
        assert processes_with(str(tmp_path))
        launcher.kill()
    gone = until(lambda: None if processes_with(str(tmp_path)) else True, time.monotonic() + 10)
    assert gone
    assert not list(tmp_path.iterdir())


def test_mpirun_starts_commands_on_other_guests(tmp_path: Path) -> None:
    """With one of its own for Open MPI's, which does no more than call ssh for each other host."""
    (tmp_path / "mpirun").write_text(
        "#!/bin/bash\n"
        '[ "$1 $2 ${*: -1}" = "--prtemca plm_ssh_agent command" ] || exit 1\n'
        "for host in host1 host2; do $3 $host 'echo on $(hostname);' exit 3; echo $host: $?; done\n"
    )
    (tmp_path / "mpirun").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    with Guests([[str(HERE / "mpirun.py"), "command"]] * 3, env={"PATH": path}) as guests:
        assert guests.wait(timeout=60) == [0, 3, 3]
    assert guests[0].stdout == "host1: 3\nhost2: 3\n"
    assert [guest.stdout for guest in guests][1:] == ["on host1\n", "on host2\n"]
