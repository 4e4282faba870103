"""Holds leases until standard input ends, each with its own renewals: holder.py dsn ttl resource..."""

import signal
import sys
import time

from lease_lock import Leases

PATIENCE = 60      # with a slow machine: the leases are free

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


def lost(lease):
    print("lost", lease.resource, time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)


for resource in sys.argv[3:]:
    lease = Leases(sys.argv[1]).hold(resource, ttl=float(sys.argv[2]), wait=PATIENCE, on_lost=lost)
    print("held", resource, lease.token, flush=True)
sys.stdin.read()
