"""Servers and proxies are those of ../../conformance, where the promises are tested. Here are tests of the language."""

import pathlib
import sys

CLIENTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CLIENTS / "python"), str(CLIENTS / "conformance")]

from servers import *       # noqa: E402, F403 (fixtures)
