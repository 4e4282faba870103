"""Leases in PostgreSQL: renewed in the background, noticed in time when lost, fenced where data is written."""

from ._async import AsyncLease, AsyncLeases
from ._request import Closed, LeaseLost, LeaseTaken
from ._sync import Lease, Leases

__all__ = ["AsyncLease", "AsyncLeases", "Closed", "Lease", "LeaseLost", "LeaseTaken", "Leases"]
