import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import pytest

import servers
from program import PROGRAMS, Program
from servers import *       # noqa: F403 (fixtures)


def pytest_addoption(parser):
    parser.addoption("--client", action="append", help="a client's name, or the path of its program")
    parser.addoption("--edition", default="extension", choices=["extension", "portable"], help="what the functions are")
    parser.addoption("--full", action="store_true", help="also all combinations, and what takes long")


def pytest_configure(config):
    config.addinivalue_line("markers", "extension(why): not on the portable edition")
    config.addinivalue_line("markers", "full: runs only with --full")
    servers.edition = config.getoption("--edition")


def chosen(config):
    return config.getoption("client") or list(PROGRAMS)


def pytest_sessionstart(session):
    """A program may have to be installed or compiled before it runs for the first time: that begins now."""
    if not hasattr(session.config, "workerinput") and not session.config.getoption("collectonly"):
        for name in chosen(session.config):
            command = [*map(str, PROGRAMS.get(name, [name]))]
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL).stdin.close()   # asyncio cannot read /dev/null


def pytest_generate_tests(metafunc):
    if "client" in metafunc.fixturenames:
        metafunc.parametrize("client", chosen(metafunc.config))


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--full"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("full")])
        items[:] = [item for item in items if not item.get_closest_marker("full")]
    for item in items:
        marker = item.get_closest_marker("extension")
        if marker and servers.edition == "portable":
            item.add_marker(pytest.mark.skip(reason=f"portable edition: {marker.args[0]}"))
    order = chosen(config)
    # Those that take longest begin first; of the clients, those that are ready first.
    items.sort(key=lambda item: ("test_promise" not in item.nodeid, order.index(item.callspec.params["client"])))


# What a source does not name must not come from the environment, unless the source is the environment. No server of the
# tests listens at this address.
MISLEADING = {"PGHOST": "127.0.0.2", "PGPORT": "1", "PGUSER": "nobody", "PGDATABASE": "nowhere"}


@pytest.fixture
def start_program(client):
    """Start the client's program, more than once if need be, for this test alone."""
    started = []

    def start(stderr=None, **env):
        started.append(Program(PROGRAMS.get(client, [client]), {**MISLEADING, **env}, stderr))
        return started[-1]

    yield start
    for program in started:
        program.clean_up()


@pytest.fixture(scope="session")
def shared_programs():
    programs = {}
    yield programs
    for program in programs.values():
        program.clean_up()


@pytest.fixture
def program(client, shared_programs):
    """The client's program, which one test after another uses: to start it takes longer than most of them."""
    if client not in shared_programs:
        shared_programs[client] = Program(PROGRAMS.get(client, [client]), MISLEADING)
    yield shared_programs[client]
    if not shared_programs[client].is_as_new():
        shared_programs.pop(client).clean_up()
