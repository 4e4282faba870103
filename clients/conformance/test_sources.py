"""What acquires can renew, whatever the connections come from and the role's settings are."""

import pytest

from servers import LONG, wait_until

SOURCES = ["conninfo", "service", "environment", "callable", "pool", "pool with hook", "framework"]

SETTINGS = {
    "search_path": "nowhere",
    "role": "worker",
    "lock_timeout": "200",
    "statement_timeout": "2000",
    "extra_float_digits": "-15",
    "idle_session_timeout": "300",
    "client_min_messages": "error",
}


@pytest.fixture
def role(make_role):
    """A role of its own, which is named as the parameters of the source say. It may be another one, too."""
    app = make_role()
    make_role(name="worker")
    app.server.sql("GRANT worker TO app")
    return app


SETUP = ["SET search_path = nowhere", "SET ROLE worker"]


def source_of(server, kind):
    if kind in ("service", "environment"):
        return {"kind": kind, "service": "jobs"}
    return {"kind": kind, "conninfo": server.dsn(user="app"), "size": 2, "setup": SETUP}


@pytest.fixture
def program_for(server, request, start_program, tmp_path):
    """A program of its own where the source is read once, when a process begins."""
    def program_of(kind):
        if kind not in ("service", "environment", "framework"):
            return request.getfixturevalue("program")
        file = tmp_path / "services"
        file.write_text(f"[jobs]\nhost=127.0.0.1\nport={server.port}\nuser=app\ndbname=postgres\n")
        env = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "app", "PGDATABASE": "postgres"} \
            if kind == "environment" else {}
        return start_program(PGSERVICEFILE=str(file), **env)
    return program_of


@pytest.mark.parametrize("settings", [
    pytest.param(list(SETTINGS), id="all settings"),
    *(pytest.param(names, id="".join(names) or "none", marks=pytest.mark.full) for names in [[], *([name] for name in SETTINGS)])])
@pytest.mark.parametrize("kind", SOURCES)
def test_what_acquires_can_renew(server, role, program_for, slow, kind, settings):
    """Each source acquires, waits, renews, writes and releases, with a role that has settings which nobody should have."""
    for name in settings:
        role.alter(f"SET {name} = {SETTINGS[name]}")
    program = program_for(kind)
    program.open(source_of(server, kind))
    program.hold("all", "first", ttl=9 * slow)
    assert holder(server, "all") == ("worker" if "role" in settings or kind in ("callable", "pool with hook") else "app")
    use_and_hand_over(program, server)
    assert not server.is_held("all") and program.events.empty()


def use_and_hand_over(program, server):
    """The holder renews and writes, while another one waits, who is granted the lease then."""
    waiting = program.start_hold("all", "second", ttl=600, wait=LONG)
    wait_until(lambda: server.waiters("all") == 1)
    server.wait_for_renewal("all")
    program("check", lease="first")
    assert program("transaction", lease="first", statements=["SELECT 1"])
    assert program("release", lease="first") is True
    waiting.answer()
    assert program("release", lease="second") is True


def holder(server, resource):
    return server.value("SELECT r.rolname FROM lease_lock AS l JOIN pg_roles AS r ON r.oid = l.role WHERE resource = %s", resource)


@pytest.mark.extension("PUBLIC has the same functions")
def test_few_privileges_are_enough(program, make_role, database, slow):
    """Those that docs/clients.md names; also for an answer that is waited for, and a lease that somebody else wants."""
    app = make_role()
    functions = "FROM pg_proc WHERE proname ~ '^lease_'"
    needed = ("lease_request", "lease_renew", "lease_release", "lease_token", "lease_contended", "lease_assert",
              "lease_clock_difference", "lease_session_ended")
    for (revoke,) in database.sql(f"SELECT format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', oid::regprocedure) {functions}"):
        database.sql(revoke)
    for (grant,) in database.sql(f"SELECT format('GRANT EXECUTE ON ROUTINE %s TO app', oid::regprocedure) {functions} AND proname IN {needed}"):
        database.sql(grant)
    database.sql("REVOKE ALL ON lease_status, lease_waiters, lease_contenders FROM PUBLIC; GRANT SELECT ON lease_status TO app")
    program.open(database.dsn(user=app.name))
    program.hold("all", "first", ttl=9 * slow)
    use_and_hand_over(program, database)
    assert program.events.empty()


def test_a_pool_with_a_hook_demands_connections_that_have_it(program, server, role):
    """Else all would be acquired as the hook says, and renewed in another way."""
    source = {**source_of(server, "pool with hook"), "connect": False}
    assert program.error("open", client="a", source=source, options={}).text


def test_options_of_the_framework_count(server, role, program_for):
    program, source = program_for("framework"), source_of(server, "framework")
    source["conninfo"] = server.dsn(user="app", options="-c search_path=public -c role=worker", application_name="framework")
    program.open(source)
    program.hold("options", ttl=600)
    assert server.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'framework'") > 0
    assert holder(server, "options") == "worker"


@pytest.mark.extension("its schema is an option")
def test_the_functions_are_those_of_the_extension(program, database, slow):
    """Not those that any role with CREATE can put in the way, and wherever the extension is."""
    database.sql("DROP EXTENSION lease_lock; CREATE SCHEMA \"odd % \"\" name\"; "
                 "CREATE EXTENSION lease_lock SCHEMA \"odd % \"\" name\"")
    database.sql("CREATE FUNCTION lease_request(text, interval, text, wait interval, mode text, permits int, if_own text, "
                 "min_hold interval, payload jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1 / 0'")
    program.open(database.dsn())
    program.hold("found", ttl=6 * slow)
    assert program("transaction", lease="found", statements=["SELECT 1"])
    program("release", lease="found")
    # It moves while it is used.
    database.sql('CREATE SCHEMA later')
    database.sql('ALTER EXTENSION lease_lock SET SCHEMA later')
    program.hold("found", ttl=600)
    program("release", lease="found")
    program.open(database.dsn(), client="b", schema="public")
    both = program.error("hold", client="b", lease="x", resource="x", options={})
    assert "schema" in both.text


@pytest.mark.extension("its schema is an option")
def test_an_extension_that_moves_is_found_by_all_calls(program, database, make_proxy):
    """All of them ask before one of them hears that it has moved."""
    proxy = make_proxy()
    program.open(database.dsn(proxy.port))
    proxy.delay = {"request": 0, "answer": 0.3}
    for name in "warm", "moved":
        for call in [program.start_hold(f"{name}:{n}") for n in range(4)]:
            call.answer()
        if name == "warm":
            database.sql("CREATE SCHEMA later; ALTER EXTENSION lease_lock SET SCHEMA later")


@pytest.mark.extension("its schema is an option")
def test_a_schema_without_the_functions_is_a_mistake(program, database):
    database.sql("DROP EXTENSION lease_lock")
    program.open(database.dsn(), schema="public")
    missing = program.error("hold", client="a", lease="x", resource="x", options={"wait": LONG}, limit=10)
    assert (missing.name, missing.sqlstate) == ("Driver", "42883")


@pytest.mark.extension("its schema is an option")
def test_a_database_without_the_extension_says_so(program, database):
    database.sql("DROP EXTENSION lease_lock")
    program.open(database.dsn())
    missing = program.error("hold", client="a", lease="x", resource="x", options={"wait": LONG}, limit=10)
    assert "lease_lock" in missing.text
