"""Leases in PostgreSQL: renewed in the background, noticed in time when lost, fenced where data is written."""

from ._async import AsyncLease, AsyncLeases
from ._errors import Cancelled, Closed, LeaseError, LeaseLost, LeaseTaken, OutcomeUnknown
from ._outcome import Cancel
from ._sync import Lease, Leases

__all__ = ["AsyncLease", "AsyncLeases", "Cancel", "Cancelled", "Closed", "Lease", "LeaseError", "LeaseLost", "LeaseTaken",
           "Leases", "OutcomeUnknown"]
