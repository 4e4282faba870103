"""What acquires can renew, whatever the connections come from and the role's settings are."""

import pytest

from servers import LONG, wait_until

SOURCES = ["conninfo", "service", "environment", "callable", "pool", "pool with hook", "framework"]

SETTINGS = {
    "nothing": "",
    "search_path": "SET search_path = nowhere",
    "role": "SET role = worker",
    "lock_timeout": "SET lock_timeout = 200",
    "statement_timeout": "SET statement_timeout = 2000",
    "extra_float_digits": "SET extra_float_digits = -15",
    "idle timeout": "SET idle_session_timeout = 300",
    "client_min_messages": "SET client_min_messages = error",
}


@pytest.fixture
def role(server):
    """A role of its own, which is named as the parameters of the source say."""
    server.sql("CREATE ROLE app LOGIN; CREATE ROLE worker; GRANT worker TO app")
    yield "app"
    server.sql("SELECT lease_break(resource) FROM lease_status")
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
    server.sql("DROP ROLE app; DROP ROLE worker")


def source_of(server, kind, tmp_path, setup=()):
    """Parameters for open, and the environment of the program. What is not named there is wrong in the environment."""
    dsn = server.dsn(user="app")
    env = {"PGHOST": "127.0.0.1", "PGPORT": "1", "PGUSER": "nobody", "PGDATABASE": "nowhere"}
    if kind == "service":
        file = tmp_path / "services"
        file.write_text(f"[jobs]\nhost=127.0.0.1\nport={server.port}\nuser=app\ndbname=postgres\n")
        return {"kind": kind, "service": "jobs"}, {**env, "PGSERVICEFILE": str(file)}
    if kind == "environment":
        return {"kind": kind}, {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "app", "PGDATABASE": "postgres"}
    return {"kind": kind, "conninfo": dsn, "size": 2, "setup": list(setup)}, env


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_the_role_change_nothing(start_program, server, role, slow, tmp_path, setting):
    if SETTINGS[setting]:
        server.sql(f"ALTER ROLE app {SETTINGS[setting]}")
    source, env = source_of(server, "conninfo", tmp_path)
    use(start_program(**env), server, source, slow)


@pytest.mark.parametrize("kind", SOURCES)
def test_each_source_serves_all_calls(start_program, server, role, slow, tmp_path, kind):
    source, env = source_of(server, kind, tmp_path, ["SET search_path = nowhere", "SET ROLE worker"])
    use(start_program(**env), server, source, slow)
    if "hook" in kind or kind == "callable":
        assert server.value("SELECT count(*) FROM pg_roles WHERE rolname = 'worker'") == 1


def use(program, server, source, slow):
    """Acquire, wait, renew, write and release."""
    program.open(source)
    program.hold("all", "first", ttl=9 * slow)
    waiting = program.start_hold("all", "second", ttl=600, wait=LONG)
    wait_until(lambda: server.waiters("all") == 1)
    server.wait_for_renewal("all")
    program("check", lease="first")
    assert program("transaction", lease="first", statements=["SELECT 1"])
    assert program("release", lease="first") is True
    waiting.answer()
    assert program("release", lease="second") is True
    assert not server.is_held("all") and program.events.empty()


def test_a_pool_with_a_hook_demands_connections_that_have_it(start_program, server, role, tmp_path):
    """Else all would be acquired as the hook says, and renewed in another way."""
    source, env = source_of(server, "pool with hook", tmp_path, ["SET ROLE worker"])
    assert start_program(**env).error("open", client="a", source={**source, "connect": False}, options={}).text


def test_options_of_the_framework_count(start_program, server, role, slow, tmp_path):
    source, env = source_of(server, "framework", tmp_path)
    source["conninfo"] = server.dsn(user="app", options="-c search_path=public -c role=worker", application_name="framework")
    program = start_program(**env)
    program.open(source)
    program.hold("options", ttl=600)
    assert server.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'framework'") > 0
    assert server.value("SELECT r.rolname FROM lease_lock AS l JOIN pg_roles AS r ON r.oid = l.role "
                        "WHERE resource = 'options'") == "worker"


@pytest.mark.extension("its schema is an option")
def test_the_functions_are_those_of_the_extension(program, another, slow):
    """Not those that any role with CREATE can put in the way, and wherever the extension is."""
    server = another[0]
    server.sql("DROP EXTENSION lease_lock; CREATE SCHEMA \"odd % \"\" name\"; CREATE EXTENSION lease_lock SCHEMA \"odd % \"\" name\"")
    server.sql("CREATE FUNCTION lease_request(text, interval, text, wait interval, mode text, permits int, if_own text, "
               "min_hold interval, payload jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1 / 0'")
    program.open(server.dsn())
    program.hold("found", ttl=6 * slow)
    assert program("transaction", lease="found", statements=["SELECT 1"])
    program("release", lease="found")
    # It moves while it is used.
    server.sql('CREATE SCHEMA later')
    server.sql('ALTER EXTENSION lease_lock SET SCHEMA later' if server.value(
        "SELECT extrelocatable FROM pg_extension WHERE extname = 'lease_lock'") else "SELECT 1")
    program.hold("found", ttl=600)
    program("release", lease="found")
    program.open(server.dsn(), client="b", schema="public")
    both = program.error("hold", client="b", lease="x", resource="x", options={})
    assert "schema" in both.text


@pytest.mark.extension("its schema is an option")
def test_a_database_without_the_extension_says_so(program, another):
    server = another[0]
    server.sql("DROP EXTENSION lease_lock")
    program.open(server.dsn())
    missing = program.error("hold", client="a", lease="x", resource="x", options={"wait": LONG}, limit=10)
    assert "lease_lock" in missing.text
