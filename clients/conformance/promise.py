"""The one promise: a holder knows that its lease is lost before anybody else is granted it."""

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

from servers import LONG, wait_until


def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def granted_at(server, resource):
    """Wait for the lease; the earliest moment at which it can have been granted."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        sent = now()
        granted, waited = connection.execute(
            "SELECT granted, extract(epoch FROM waited)::float8 FROM lease_request(%s, '10 min', %s, wait => %s)",
            [resource, f"second:{resource}", f"{LONG} s"]).fetchone()
        assert granted
        return sent + waited


def lost_before_granted(server, proxy, resources, next_lost):
    """The holder cannot reach the server any longer. next_lost() returns a resource, and when it was told of its loss."""
    with ThreadPoolExecutor(len(resources)) as threads:
        second = {resource: threads.submit(granted_at, server, resource) for resource in resources}
        # A holder on a slow machine may have lost its lease already.
        wait_until(lambda: server.waiters("%")
                   + sum(future.done() for future in second.values()) >= len(resources))
        proxy.silence()
        lost = dict(next_lost() for _ in resources)
        spare = [second[resource].result(LONG) - lost[resource] for resource in resources]
    print(f"lost {min(spare):.3f} to {max(spare):.3f} s before the next grant, {len(spare)} times")
    assert min(spare) > 0
