package leaselock;

import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.lang.ref.WeakReference;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import javax.sql.DataSource;
import leaselock.LeaseLost.Reason;

/**
 * Leases that are renewed in the background, on one connection for all. Its methods may be called in any thread.
 *
 * <pre>{@code
 * try (Leases leases = new Leases("jdbc:postgresql:app");
 *         Lease lease = leases.hold("invoice:17", ofSeconds(30), new Options().waitFor(ofSeconds(10)))) {
 *     work();
 *     lease.inTransaction(connection -> {
 *         try (Statement statement = connection.createStatement()) {
 *             statement.execute("UPDATE invoice SET sent = true WHERE id = 17");
 *         }
 *     });
 * }
 * }</pre>
 */
public final class Leases implements AutoCloseable {
    /**
     * What {@link #elect} and {@link #once} run.
     *
     * @param <X> what it may throw besides
     */
    public interface Job<X extends Exception> {
        void run(Lease lease) throws SQLException, InterruptedException, X;
    }

    private static final Cleaner CLEANER = Cleaner.create();
    private static final Duration TTL = Duration.ofSeconds(30);

    final Set<LeaseLock> locked = ConcurrentHashMap.newKeySet(); // so that they are not collected

    private final Core core;
    private final Map<List<Object>, WeakReference<LeaseLock>> locks = new ConcurrentHashMap<>();
    private final Thread atExit = new Thread(this::closeAtExit, "lease_lock at exit");

    /** @param url as for {@link Source#of(String)}; no connection is made yet */
    public Leases(String url) {
        this(Source.of(url));
    }

    /** @param pool as for {@link Source#of(DataSource)}; no connection is made yet */
    public Leases(DataSource pool) {
        this(Source.of(pool));
    }

    /** @param source where connections come from; none is made yet */
    public Leases(Source source) {
        core = new Core(source);
        try {
            Runtime.getRuntime().addShutdownHook(atExit);
        } catch (IllegalStateException isEnding) {
            // what is held ends with its time
        }
    }

    /** {@link #hold(String, Duration, Options)} without a wait. */
    public Lease hold(String resource, Duration ttl) throws SQLException, InterruptedException {
        return hold(resource, ttl, new Options());
    }

    /**
     * Acquires a lease, which is renewed until it is closed.
     *
     * @param ttl how long it lasts without a renewal
     * @throws LeaseTaken another owner has it
     * @throws Closed the leases were closed, before or meanwhile
     * @throws OutcomeUnknown only with an owner that others use
     * @throws SQLException one that is not tried again, or the last one when the limit of the wait is over
     * @throws InterruptedException the thread was interrupted; the request is withdrawn in the background
     */
    public Lease hold(String resource, Duration ttl, Options options) throws SQLException, InterruptedException {
        return hold(resource, ttl, options, false);
    }

    private Lease hold(String resource, Duration ttl, Options options, boolean giveBack) throws SQLException, InterruptedException {
        Record record = new Call(new Request(resource, ttl, options, core.owner), options.extended).take(core);
        record.take(giveBack);
        Lease lease = new Lease(core, record);
        register(lease, core, record);
        return lease;
    }

    /** Here the lease must not be referred to. */
    private static void register(Lease lease, Core core, Record record) {
        CLEANER.register(lease, () -> core.orphan(record));
    }

    /** {@link #tryHold(String, Duration, Options)} as it is by default. */
    public Lease tryHold(String resource, Duration ttl) throws SQLException, InterruptedException {
        return tryHold(resource, ttl, new Options());
    }

    /**
     * {@link #hold(String, Duration, Options)} that does not wait.
     *
     * @return null if another owner has the lease. {@code try (Lease lease = leases.tryHold(...))} allows that
     */
    public Lease tryHold(String resource, Duration ttl, Options options) throws SQLException, InterruptedException {
        try {
            return hold(resource, ttl, new Options(options).waitFor(Duration.ZERO));
        } catch (LeaseTaken e) {
            return null;
        }
    }

    /** {@link #elect(String, Duration, Options, Job)} as it is by default. */
    public <X extends Exception> void elect(String resource, Duration ttl, Job<X> job) throws SQLException, InterruptedException, X {
        elect(resource, ttl, new Options(), job);
    }

    /**
     * Runs the job whenever this is the leader, until it returns as leader. It has to return when {@link Lease#isLost};
     * then this stands for election again. Returns also after {@link #close}.
     */
    public <X extends Exception> void elect(String resource, Duration ttl, Options options, Job<X> job)
            throws SQLException, InterruptedException, X {
        Options waiting = new Options(options).waitFor(ttl);
        while (!core.closed) {
            Lease lease;
            try {
                lease = hold(resource, ttl, waiting);
            } catch (LeaseTaken | Closed e) {
                continue;
            } catch (SQLException | OutcomeUnknown e) {
                if (e instanceof SQLException && Errors.sort(e, true) == Errors.Action.NOT_AGAIN) {
                    throw e;
                }
                Loop.warn("could not be elected on \"" + resource + "\": " + e.getMessage());
                Thread.sleep(1000); // it may come at once, again and again
                continue;
            }
            try (Lease held = lease) {
                job.run(held);
                held.check();
                return;
            } catch (InterruptedException e) {
                throw e;
            } catch (Exception e) { // may be by the loss
                Reason fate = lease.record.fate;
                if (fate == null || fate == Reason.RELEASED) {
                    throw e;
                }
                Loop.warn("not the leader of \"" + resource + "\": " + e.getMessage());
            }
        }
    }

    /** {@link #once(String, Duration, Duration, Options, Job)} with a ttl of 30 seconds. */
    public <X extends Exception> boolean once(String name, Duration period, Job<X> job) throws SQLException, InterruptedException, X {
        return once(name, period, TTL, new Options(), job);
    }

    /**
     * Runs the job, unless one was run under this name in the period before, on whichever host. If that host crashed, the
     * job is run when the ttl is over; if it threw an exception, at once with {@link Options#retryFailed}, else after the
     * period.
     *
     * @return whether it was run
     */
    public <X extends Exception> boolean once(String name, Duration period, Duration ttl, Options options, Job<X> job)
            throws SQLException, InterruptedException, X {
        Lease lease;
        try {
            Options all = new Options(options).minHold(period).waitFor(Duration.ZERO);
            lease = hold(name, ttl.compareTo(period) < 0 ? ttl : period, all, options.retryFailed);
        } catch (LeaseTaken e) {
            return false;
        }
        try {
            job.run(lease);
        } catch (Throwable e) {
            try {
                lease.close();
            } catch (LeaseLost lost) {
                e.addSuppressed(lost);
            }
            throw e;
        }
        lease.record.giveBack = false;
        lease.close();
        return true;
    }

    /** {@link #lock(String, Duration)} with a ttl of 30 seconds. */
    public LeaseLock lock(String resource) {
        return lock(resource, TTL);
    }

    /**
     * A lock for the threads of all hosts. It is the same object for the same resource and ttl, as long as it is in use.
     *
     * @param ttl that of the lease while it is locked
     */
    public LeaseLock lock(String resource, Duration ttl) {
        List<Object> key = List.of(resource, ttl);
        LeaseLock[] found = new LeaseLock[1];
        locks.compute(key, (same, known) -> {
            found[0] = known == null ? null : known.get();
            if (found[0] != null) {
                return known;
            }
            found[0] = new LeaseLock(this, resource, ttl);
            WeakReference<LeaseLock> made = new WeakReference<>(found[0]);
            CLEANER.register(found[0], () -> locks.remove(key, made));
            return made;
        });
        return found[0];
    }

    /**
     * Of a lease without renewal: it lasts for the ttl, and is kept for minHold, from now on. Null if it is not held, or if
     * that cannot be said now; then it stays as it is.
     */
    Lease extend(Lease lease, Duration ttl, Duration minHold) throws SQLException, InterruptedException {
        if (lease.isLost()) {
            return null;
        }
        try {
            Lease later = hold(lease.resource(), ttl,
                new Options().extending(lease.record).minHold(minHold).renew(false).stopBefore(Duration.ZERO));
            if (core.extend(lease.record, later.record)) {
                return later;
            }
            later.record.giveBack = later.token() != lease.token();
            later.release();
        } catch (LeaseTaken e) {
            if (!List.of("open", "failover").contains(e.reason())) {
                core.loop.soon(() -> core.keeper.lose(lease.record, Reason.BROKEN));
            }
        } finally {
            Reference.reachabilityFence(lease);
        }
        return null;
    }

    /** Numbers of leases that are kept, of releases that are not done, and of waits at the server. */
    int[] counts() throws SQLException, InterruptedException {
        return Core.await(core.counts());
    }

    void closeAtExit() {
        core.waitForNoCallback();
        close();
    }

    /** {@link #close(Duration)} within 10 seconds. If the thread is interrupted, which it stays, it goes on in the background. */
    @Override
    public void close() {
        try {
            close(Duration.ofSeconds(10));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /**
     * Releases what is held; calls that wait end with {@link Closed}. It leaves no thread and no connection. When the
     * program ends, it is called by itself.
     *
     * @return resources that were not released within the timeout; that goes on in the background
     */
    public List<String> close(Duration timeout) throws InterruptedException {
        try {
            Runtime.getRuntime().removeShutdownHook(atExit);
        } catch (IllegalStateException isEnding) {
            // it runs
        }
        try {
            return core.close(Clock.nanos(timeout)).get();
        } catch (ExecutionException e) {
            throw new IllegalStateException(e);
        }
    }
}
