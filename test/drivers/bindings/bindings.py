"""The calls of the table of drivers in docs/drivers.md, by a driver for Python.

bindings.py DRIVER prints the version of the driver, then a line for each call:
what was sent, and what came back, both as Python writes them.
"""
import asyncio
import datetime
import sys

CALLS = {
    "list": "SELECT lease_renew_several({0}, {1}, {2})",
    "token": "SELECT lease_assert_token({0}, {1})",
    "wait": "CALL lease_wait({0}, {1}, {2}, {3})",
    "lost": "SELECT lease_assert({0}, {1})",
    "timeout": "SELECT lease_release({0}, {1})",
}


def say(item, sent, answer):
    print(item, sent, answer, sep="\t")


def report(placeholders, execute, failure, interval=str):
    """Make the calls. execute(sql, values) returns the first row; failure is the class of errors."""
    def sql(item):
        return CALLS[item].format(*placeholders)

    names = ["a", "b"]
    say("list", repr(names), repr(execute(sql("list"), (names, interval("1 hour"), "o"))[0]))
    token = execute("SELECT lease_token({0}, {1})".format(*placeholders), ("a", "o"))[0]
    say("token", repr(token), repr(execute(sql("token"), ("a", token))[0]))
    say("wait", sql("wait"), repr(tuple(execute(sql("wait"), ("w", interval("1 minute"), "o", interval("10 s"))))))
    for item, values in ("lost", ("free", "o")), ("timeout", ("busy", "o")):
        try:
            execute(sql(item), values)
            say(item, sql(item), "no error")
        except failure as error:
            error = getattr(error, "orig", error)
            state = getattr(error, "sqlstate", None) or error.pgcode
            say(item, sql(item), f"{type(error).__name__} {state}")


def psycopg_2():
    import psycopg2

    print(psycopg2.__version__.split()[0])
    connection = psycopg2.connect("")
    connection.autocommit = True
    cursor = connection.cursor()

    def execute(sql, values):
        cursor.execute(sql, values)
        return cursor.fetchone()

    report(["%s"] * 4, execute, psycopg2.Error)


def psycopg_3(**options):
    import psycopg

    print(psycopg.__version__)
    connection = psycopg.connect("", autocommit=True, **options)
    report(["%s"] * 4, lambda sql, values: connection.execute(sql, values).fetchone(), psycopg.Error)


def pgbouncer():
    psycopg_3(prepare_threshold=None)


def sqlalchemy():
    import sqlalchemy as sa

    print(sa.__version__)
    connection = sa.create_engine("postgresql://", isolation_level="AUTOCOMMIT").connect()
    names = ["a", "b", "c", "d"]

    def execute(sql, values):
        return connection.execute(sa.text(sql), dict(zip(names, values))).fetchone()

    report([f":{name}" for name in names], execute, sa.exc.DBAPIError)


def asyncpg():
    import asyncpg as driver

    print(driver.__version__)
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(driver.connect())
    spans = {"1 hour": datetime.timedelta(hours=1), "1 minute": datetime.timedelta(minutes=1), "10 s": datetime.timedelta(seconds=10)}

    def execute(sql, values):
        return loop.run_until_complete(connection.fetchrow(sql, *values))

    report(["$1", "$2", "$3", "$4"], execute, driver.PostgresError, spans.get)


{"psycopg 2": psycopg_2, "psycopg 3": psycopg_3, "asyncpg": asyncpg, "SQLAlchemy": sqlalchemy, "PgBouncer": pgbouncer}[sys.argv[1]]()
