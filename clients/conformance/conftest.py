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


UNTRIED_WITH_JAVA = {
    "test_a_release_that_the_end_of_the_lease_overtakes_is_a_loss",
    "test_an_idle_connection_that_the_server_has_closed_leaves_nothing_unknown",
    "test_a_wait_without_limit_goes_on_behind_a_network_that_was_silent",
    "test_a_wait_without_limit_notices_that_its_server_is_gone",
    "test_an_interrupted_statement_ends_behind_a_silent_network",
    "test_a_server_without_room_for_another_connection_is_no_loss",
    "test_a_slow_network_is_survived",
    "test_lost_before_granted_although_nobody_reads_the_log",
}


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--full"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("full")])
        items[:] = [item for item in items if not item.get_closest_marker("full")]
    for item in items:
        marker = item.get_closest_marker("extension")
        if marker and servers.edition == "portable":
            item.add_marker(pytest.mark.skip(reason=f"portable edition: {marker.args[0]}"))
    for item in items:
        if item.callspec.params["client"] == "java" and (
                item.originalname in UNTRIED_WITH_JAVA or item.callspec.id in ("java-fails by the loss", "java-error")):
            item.add_marker(pytest.mark.skip(reason="not tried with Java yet"))
    order = chosen(config)
    # Those that take longest begin first; of the clients, those that are ready first.
    items.sort(key=lambda item: ("test_promise" not in item.nodeid, order.index(item.callspec.params["client"])))


# What a source does not name must not come from the environment, unless the source is the environment.
MISLEADING = {"PGHOST": "127.0.0.1", "PGPORT": "1", "PGUSER": "nobody", "PGDATABASE": "nowhere"}


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
