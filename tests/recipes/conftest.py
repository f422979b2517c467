"""Recipes of docs/, run with the launchers and frameworks that they are for (make test-recipes).

A test names those by the marker `uses`. What it has started ends with it.
"""

import contextlib
import os
import platform
import signal
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]  # the tests' harness and hosts

import harness  # noqa: E402
import recipes  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "uses(*packages): what a recipe is run with")


def pytest_collection_modifyitems(items):
    for item in items:
        used = [name for mark in item.iter_markers("uses") for name in mark.args]
        item.user_properties.append(("uses", used))


@pytest.fixture(autouse=True)
def ends_what_it_starts():
    """Kills what a test has left running."""
    before = recipes.running()
    yield

    def none_left():
        left = recipes.running() - before
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    harness.until(none_left, what="what the test has started has ended")


def pytest_terminal_summary(terminalreporter):
    """What has run, and with what."""
    write = terminalreporter.write_line
    write("")
    own = ", ".join(f"{name} {recipes.version(name)}" for name in ("torch", "goccl"))
    write(f"Recipes, with Python {platform.python_version()}, {own}:")
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            used = [
                name for key, names in report.user_properties if key == "uses" for name in names
            ]
            why = (
                ": " + report.longrepr[2].removeprefix("Skipped: ") if outcome == "skipped" else ""
            )
            versions = [] if why else [f"{name} {recipes.version(name)}" for name in used]
            with_ = f"  ({', '.join(versions)})" if versions else ""
            write(f"  {outcome:8}{report.nodeid.split('::')[-1]}{with_}{why}")
