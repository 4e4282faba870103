package leaselock;

import java.lang.ref.Reference;
import java.lang.ref.WeakReference;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import leaselock.LeaseLost.Reason;

/**
 * A lease that is held until it is closed, released or lost. One that nobody refers to any longer is released when it is
 * collected.
 */
public final class Lease implements AutoCloseable {
    /**
     * What is done in a transaction.
     *
     * @param <X> what it may throw besides SQLException
     */
    public interface Work<X extends Exception> {
        void run(Connection connection) throws SQLException, X;
    }

    /**
     * What is done in a transaction, with a result.
     *
     * @param <T> its result
     * @param <X> what it may throw besides SQLException
     */
    public interface Query<T, X extends Exception> {
        T run(Connection connection) throws SQLException, X;
    }

    final Record record;
    private final Core core;
    private final List<Consumer<LeaseLost>> callbacks = new ArrayList<>(); // of the loop

    Lease(Core core, Record record) {
        this.core = core;
        this.record = record;
    }

    /** @return that of the call */
    public String resource() {
        return record.request.resource;
    }

    /** @return the name under which it is held */
    public String owner() {
        return record.request.owner;
    }

    /** @return the fencing token: higher for every later grant on the resource */
    public long token() {
        return record.token;
    }

    /** @return true if it is lost, before anybody else can have it; false after its release */
    public boolean isLost() {
        return record.lost.isDone() || record.fate == null && record.remaining() == 0;
    }

    /**
     * Tells of a loss before anybody else can have the lease, by its release or the end of the leases not at all.
     *
     * @param callback is called once, in a thread of its own; at once if the lease is lost already
     */
    public void onLost(Consumer<LeaseLost> callback) {
        core.loop.soon(() -> {
            if (record.fate == null) {
                callbacks.add(callback);
                record.callbacks = new WeakReference<>(callbacks);
            } else if (record.fate != Reason.RELEASED && record.fate != Reason.CLOSED) {
                core.callBack(record, callback);
            }
        });
    }

    /** @return how long until it is lost unless it is renewed before: the holder has to stop by then. 0 if it is not held */
    public Duration remaining() {
        return Duration.ofNanos(record.remaining());
    }

    /**
     * Makes no call.
     *
     * @throws LeaseLost it is lost, or released
     */
    public void check() {
        if (record.remaining() == 0) {
            throw record.loss(null);
        }
    }

    /** @return whether anybody waits for it, by the last renewal; empty if that is not known */
    public Optional<Boolean> contended() {
        return Optional.ofNullable(record.contended);
    }

    /**
     * Ends within 5 seconds, or with the lease.
     *
     * @return false if it was not held any longer
     * @throws OutcomeUnknown no answer came; it goes on in the background until the end of the lease
     * @throws SQLException one that is not tried again
     * @throws InterruptedException it goes on in the background
     */
    public boolean release() throws SQLException, InterruptedException {
        try {
            return Core.await(core.finish(record));
        } finally {
            Reference.reachabilityFence(this);
        }
    }

    /**
     * Releases it, within 5 seconds or with the lease. An error is logged. A release without an answer is logged, too, and
     * goes on in the background; so it does, at once, if the thread is interrupted, which it stays.
     *
     * @throws LeaseLost it was lost
     */
    @Override
    public void close() {
        if (record.fate == Reason.RELEASED) {
            return;
        }
        try {
            if (Core.await(core.finish(record))) {
                return;
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return;
        } catch (SQLException | RuntimeException e) {
            Loop.warn("could not release lease on \"" + resource() + "\": " + e.getMessage());
            return;
        } finally {
            Reference.reachabilityFence(this);
        }
        throw record.loss(null);
    }

    /**
     * A transaction that asserts the lease, and may write to tables that it protects. Nobody else is granted the lease
     * before it ends. It begins within 5 seconds or fails; it is rolled back if the work throws; if the lease is lost,
     * or the thread interrupted, its connection is cut off. The connection is one of {@link Source#transactions}, or made for it.
     *
     * @param work gets the connection; commit, rollback and auto-commit are not its business
     * @throws LeaseLost the lease is lost
     * @throws OutcomeUnknown COMMIT had no answer while the lease lasted, or its wait for a standby was cancelled
     * @throws InterruptedException the thread was interrupted before COMMIT: it is rolled back
     */
    public <X extends Exception> void inTransaction(Work<X> work) throws SQLException, InterruptedException, X {
        this.<Void, X>callInTransaction(connection -> {
            work.run(connection);
            return null;
        });
    }

    /**
     * {@link #inTransaction} with a result.
     *
     * @return that of the work
     */
    public <T, X extends Exception> T callInTransaction(Query<T, X> work) throws SQLException, InterruptedException, X {
        try {
            return new Transaction(core, record).run(this, work);
        } finally {
            Reference.reachabilityFence(this);
        }
    }

    /**
     * Asserts the lease in a transaction of the program's (of Spring, of JPA), which may then write to tables that it
     * protects. Nobody else is granted the lease before that transaction ends. End it before the lease.
     *
     * @param connection in that transaction, with the role that has the lease
     * @throws LeaseLost the lease is lost; roll back
     */
    public void assertIn(Connection connection) throws SQLException {
        check();
        Transaction.assertHeld(core, record, connection);
    }

    @Override
    public String toString() {
        Reason fate = record.fate;
        return "Lease[" + resource() + ", token " + token() + ", " + (fate == null ? "held" : fate.name().toLowerCase(java.util.Locale.ROOT)) + "]";
    }
}
