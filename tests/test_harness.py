"""The harness itself: what it tells of ranks that find several things wrong."""

import os
import signal

import harness
import pytest


def find_wrong(rank: harness.Rank, ends: str) -> str:
    harness.expect(True, "well")
    for cell in range(3):
        harness.expect(cell == 1, f"cell {cell} of rank {rank.rank}")
    if ends == "raises":
        raise ValueError("the last one")
    return "the end"


def well(rank: harness.Rank) -> None:
    harness.expect(rank.size == 2, "the size")


@pytest.mark.parametrize(
    ("ends", "kind"), [("returns", "AssertionError"), ("raises", "ValueError")]
)
def test_every_failing_cell_is_told(make_world, ends, kind):
    world = make_world(2)
    for outcome in world.outcomes(find_wrong, ends):
        assert outcome.kind == kind, outcome
        text = str(outcome)
        assert [f"cell {cell} of rank {outcome.rank}" in text for cell in range(3)] == [
            True,
            False,
            True,
        ]
        assert ("the last one" in text) == (ends == "raises")
    assert world.outcomes(well)[0].ok, "what was told is told once"


def test_outside_of_ranks_it_fails_at_once():
    with pytest.raises(AssertionError, match="wrong"):
        harness.expect(0, "wrong")


def tell_and_end(rank: harness.Rank) -> str:
    rank.tell("first")
    if rank.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return "the end"


def test_what_a_rank_told_before_its_end_is_heard(make_world):
    world = make_world(2)
    world.start(tell_and_end)
    assert world.exitcode(1) == -signal.SIGKILL
    harness.until(world.conns[0].poll)
    assert [world.told(r) for r in range(2)] == ["first"] * 2
    returned, killed = world.finish()
    assert (returned.value, killed.exitcode) == ("the end", -signal.SIGKILL)


def test_programs_that_do_not_end_are_killed_with_what_they_have_started():
    """What a program has started holds its pipes, so that its output would not end."""
    (ended,) = harness.finished(harness.start("sh", "-c", "echo said"))
    assert (ended.returncode, ended.stdout) == (0, "said\n")
    (stuck,) = harness.finished(harness.start("sh", "-c", "sleep 1000 & wait"), seconds=0.5)
    assert (stuck.returncode, stuck.stderr) == (-signal.SIGKILL, "\nit did not end within 0.5 s")
