"""As holder.py, with asyncio."""

import asyncio
import signal
import sys
import time

from lease_lock import AsyncLeases

PATIENCE = 60      # with a slow machine: the leases are free


def lost(lease):
    print("lost", lease.resource, time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)


async def main():
    loop, end = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, end.set)
    for resource in sys.argv[3:]:
        lease = await AsyncLeases(sys.argv[1]).hold(resource, ttl=float(sys.argv[2]), wait=PATIENCE, on_lost=lost)
        print("held", resource, lease.token, flush=True)
    loop.add_reader(sys.stdin, end.set)
    await end.wait()


asyncio.run(main())
