import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import pytest

import servers
from program import PROGRAMS, Program
from servers import *       # noqa: F403 (fixtures)


def pytest_addoption(parser):
    parser.addoption("--client", action="append", help="a client's name, or the path of its program")
    parser.addoption("--edition", default="extension", choices=["extension", "portable"], help="what the functions are")


def pytest_configure(config):
    config.addinivalue_line("markers", "extension(why): not on the portable edition")
    servers.edition = config.getoption("--edition")


def pytest_collection_modifyitems(items):
    for item in items:
        marker = item.get_closest_marker("extension")
        if marker and servers.edition == "portable":
            item.add_marker(pytest.mark.skip(reason=f"portable edition: {marker.args[0]}"))


def pytest_generate_tests(metafunc):
    if "client" in metafunc.fixturenames:
        names = metafunc.config.getoption("client") or list(PROGRAMS)
        metafunc.parametrize("client", names)


@pytest.fixture
def start_program(client):
    """Start the client's program, more than once if need be."""
    started = []

    def start(**env):
        started.append(Program(PROGRAMS.get(client, [client]), env))
        return started[-1]

    yield start
    for program in started:
        program.clean_up()


@pytest.fixture
def program(start_program):
    return start_program()
