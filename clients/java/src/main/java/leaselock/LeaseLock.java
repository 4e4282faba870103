package leaselock;

import java.sql.SQLException;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A lease as a lock: it excludes the threads of this process, and those of others. A thread may lock it more than once; that
 * throws {@link LeaseLost} after the lease was lost. In place of an SQLException there is a {@link LeaseException} that has it
 * as its cause.
 */
public final class LeaseLock implements Lock {
    private final Leases leases;
    private final String resource;
    private final Duration ttl;
    private final ReentrantLock here = new ReentrantLock(true);
    private volatile Lease lease; // of the thread that has it

    LeaseLock(Leases leases, String resource, Duration ttl) {
        this.leases = leases;
        this.resource = resource;
        this.ttl = ttl;
    }

    /** @return that of the lock, to write under it and to be told of its loss; null while it is not locked */
    public Lease lease() {
        return lease;
    }

    @Override
    public void lock() {
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    lockInterruptibly();
                    return;
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        here.lockInterruptibly();
        acquire(new Options().waitForever());
    }

    /**
     * The lease is not waited for, and the server for at most 5 seconds, plus 5 while a request is without an answer. An
     * interruption ends it, with the answer false.
     */
    @Override
    public boolean tryLock() {
        try {
            return here.tryLock() && acquire(new Options());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        long end = Clock.after(Clock.now(), Math.max(0, unit.toNanos(time)));
        return here.tryLock(time, unit) && acquire(new Options().waitFor(Duration.ofNanos(Clock.left(end))));
    }

    /** Called with the lock that is here, which it keeps if it returns true. */
    private boolean acquire(Options options) throws InterruptedException {
        boolean done = false;
        try {
            if (here.getHoldCount() > 1) {
                lease.check();
            } else {
                lease = leases.hold(resource, ttl, options);
                leases.locked.add(this);
            }
            done = true;
        } catch (LeaseTaken e) {
            return false;
        } catch (SQLException e) {
            throw new LeaseException("could not lock \"" + resource + "\": " + e.getMessage(), resource, e);
        } finally {
            if (!done) {
                here.unlock();
            }
        }
        return true;
    }

    /** @throws LeaseLost the lease was lost meanwhile; the lock is unlocked all the same */
    @Override
    public void unlock() {
        if (!here.isHeldByCurrentThread()) {
            throw new IllegalMonitorStateException("\"" + resource + "\" is not locked by this thread");
        }
        try {
            if (here.getHoldCount() == 1) {
                Lease held = lease;
                lease = null;
                leases.locked.remove(this);
                held.close();
            }
        } finally {
            here.unlock();
        }
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lease has no conditions");
    }
}
