"""Servers and proxies are those of ../../conformance, where the promises are tested. Here are tests of the language."""

import pathlib
import sys

import pytest

CLIENTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CLIENTS / "python"), str(CLIENTS / "conformance")]

from servers import *       # noqa: E402, F403 (fixtures)
from servers import wait_until      # noqa: E402


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """A thread that was abandoned, while it connects, goes on with what the next test has put in a function's place."""
    before = set(sys._current_frames())
    yield
    wait_until(lambda: set(sys._current_frames()) <= before)
