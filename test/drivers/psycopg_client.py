"""Leases from Python, with psycopg 3 or psycopg2: pass the module's name.

Connects as PGHOST, PGPORT, PGUSER and PGDATABASE say. The table:

    CREATE TABLE item (id int PRIMARY KEY, name text NOT NULL, lock_version int NOT NULL DEFAULT 0);
    SELECT lease_protect('item', 'item:{id}');
    CREATE TRIGGER item_version BEFORE UPDATE ON item
        FOR EACH ROW EXECUTE FUNCTION lease_version('lock_version');
"""

import importlib
import sys
import threading
import uuid
from contextlib import contextmanager

driver = importlib.import_module(sys.argv[1])
errors = importlib.import_module(sys.argv[1] + ".errors")


@contextmanager
def transaction(owner=None):
    """A cursor in a transaction of its own; with an owner, one that may write what the owner has leased."""
    connection = driver.connect("")
    try:
        cursor = connection.cursor()
        if owner:
            # SET LOCAL takes no parameters; this is the same
            cursor.execute("SELECT set_config('lease_lock.owner', %s, true)", (owner,))
        yield cursor
        connection.commit()
    finally:
        connection.close()      # rolls back what is not committed


def call(statement, *args):
    """One call in one transaction."""
    with transaction() as cursor:
        cursor.execute(statement, args)
        return cursor.fetchone()[0]


class Busy(Exception):
    pass


@contextmanager
def lease(resource, ttl="1 minute", wait="0"):
    """Hold the lease for the block, as an owner of its own."""
    owner = str(uuid.uuid4())
    if not call("SELECT lease_acquire(%s, %s, %s, %s)", resource, ttl, owner, wait):
        raise Busy(resource)
    try:
        yield owner
    finally:
        call("SELECT lease_release(%s, %s)", resource, owner)


def rename(owner, name):
    with transaction(owner) as cursor:
        cursor.execute("UPDATE item SET name = %s WHERE id = 1 RETURNING name, lock_version", (name,))
        return cursor.fetchone()


def say(what, *result):
    print(what + ":", *result)


# Leases in use

with lease("item:1") as owner:
    say("renamed by the holder", *rename(owner, "chair"))
    say("renewed", call("SELECT lease_renew('item:1', '5 minutes', %s)", owner))
    try:
        with lease("item:1"):
            say("two holders")
    except Busy as busy:
        say("busy", busy)

with lease("item:1", wait="10 seconds") as owner:
    say("and again", *rename(owner, "table"))

# The lease was lost before the write, and the write is refused: begin again.
try:
    rename(owner, "late")
except errors.ObjectNotInPrerequisiteState as error:
    say("late write", error.diag.sqlstate, type(error).__name__)

# The version was read, and somebody wrote meanwhile: read again.
with lease("item:1") as owner:
    try:
        with transaction(owner) as cursor:
            cursor.execute("UPDATE item SET name = %s, lock_version = %s WHERE id = 1", ("stale", 1 + 1))
    except errors.SerializationFailure as error:
        say("stale version", error.diag.sqlstate, type(error).__name__)


# Two transactions that each hold what the other waits for: one is told, rolls back, and may begin again.

def cross(first, second, met, told):
    try:
        with transaction() as cursor:
            cursor.execute("SELECT lease_acquire(%s, '1 minute', %s)", (first, first))
            met.wait()
            cursor.execute("SELECT lease_acquire(%s, '1 minute', %s, '30 seconds')", (second, first))
            cursor.execute("SELECT lease_release_all(%s)", (first,))
    except errors.DeadlockDetected as error:
        told.append((error.diag.sqlstate, type(error).__name__))


met, told = threading.Barrier(2), []
threads = [threading.Thread(target=cross, args=(*pair, met, told)) for pair in (("a", "b"), ("b", "a"))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say("deadlock", *[word for victim in told for word in victim])


# Mistakes

def mistake(name, statement, before="SELECT"):
    try:
        with transaction() as cursor:
            cursor.execute(before)
            cursor.execute(statement)
            say(name, "no error")
    except driver.Error as error:
        say(name, error.diag.sqlstate, type(error).__name__)


mistake("write without a lease", "UPDATE item SET name = 'free'")
mistake("assert without a lease", "SELECT lease_assert('item:1', 'nobody')")
mistake("null", "SELECT lease_acquire(NULL, '1 minute', 'me')")
mistake("empty", "SELECT lease_acquire('', '1 minute', 'me')")
mistake("read only", "SELECT lease_acquire('item:2', '1 minute', 'me')", before="SET TRANSACTION READ ONLY")
mistake("the lease of another role", "SELECT lease_release('vault', 'boss')")
