package leaselock;

import java.sql.SQLException;
import java.time.Duration;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;

/**
 * Locks for ShedLock, by the clock of the server. lockAtMostFor is the ttl of a lease that is not renewed; lockAtLeastFor is
 * its minHold. A late unlock does not end the lock of another owner.
 */
public final class LeaseLockProvider implements LockProvider {
    private interface Call {
        Lease run() throws SQLException, InterruptedException;
    }

    private final Leases leases;

    public LeaseLockProvider(Leases leases) {
        this.leases = leases;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration wanted) {
        return lock(() -> leases.tryHold(wanted.getName(), wanted.getLockAtMostFor(),
            new Options().renew(false).stopBefore(Duration.ZERO).minHold(wanted.getLockAtLeastFor())));
    }

    private Optional<SimpleLock> lock(Call call) {
        try {
            return Optional.ofNullable(call.run()).map(Held::new);
        } catch (SQLException | LeaseException e) {
            throw new LockException("no answer about a lease", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new LockException("interrupted", e);
        }
    }

    private final class Held implements SimpleLock {
        private final Lease lease;

        Held(Lease lease) {
            this.lease = lease;
        }

        @Override
        public void unlock() {
            try {
                lease.close();
            } catch (LeaseLost e) {
                Loop.warn(e.getMessage() + ", before it was unlocked"); // lockAtMostFor was too short
            }
        }

        @Override
        public Optional<SimpleLock> extend(Duration lockAtMostFor, Duration lockAtLeastFor) {
            return lock(() -> leases.extend(lease, lockAtMostFor, lockAtLeastFor));
        }
    }
}
