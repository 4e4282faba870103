package leaselock;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLWarning;
import java.sql.Statement;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.Lock;
import java.util.logging.Level;
import java.util.logging.Logger;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;
import org.postgresql.core.BaseConnection;
import org.postgresql.ds.PGSimpleDataSource;
import org.postgresql.util.PSQLWarning;
import org.postgresql.util.ServerErrorMessage;
import org.springframework.integration.support.locks.LockRegistry;

/** What only Java has. The promises are tested by clients/conformance. Nothing depends on speed: LONG is for a test that hangs. */
public final class Tests {
    private static final Duration HOUR = Duration.ofHours(1);
    private static final int LONG = Integer.parseInt(System.getenv().getOrDefault("PG_TEST_TIMEOUT_DEFAULT", "180"));
    private static final String URL =
        "jdbc:postgresql://127.0.0.1:" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE") + "?user=" + System.getenv("PGUSER");

    private static final class Failed extends Exception {
        private static final long serialVersionUID = 1;
    }

    private interface Call {
        void run() throws Exception;
    }

    /** Decides what becomes of a statement. A warning is told in place of those of the server. */
    private interface Wire {
        SQLWarning execute(Statement statement, String text) throws SQLException;
    }

    private interface Answer {
        SQLWarning call() throws SQLException;
    }

    private interface Instead {
        Object call(Method method, Object[] args) throws Exception;
    }

    private final List<Leases> opened = new ArrayList<>();
    private final Connection direct = DriverManager.getConnection(URL);
    private final Leases leases = open(Source.of(URL));

    private Tests() throws SQLException { }

    public static void main(String[] args) throws Exception {
        Logger.getLogger("leaselock").setLevel(Level.OFF); // what tests provoke
        Path hosts = Files.createTempFile("hosts", null);
        Files.writeString(hosts, "127.0.0.2 two-addresses\n127.0.0.1 two-addresses\n");
        System.setProperty("jdk.net.hosts.file", hosts.toString());
        hosts.toFile().deleteOnExit();
        int passed = 0;
        int failed = 0;
        Method[] methods = Tests.class.getDeclaredMethods();
        Arrays.sort(methods, Comparator.comparing(Method::getName));
        for (Method method : methods) {
            if (Modifier.isPublic(method.getModifiers()) && !Modifier.isStatic(method.getModifiers())) {
                long since = System.nanoTime();
                Throwable failure = new Tests().failure(method);
                System.out.printf("%sok - %s (%d ms)%n", failure == null ? "" : "not ", method.getName(), (System.nanoTime() - since) / 1_000_000);
                if (failure != null) {
                    failure.printStackTrace(System.out);
                }
                passed += failure == null ? 1 : 0;
                failed += failure == null ? 0 : 1;
            }
        }
        System.out.println("# pass " + passed + "\n# fail " + failed);
        System.exit(failed == 0 ? 0 : 1);
    }

    private Throwable failure(Method test) throws Exception {
        try {
            sql("SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS lease_lock; "
                + "DROP TABLE IF EXISTS entry; CREATE TABLE entry (id int)");
            test.invoke(this);
            return null;
        } catch (InvocationTargetException e) {
            return e.getCause();
        } finally {
            opened.forEach(Leases::close);
            sql("SELECT lease_break(resource) FROM lease_status");
            direct.close();
        }
    }

    // What the tests have in common

    private Leases open(Source source) {
        Leases made = new Leases(source);
        opened.add(made);
        return made;
    }

    private String sql(String statement) throws SQLException {
        return sql(direct, statement);
    }

    private static String sql(Connection connection, String text) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            if (!statement.execute(text)) {
                return null;
            }
            ResultSet rows = statement.getResultSet();
            return rows.next() ? rows.getString(1) : null;
        }
    }

    private boolean isHeld(String resource) throws SQLException {
        return !sql("SELECT count(*) FROM lease_status WHERE resource = '" + resource + "' AND state = 'held'").equals("0");
    }

    private boolean isWaitedFor(String resource) throws SQLException {
        return !sql("SELECT count(*) FROM lease_waiters WHERE resource = '" + resource + "'").equals("0");
    }

    private void breakLease(String resource) throws SQLException {
        sql("SELECT lease_break('" + resource + "')");
    }

    private static void check(boolean condition) {
        if (!condition) {
            throw new AssertionError("it is not so");
        }
    }

    private static void same(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", not " + found);
        }
    }

    private static <E extends Throwable> E fails(Class<E> expected, Call call) {
        try {
            call.run();
        } catch (Throwable e) {
            if (expected.isInstance(e)) {
                return expected.cast(e);
            }
            throw new AssertionError("expected " + expected.getSimpleName(), e);
        }
        throw new AssertionError("expected " + expected.getSimpleName());
    }

    private static void waitUntil(Callable<Boolean> condition) throws Exception {
        for (long end = Clock.now() + LONG * Clock.SECOND; !condition.call(); Thread.sleep(10)) {
            check(Clock.now() < end);
        }
    }

    /** Runs it in a thread; what it throws is told. */
    private static Thread start(BlockingQueue<Object> told, Callable<?> call) {
        Thread thread = new Thread(() -> {
            try {
                told.add(String.valueOf(call.call()));
            } catch (Exception e) {
                told.add(e);
            }
        });
        thread.start();
        return thread;
    }

    private static Object take(BlockingQueue<Object> told) throws InterruptedException {
        Object found = told.poll(LONG, TimeUnit.SECONDS);
        check(found != null);
        return found;
    }

    private static Source through(Wire wire) {
        return Source.of(() -> {
            Connection connection = DriverManager.getConnection(URL);
            return like(Connection.class, connection, (method, args) -> method.getName().equals("createStatement")
                ? through(wire, connection.createStatement()) : null);
        });
    }

    private static Statement through(Wire wire, Statement statement) {
        SQLWarning[] warning = new SQLWarning[1];
        return like(Statement.class, statement, (method, args) -> {
            if (method.getName().equals("getWarnings")) {
                return warning[0];
            }
            if (!method.getName().equals("execute")) {
                return null;
            }
            warning[0] = wire.execute(statement, (String) args[0]);
            return statement.getUpdateCount() == -1;
        });
    }

    private static SQLWarning pass(Statement statement, String text) throws SQLException {
        statement.execute(text);
        return null;
    }

    /** Does the same as the other one, unless something is done instead. */
    private static <T> T like(Class<T> type, T other, Instead instead) {
        return type.cast(Proxy.newProxyInstance(Tests.class.getClassLoader(), new Class<?>[] {type}, (proxy, method, args) -> {
            Object result = instead.call(method, args);
            try {
                return result == null ? method.invoke(other, args) : result;
            } catch (InvocationTargetException e) {
                throw e.getCause();
            }
        }));
    }

    // Blocks and threads

    public void aBlockReleasesAndItsExceptionGoesFirst() throws Exception {
        fails(Failed.class, () -> {
            try (Lease lease = leases.hold("r", HOUR)) {
                check(isHeld("r"));
                throw new Failed();
            }
        });
        check(!isHeld("r"));
        Failed failed = fails(Failed.class, () -> {
            try (Lease lease = leases.hold("r", HOUR)) {
                breakLease("r");
                throw new Failed();
            }
        });
        same(LeaseLost.Reason.BROKEN, ((LeaseLost) failed.getSuppressed()[0]).reason());
        fails(LeaseLost.class, () -> {
            try (Lease lease = leases.hold("r", HOUR)) {
                breakLease("r");
            }
        });
        try (Lease lease = leases.hold("r", HOUR); Lease second = leases.tryHold("r", HOUR)) {
            check(second == null);
            check(lease.release());
            check(!lease.release());
        }
    }

    public void anInterruptedThreadDoesNotWaitAnyLonger() throws Exception {
        BlockingQueue<Object> told = new LinkedBlockingQueue<>();
        try (Lease lease = leases.hold("r", HOUR)) {
            Thread thread = start(told, () -> leases.hold("r", HOUR, new Options().waitForever()));
            waitUntil(() -> isWaitedFor("r"));
            thread.interrupt();
            check(take(told) instanceof InterruptedException);
            waitUntil(() -> !isWaitedFor("r"));
            check(lease.release());
        }
    }

    public void anInterruptedThreadReleasesAndStaysInterrupted() throws Exception {
        Lease lease = leases.hold("r", HOUR);
        Thread.currentThread().interrupt();
        lease.close();
        check(Thread.interrupted());
        waitUntil(() -> !isHeld("r"));
        lease = leases.hold("r", HOUR);
        Thread.currentThread().interrupt();
        boolean interrupted;
        try {
            lease.release();
            interrupted = Thread.interrupted(); // the answer came before the wait for it
        } catch (InterruptedException e) {
            interrupted = true;
        }
        check(interrupted);
        waitUntil(() -> !isHeld("r"));
    }

    public void aLossIsToldOnceAndAReleaseIsNot() throws Exception {
        BlockingQueue<Object> told = new LinkedBlockingQueue<>();
        Lease lease = leases.hold("r", Duration.ofSeconds(3));
        lease.onLost(told::add);
        lease.onLost(lost -> {
            throw new IllegalStateException("in the callback");
        });
        breakLease("r");
        same(LeaseLost.Reason.BROKEN, ((LeaseLost) take(told)).reason());
        check(lease.isLost() && lease.remaining().isZero());
        same("r", fails(LeaseLost.class, lease::check).resource());
        lease.onLost(told::add); // late
        take(told);
        Lease released = leases.hold("r", HOUR);
        released.onLost(told::add);
        check(released.release());
        check(!released.isLost());
        leases.close();
        check(told.isEmpty());
    }

    public void aCallbackMayClose() throws Exception {
        BlockingQueue<Object> told = new LinkedBlockingQueue<>();
        Lease lease = leases.hold("r", HOUR);
        lease.onLost(lost -> {
            try {
                told.add(leases.close(Duration.ofSeconds(LONG)));
            } catch (InterruptedException e) {
                told.add(e);
            }
        });
        breakLease("r");
        fails(LeaseLost.class, () -> lease.inTransaction(connection -> { }));
        Object closed = told.poll(LONG / 2, TimeUnit.SECONDS);
        same(List.of(), closed == null ? "waits for itself" : closed);
        waitUntil(() -> !isThere("lease_lock"));
    }

    public void aCallbackMayExit() throws Exception {
        CountDownLatch runs = new CountDownLatch(1);
        CountDownLatch exit = new CountDownLatch(1); // it returns when all is closed
        Lease lease = leases.hold("r", HOUR);
        lease.onLost(lost -> {
            runs.countDown();
            try {
                exit.await();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        });
        breakLease("r");
        fails(LeaseLost.class, () -> lease.inTransaction(connection -> { }));
        runs.await();
        leases.closeAtExit();
        waitUntil(() -> Thread.getAllStackTraces().keySet().stream().noneMatch(each -> each.getName().equals("lease_lock")));
        exit.countDown();
    }

    public void aCallbackThatNamesItsLeaseDoesNotKeepIt() throws Exception {
        holdAndDrop();
        waitUntil(() -> {
            System.gc();
            return !isHeld("r");
        });
    }

    private void holdAndDrop() throws Exception {
        Lease lease = leases.hold("r", HOUR);
        lease.onLost(lost -> check(lease.isLost()));
        leases.counts(); // it is registered
    }

    public void exceptionsShowWhereTheCallWas() throws Exception {
        leases.hold("r", HOUR);
        LeaseTaken taken = fails(LeaseTaken.class, () -> leases.hold("r", HOUR));
        check(Arrays.stream(taken.getStackTrace()).anyMatch(frame -> frame.getMethodName().contains("exceptionsShowWhere")));
        check(taken.blockedFor().get().compareTo(HOUR) <= 0 && taken.blockedBy().isPresent());
    }

    public void closeLeavesNoThreadAndNoConnection() throws Exception {
        Leases own = open(Source.of(URL + "&ApplicationName=own"));
        own.hold("r", HOUR).inTransaction(connection -> sql(connection, "SELECT 1"));
        check(isThere("lease_lock"));
        leases.close(Duration.ofSeconds(LONG));
        same(List.of(), own.close(Duration.ofSeconds(LONG)));
        same(List.of(), own.close(Duration.ofSeconds(LONG)));
        waitUntil(() -> !isThere("lease_lock"));
        waitUntil(() -> sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'own'").equals("0"));
        fails(Closed.class, () -> own.hold("r", HOUR));
    }

    private static boolean isThere(String thread) {
        return Thread.getAllStackTraces().keySet().stream().anyMatch(each -> each.getName().startsWith(thread) && !each.getName().endsWith("exit"));
    }

    public void jobsMayThrowWhatTheyWant() throws Exception {
        check(leases.once("job", HOUR, lease -> check(isHeld("job"))));
        check(!leases.once("job", HOUR, lease -> check(false)));
        fails(IOException.class, () -> leases.once("other", HOUR, lease -> {
            throw new IOException();
        }));
        leases.elect("leader", HOUR, Lease::check);
        fails(Failed.class, () -> leases.elect("leader", HOUR, lease -> {
            throw new Failed();
        }));
        check(!isHeld("leader"));
    }

    public void anErrorOfTheReleaseDoesNotHideThatOfTheJob() throws Exception {
        AtomicBoolean broken = new AtomicBoolean();
        Leases own = open(through((statement, text) -> {
            if (broken.get()) {
                throw new IllegalStateException("not of the driver");
            }
            return pass(statement, text);
        }));
        fails(Failed.class, () -> own.once("job", HOUR, lease -> {
            broken.set(true);
            throw new Failed();
        }));
    }

    public void anElectionPausesAfterAnUnknownOutcome() throws Exception {
        BlockingQueue<Object> told = new LinkedBlockingQueue<>();
        Leases own = open(through((statement, text) -> {
            if (text.contains("lease_request(")) {
                told.add(Clock.now());
                throw new SQLException("no answer", "08006");
            }
            return pass(statement, text);
        }));
        Thread thread = start(new LinkedBlockingQueue<>(), () -> {
            own.elect("r", HOUR, new Options().owner("shared"), lease -> check(false));
            return null;
        });
        long first = (Long) take(told);
        check((Long) take(told) - first >= Clock.SECOND);
        thread.interrupt();
    }

    public void whatIsCutOffEndsAlsoIfNoThreadCanBeMade() throws Exception {
        ThreadPoolExecutor threads = (ThreadPoolExecutor) Loop.THREADS;
        CountDownLatch runs = new CountDownLatch(1);
        CountDownLatch answer = new CountDownLatch(1);
        CompletableFuture<Exception> outcome = new CompletableFuture<>();
        Loop loop = new Loop();
        Link link = new Link(loop, through((statement, text) -> {
            if (text.contains("7 * 6")) {
                runs.countDown();
                await(answer);
            }
            return pass(statement, text);
        }));
        waitUntil(() -> !isThere("lease_lock connection"));
        loop.soon(() -> link.run(Clock.NEVER, (schema, connection) -> "SELECT 7 * 6", done -> outcome.complete(done.error)));
        runs.await();
        ThreadFactory factory = threads.getThreadFactory();
        threads.setThreadFactory(run -> {
            throw new OutOfMemoryError("by the test");
        });
        try {
            loop.soon(link::cut);
            check(outcome.get(LONG, TimeUnit.SECONDS).getMessage().contains("no answer in time"));
        } finally {
            threads.setThreadFactory(factory);
            answer.countDown();
            loop.stop();
        }
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    public void aLeaseThatItsCallerHasNotTakenIsGivenBack() throws Exception {
        Core core = new Core(Source.of(URL));
        Record record = new leaselock.Call(new Request("r", HOUR, new Options().minHold(HOUR), core.owner)).take(core);
        same(List.of(), core.close(LONG * Clock.SECOND).get());
        check(leases.tryHold("r", HOUR) != null);
        fails(Closed.class, () -> record.take(false));
    }

    public void allCopiesOfARequestThatMayStillArriveAreReleased() throws Exception {
        Core core = new Core(Source.of(URL));
        Record record = doubtful(core, "r", 3);
        CompletableFuture<Boolean> outcome = new CompletableFuture<>();
        CompletableFuture<Object> copies = outcome.thenApply(released -> core.keeper.endings.iterator().next().copies);
        core.loop.soon(() -> core.keeper.finish(record, outcome, () -> { }));
        same(3, copies.get(LONG, TimeUnit.SECONDS));
        same(List.of(), core.close(LONG * Clock.SECOND).get());
    }

    public void aReleaseThatIsAnsweredIsNotSentAgain() throws Exception {
        Core core = new Core(Source.of(URL));
        Options counting = new Options().ifOwn("count");
        Record first = new leaselock.Call(new Request("first", HOUR, counting, core.owner)).take(core);
        Record doubtful = doubtful(core, "doubtful", 1);
        Record counted = new leaselock.Call(new Request("counted", HOUR, counting, core.owner)).take(core);
        new leaselock.Call(new Request("counted", HOUR, counting, core.owner)).take(core);
        List<CompletableFuture<Boolean>> outcomes = new ArrayList<>();
        core.loop.soon(() -> { // the first one is on its way while the others come, so these go together
            for (Record record : List.of(first, doubtful, counted)) {
                outcomes.add(core.finish(record));
            }
        });
        waitUntil(() -> core.counts().get()[0] == 1 && core.counts().get()[1] == 0);
        for (CompletableFuture<Boolean> outcome : outcomes) {
            same(true, outcome.get());
        }
        check(isHeld("counted")); // once
        same(List.of(), core.close(LONG * Clock.SECOND).get());
    }

    /** A lease that was granted after so many requests without an answer. */
    private static Record doubtful(Core core, String resource, int unanswered) throws Exception {
        leaselock.Call call = new leaselock.Call(new Request(resource, HOUR, new Options(), core.owner));
        call.unanswered = unanswered;
        call.doubtfulUntil = Clock.NEVER;
        return call.take(core);
    }

    // Locks

    public void aLockExcludesThreadsAndOtherProcesses() throws Exception {
        BlockingQueue<Object> told = new LinkedBlockingQueue<>();
        LeaseLock lock = leases.lock("r");
        Lock other = open(Source.of(URL)).lock("r");
        check(lock == leases.lock("r") && lock != leases.lock("s"));
        lock.lock();
        check(lock.tryLock() && lock.lease().token() > 0);
        check(!other.tryLock() && !other.tryLock(10, TimeUnit.MILLISECONDS));
        start(told, () -> lock.tryLock());
        same("false", take(told));
        start(told, () -> {
            lock.unlock();
            return null;
        });
        check(take(told) instanceof IllegalMonitorStateException);
        Thread thread = start(told, () -> {
            other.lockInterruptibly();
            return null;
        });
        waitUntil(() -> isWaitedFor("r"));
        thread.interrupt();
        check(take(told) instanceof InterruptedException);
        lock.unlock();
        check(isHeld("r"));
        lock.unlock();
        check(!isHeld("r") && lock.lease() == null);
        check(other.tryLock(LONG, TimeUnit.SECONDS));
        other.unlock();
        fails(IllegalMonitorStateException.class, other::unlock);
    }

    public void aLockThatIsInterruptedWaitsOn() throws Exception {
        BlockingQueue<Object> told = new LinkedBlockingQueue<>();
        Lock lock = leases.lock("r");
        Lease lease = open(Source.of(URL)).hold("r", HOUR);
        Thread thread = start(told, () -> {
            lock.lock();
            lock.unlock();
            return Thread.interrupted();
        });
        waitUntil(() -> isWaitedFor("r"));
        thread.interrupt();
        lease.close();
        same("true", take(told));
    }

    public void aLockThatWasLostSaysSoAndIsFree() throws Exception {
        LeaseLock lock = leases.lock("r", HOUR);
        lock.lock();
        breakLease("r");
        fails(LeaseLost.class, () -> lock.lease().inTransaction(connection -> { }));
        waitUntil(lock.lease()::isLost);
        for (Call again : List.<Call>of(lock::lock, lock::lockInterruptibly, lock::tryLock, () -> lock.tryLock(1, TimeUnit.SECONDS))) {
            fails(LeaseLost.class, again);
        }
        fails(LeaseLost.class, lock::unlock);
        BlockingQueue<Object> told = new LinkedBlockingQueue<>();
        start(told, lock::tryLock);
        same("true", take(told));
        LeaseLock nowhere = open(Source.of("jdbc:postgresql://127.0.0.1:1/x")).lock("r");
        check(fails(LeaseException.class, () -> nowhere.tryLock(1, TimeUnit.MILLISECONDS)).getCause() instanceof SQLException);
    }

    public void aLockThatNobodyRefersToIsKeptWhileItIsLocked() throws Exception {
        leases.lock("r").lock();
        for (int n = 0; n < 3; n++) {
            System.gc();
            leases.lock("s").tryLock();
        }
        check(isHeld("r"));
        leases.lock("r").unlock();
        check(!isHeld("r"));
    }

    public void theRegistryOfSpringIntegrationHasLocks() throws Exception {
        LockRegistry registry = new LeaseLockRegistry(leases, HOUR);
        registry.obtain(17).lock();
        check(isHeld("17"));
        registry.obtain(17).unlock();
        check(!isHeld("17"));
    }

    public void theProviderOfShedLockHonoursItsTimes() throws Exception {
        LockProvider provider = new LeaseLockProvider(leases);
        LockConfiguration brief = new LockConfiguration(Instant.now(), "brief", HOUR, Duration.ZERO);
        SimpleLock lock = provider.lock(brief).get();
        same(Optional.empty(), provider.lock(brief));
        lock.unlock();
        SimpleLock again = provider.lock(brief).get();
        lock.unlock(); // late: it is that of another call
        check(isHeld("brief"));
        SimpleLock longer = again.extend(HOUR.multipliedBy(9), HOUR).get();
        check(Double.parseDouble(sql("SELECT extract(epoch FROM expires_in) FROM lease_status WHERE resource = 'brief'")) > 4 * 3600);
        longer.unlock();
        same(Optional.empty(), provider.lock(brief)); // lockAtLeastFor of the extension
        SimpleLock kept = provider.lock(new LockConfiguration(Instant.now(), "kept", HOUR, HOUR)).get();
        kept.unlock();
        same(Optional.empty(), provider.lock(new LockConfiguration(Instant.now(), "kept", HOUR, HOUR)));
        SimpleLock lost = provider.lock(new LockConfiguration(Instant.now(), "lost", HOUR, HOUR)).get();
        breakLease("lost");
        same(Optional.empty(), lost.extend(HOUR, HOUR));
        check(!isHeld("lost"));
        same(0, leases.counts()[0]);
    }

    public void aLockOfShedLockThatCannotBeExtendedNowIsStillHeld() throws Exception {
        SimpleLock lock = new LeaseLockProvider(leases).lock(new LockConfiguration(Instant.now(), "open", HOUR, Duration.ZERO)).get();
        direct.setAutoCommit(false);
        sql("SELECT lease_release('open', owner) FROM lease_status WHERE resource = 'open'");
        same(Optional.empty(), lock.extend(HOUR, HOUR));
        direct.rollback();
        direct.setAutoCommit(true);
        check(isHeld("open"));
        lock.unlock();
        check(!isHeld("open"));
    }

    public void aLockOfShedLockStaysAsItWasIfItsExtensionIsInterrupted() throws Exception {
        BlockingQueue<Object> told = new LinkedBlockingQueue<>();
        CountDownLatch granted = new CountDownLatch(1);
        CountDownLatch answer = new CountDownLatch(1);
        SimpleLock lock = lock(through((statement, text) -> {
            pass(statement, text);
            if (isExtension(text)) {
                granted.countDown();
                await(answer);
            }
            return null;
        }));
        Thread thread = start(told, () -> lock.extend(HOUR, Duration.ZERO));
        granted.await();
        thread.interrupt();
        check(take(told) instanceof LockException);
        answer.countDown();
        waitUntil(() -> !isThere("lease_lock connection")); // they have done everything
        check(isHeld("r"));
        lock.unlock();
        check(!isHeld("r"));
    }

    public void anExtensionOfShedLockIsRepeatedAndNotReleased() throws Exception {
        anExtensionIsRepeated(() -> {
            throw new SQLException("no answer", "08006");
        });
        anExtensionIsRepeated(() -> new PSQLWarning(new ServerErrorMessage("RSyncRepWaitForLSN\0")));
    }

    private void anExtensionIsRepeated(Answer firstAnswer) throws Exception {
        List<String> sent = new CopyOnWriteArrayList<>();
        SimpleLock lock = lock(through((statement, text) -> {
            pass(statement, text);
            sent.add(text);
            return isExtension(text) && sent.stream().filter(Tests::isExtension).count() == 1 ? firstAnswer.call() : null;
        }));
        String token = sql("SELECT token FROM lease_status WHERE resource = 'r'");
        SimpleLock longer = lock.extend(HOUR, Duration.ZERO).get();
        same(token, sql("SELECT token FROM lease_status WHERE resource = 'r'"));
        check(sent.stream().noneMatch(text -> text.contains("lease_release(")));
        longer.unlock();
        check(!isHeld("r"));
    }

    public void theReleaseOfAnExtendedLockOfShedLockIsRepeated() throws Exception {
        AtomicBoolean failed = new AtomicBoolean();
        SimpleLock lock = lock(through((statement, text) -> {
            if (text.contains("lease_release(") && failed.compareAndSet(false, true)) {
                throw new SQLException("no answer", "08006");
            }
            return pass(statement, text);
        }));
        lock.extend(HOUR, Duration.ZERO).get().unlock();
        check(failed.get() && !isHeld("r"));
    }

    public void aLockOfShedLockThatWasLostMeanwhileIsNotExtended() throws Exception {
        Core core = new Core(Source.of(URL));
        Record held = new leaselock.Call(new Request("r", HOUR, new Options(), "")).take(core);
        Record later = new leaselock.Call(new Request("r", HOUR, new Options().extending(held), ""), held).take(core);
        core.loop.soon(() -> core.keeper.lose(held, LeaseLost.Reason.EXPIRED));
        check(held.token == later.token && !core.extend(held, later));
        same(List.of(), core.close(LONG * Clock.SECOND).get());
    }

    private SimpleLock lock(Source source) {
        return new LeaseLockProvider(open(source)).lock(new LockConfiguration(Instant.now(), "r", HOUR, Duration.ZERO)).get();
    }

    private static boolean isExtension(String text) {
        return text.contains("lease_request(") && text.contains("if_own => E'renew'");
    }

    // Transactions and sources

    public void eachAddressOfAHostHasItsShareOfTheTime() throws Exception {
        try (ServerSocket silent = new ServerSocket(Integer.parseInt(System.getenv("PGPORT")), 0, InetAddress.getByName("127.0.0.2"))) {
            try (Lease lease = open(Source.of(URL.replace("127.0.0.1", "two-addresses"))).hold("r", HOUR)) {
                same("1", lease.callInTransaction(connection -> sql(connection, "SELECT 1")));
            }
        }
    }

    public void aTransactionHasAResultAndItsExceptionsPass() throws Exception {
        Lease lease = leases.hold("r", HOUR);
        same("1", lease.callInTransaction(connection -> sql(connection, "INSERT INTO entry VALUES (1) RETURNING id")));
        fails(Failed.class, () -> lease.inTransaction(connection -> {
            sql(connection, "INSERT INTO entry VALUES (2)");
            throw new Failed();
        }));
        SQLException failed = fails(SQLException.class, () -> lease.inTransaction(connection -> {
            sql(connection, "INSERT INTO entry VALUES (3)");
            fails(SQLException.class, () -> sql(connection, "SELECT 1 / 0"));
        }));
        same("25P02", failed.getSQLState());
        fails(SQLException.class, () -> lease.inTransaction(connection -> {
            sql(connection, "INSERT INTO entry VALUES (4)");
            connection.rollback();
        }));
        same("{1}", sql("SELECT array_agg(id) FROM entry"));
        fails(LeaseLost.class, () -> lease.inTransaction(connection -> {
            sql(connection, "INSERT INTO entry VALUES (5)");
            leases.close(Duration.ZERO); // a loss
            sql(connection, "SELECT pg_sleep(" + LONG + ")");
        }));
        same("{1}", sql("SELECT array_agg(id) FROM entry"));
    }

    public void anInterruptEndsAStatement() throws Exception {
        BlockingQueue<Object> told = new LinkedBlockingQueue<>();
        Lease lease = leases.hold("r", HOUR);
        Thread thread = start(told, () -> lease.callInTransaction(connection -> {
            sql(connection, "INSERT INTO entry VALUES (1)");
            return sql(connection, "SELECT pg_sleep(" + LONG + ")");
        }));
        waitUntil(() -> !sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").equals("0"));
        thread.interrupt();
        check(take(told) instanceof InterruptedException);
        sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"); // it may not have noticed yet
        check(lease.release());
        same("0", sql("SELECT count(*) FROM entry"));
    }

    /** Asked for its state, the last call before COMMIT, the connection is cut off. */
    public void anInterruptBeforeCommitHasAKnownOutcome() throws Exception {
        Source source = Source.of(() -> {
            Connection connection = DriverManager.getConnection(URL);
            return like(Connection.class, connection, (method, args) -> {
                if (!method.getName().equals("unwrap") || args[0] != BaseConnection.class) {
                    return null;
                }
                Object state = connection.unwrap(BaseConnection.class);
                Thread.currentThread().interrupt();
                while (!connection.isClosed()) {
                    Thread.onSpinWait();
                }
                return state;
            });
        });
        Lease lease = open(source).hold("r", HOUR);
        fails(InterruptedException.class, () -> lease.inTransaction(connection -> sql(connection, "INSERT INTO entry VALUES (1)")));
        check(!Thread.interrupted());
        check(lease.release());
        same("0", sql("SELECT count(*) FROM entry"));
    }

    public void aConnectionOfAPoolComesBackAsItWas() throws Exception {
        Pool pool = new Pool(URL, 1, List.of());
        Lease lease = open(Source.of(pool)).hold("r", HOUR);
        for (boolean autoCommit : new boolean[] {true, false}) {
            try (Connection connection = pool.getConnection()) {
                connection.setAutoCommit(autoCommit);
            }
            lease.inTransaction(connection -> sql(connection, "INSERT INTO entry VALUES (1)"));
            fails(Failed.class, () -> lease.inTransaction(connection -> {
                throw new Failed();
            }));
            try (Connection connection = pool.getConnection()) {
                same(autoCommit, connection.getAutoCommit());
            }
        }
        same("2", sql("SELECT count(*) FROM entry"));
        check(lease.release());
        pool.close();
    }

    /** What has to end a transaction is in the loop, which close stops. */
    public void closeEndsATransactionThatWaitsForItsPool() throws Exception {
        Pool pool = new Pool(URL, 1, List.of());
        Leases own = open(Source.of(pool));
        Lease lease = own.hold("r", HOUR);
        BlockingQueue<Object> told = new LinkedBlockingQueue<>();
        try (Connection taken = pool.getConnection()) {
            start(told, () -> lease.callInTransaction(connection -> 1));
            waitUntil(pool::isWaitedFor);
            same(List.of(), own.close(Duration.ofSeconds(LONG)));
            same(LeaseLost.Reason.CLOSED, ((LeaseLost) take(told)).reason());
        }
        pool.close();
    }

    public void aRollbackWithoutAnAnswerHasAnEndAfterClose() throws Exception {
        Lease[] lease = new Lease[1];
        Leases[] own = new Leases[1];
        own[0] = open(Source.of(() -> {
            Connection connection = DriverManager.getConnection(URL);
            return like(Connection.class, connection, (method, args) -> {
                if (method.getName().equals("rollback")) {
                    connection.rollback();
                    check(lease[0].release());
                    same(List.of(), own[0].close(Duration.ofSeconds(LONG)));
                    waitUntil(connection::isClosed);
                }
                return null;
            });
        }));
        lease[0] = own[0].hold("r", HOUR);
        fails(Failed.class, () -> lease[0].inTransaction(connection -> {
            throw new Failed();
        }));
    }

    public void aPoolGetsNoConnectionToAReadOnlyServerBack() throws Exception {
        Pool pool = new Pool(URL, 1, List.of());
        Lease lease = open(Source.of(pool)).hold("r", HOUR);
        try (Connection connection = pool.getConnection()) {
            connection.setAutoCommit(true);
            sql(connection, "SET default_transaction_read_only = on");
        }
        String before = lease.callInTransaction(connection -> sql(connection, "SELECT pg_backend_pid()"));
        SQLException failed = fails(SQLException.class, () -> lease.inTransaction(connection -> {
            sql(connection, "SET TRANSACTION READ ONLY");
            sql(connection, "INSERT INTO entry VALUES (1)");
        }));
        same("25006", failed.getSQLState());
        check(!before.equals(lease.callInTransaction(connection -> sql(connection, "SELECT pg_backend_pid()"))));
        check(lease.release());
        pool.close();
    }

    public void aLossJustAfterCommitDoesNotHideIt() throws Exception {
        Pool pool = new Pool(URL, 1, List.of());
        Leases own = open(Source.of(pool));
        pool.afterCommit = connection -> {
            own.close(Duration.ZERO); // a loss
            waitUntil(connection::isClosed);
        };
        Lease lease = own.hold("r", HOUR);
        fails(OutcomeUnknown.class, () -> lease.inTransaction(connection -> sql(connection, "INSERT INTO entry VALUES (1)")));
        same("1", sql("SELECT count(*) FROM entry"));
        pool.close();
    }

    public void aTransactionOfTheProgramCanAssert() throws Exception {
        sql("SELECT lease_protect('entry', 'entry')");
        Lease lease = leases.hold("entry", HOUR);
        direct.setAutoCommit(false);
        lease.assertIn(direct);
        sql("INSERT INTO entry VALUES (1)");
        direct.commit();
        breakLease("entry");
        direct.commit();
        fails(LeaseLost.class, () -> lease.assertIn(direct));
        direct.rollback();
        direct.setAutoCommit(true);
        same("1", sql("SELECT count(*) FROM entry"));
        sql("DROP TABLE entry");
    }

    public void settingsOfTheUrlDoNotMatter() throws Exception {
        for (String settings : List.of("socketTimeout=1&readOnly=true&autosave=always", "preferQueryMode=simple",
                "preferQueryMode=extendedForPrepared&defaultRowFetchSize=1", "prepareThreshold=1")) {
            String url = URL + "&" + settings;
            String own = url.replace("readOnly=true", "readOnly=false"); // what a Connector makes is for transactions, too
            for (Leases each : List.of(open(Source.of(url)), open(Source.of(() -> DriverManager.getConnection(own))))) {
                try (Lease lease = each.hold("r", HOUR)) {
                    Duration wait = Duration.ofMillis(settings.startsWith("socketTimeout") ? 1200 : 1); // longer than that
                    fails(LeaseTaken.class, () -> each.hold("r", HOUR, new Options().waitFor(wait)));
                    check(each.tryHold("r", HOUR) == null);
                    check(Boolean.parseBoolean(lease.callInTransaction(connection -> sql(connection, "SELECT 'true'"))));
                }
            }
        }
    }

    public void aDataSourceTellsItsUrlOrAConnectorIsDemanded() throws Exception {
        PGSimpleDataSource simple = new PGSimpleDataSource();
        simple.setUrl(URL);
        try (Lease lease = open(Source.of(simple)).hold("r", HOUR)) {
            same("1", lease.callInTransaction(connection -> sql(connection, "SELECT 1")));
        }
        check(fails(IllegalArgumentException.class, () -> Source.of(new Pool(URL, 1, List.of("SET ROLE app")))).getMessage().contains("SET ROLE app"));
        check(fails(IllegalArgumentException.class, () -> Source.of(new Pool(null, 1, List.of()))).getMessage().contains("Connector"));
        fails(IllegalArgumentException.class, () -> Source.of("postgresql://localhost/app"));
        Properties properties = new Properties();
        properties.setProperty("user", "nobody");
        same("28000", fails(SQLException.class, () -> open(Source.of(URL.split("\\?")[0], properties)).hold("r", HOUR)).getSQLState());
    }

    public void wrongArgumentsAreToldAtOnce() {
        for (Call call : List.<Call>of(() -> leases.hold(null, HOUR), () -> leases.hold("r", Duration.ZERO),
                () -> leases.hold("r", HOUR, new Options().stopBefore(HOUR)), () -> leases.hold("zero\0", HOUR),
                () -> leases.hold("r", HOUR, new Options().waitFor(Duration.ofNanos(-1))))) {
            fails(IllegalArgumentException.class, call);
        }
        same("22023", fails(SQLException.class, () -> leases.hold("r", HOUR, new Options().mode("odd").waitForever())).getSQLState());
    }

    public void textsMayHaveAnyCharacter() throws Exception {
        String odd = "it's {owner} \\ ? $1 \"; -- \u20ac \ud83d\ude00";
        try (Lease lease = leases.hold(odd, HOUR, new Options().owner(odd + 1).payload("{\"?\": \"'{ttl}\"}").permits(2).mode("permit"))) {
            same(odd, sql("SELECT resource FROM lease_status"));
            same(odd + 1, sql("SELECT owner FROM lease_status"));
            same("'{ttl}", sql("SELECT payload ->> '?' FROM lease_status"));
            check(lease.callInTransaction(connection -> sql(connection, "SELECT current_setting('lease_lock.owner')")).equals(lease.owner()));
        }
    }

    // What has no server

    public void theTableOfErrorsIsThatOfAllClients() throws Exception {
        String folder = System.getProperty("package");
        same(Files.readString(Path.of(folder, "../conformance/errors.tsv")), Files.readString(Path.of(folder, "src/main/resources/leaselock/errors.tsv")));
        String[] cases = {"08006 true UNKNOWN", "08006 false AGAIN", "08004 false NOT_AGAIN", "28P01 false NOT_AGAIN", "57P03 false AGAIN",
            "57014 true AGAIN", "40003 true UNKNOWN", "40001 true AGAIN", "22023 true NOT_AGAIN"};
        for (String each : cases) {
            String[] parts = each.split(" ");
            same(parts[2], Errors.sort(new SQLException("", parts[0]), parts[1].equals("true")).name());
        }
        same(Errors.Action.AGAIN, Errors.sort(new SQLException("of a pool"), false));
        same(Errors.Action.UNKNOWN, Errors.sort(new SQLException("cut off"), true));
        same(Errors.Action.NOT_AGAIN, Errors.sort(new IllegalStateException(), false));
    }

    public void theClockIsThatOfTheSystemWithSuspend() throws Exception {
        long last = 0;
        for (int n = 0; n < 1000; n++) {
            long now = Clock.now();
            check(now >= last);
            last = now;
        }
        Path uptime = Path.of("/proc/uptime");
        if (Files.exists(uptime)) {
            double before = Double.parseDouble(Files.readString(uptime).split(" ")[0]);
            double now = Clock.seconds(Clock.now());
            double after = Double.parseDouble(Files.readString(uptime).split(" ")[0]);
            check(before - 0.011 <= now && now <= after + 0.011);
        }
        same(Clock.NEVER, Clock.after(last, Clock.NEVER));
        same(Clock.NEVER, Clock.nanos(Duration.ofSeconds(Long.MAX_VALUE)));
    }
}
