package leaselock;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import leaselock.LeaseLost.Reason;

/**
 * What a {@link Leases} does for its callers. All of it runs in the loop, so there are no locks. What waits for the
 * network is in links: one of the keeper, a few for tries, and one for each resource that is waited for.
 */
final class Core {
    /** Connections for tries, and for waits. A resource beyond that is tried in intervals. */
    private static final int TRIES = 4;
    private static final int WAITS = 8;
    private static final long INTERVAL = Clock.SECOND / 2;

    /** Connections for waits that are kept for the next one. */
    private static final int SPARE = 2;

    /** Pauses after an error, in milliseconds. */
    private static final int[] PAUSES = {50, 100, 200, 500, 1000};

    /** The callback that the thread runs. */
    private static final ThreadLocal<Object> CALLBACK = new ThreadLocal<>();

    final Loop loop = new Loop();
    final Source source;
    final Keeper keeper = new Keeper(this);
    final String owner = Request.newOwner(); // of leases that are counted
    volatile boolean closed;

    private final Set<Call> calls = new LinkedHashSet<>();
    private final Queue<Call> backlog = new ArrayDeque<>(); // calls that try when a connection is free
    private final Deque<Link> idle = new ArrayDeque<>();
    private final Map<Link, Call> busy = new HashMap<>();
    private final Deque<Link> spare = new ArrayDeque<>();
    private final Map<String, Set<Call>> lines = new HashMap<>(); // of calls that wait for a resource
    private final Map<String, Link> waits = new HashMap<>();
    private final Map<String, Loop.Alarm> polls = new HashMap<>();
    private final List<CompletableFuture<List<String>>> closing = new ArrayList<>();
    private final Set<Object> callbacks = new HashSet<>(); // that run, and have not called close
    private final Set<CompletableFuture<Connection>> connects = new HashSet<>(); // of transactions
    private final Set<Guard> guards = new HashSet<>(); // the loop goes on for their alarms
    private boolean ends; // close has been here; it has ended when nobody waits for that any longer

    Core(Source source) {
        this.source = source;
    }

    // In any thread

    /** What the loop gives. An exception also has the stack of the caller. */
    static <T> T await(CompletableFuture<T> outcome) throws SQLException, InterruptedException {
        try {
            return outcome.get();
        } catch (ExecutionException e) {
            Throwable cause = e.getCause();
            cause.setStackTrace(Stream.of(cause.getStackTrace(), new Throwable().getStackTrace()).flatMap(Arrays::stream)
                .toArray(StackTraceElement[]::new));
            if (cause instanceof SQLException) {
                throw (SQLException) cause;
            }
            throw cause instanceof RuntimeException ? (RuntimeException) cause : new IllegalStateException(cause);
        }
    }

    CompletableFuture<Boolean> finish(Record record) {
        CompletableFuture<Boolean> outcome = new CompletableFuture<>();
        loop.soon(() -> keeper.finish(record, outcome, () -> { }));
        return outcome;
    }

    /** True if the lease goes on as the later record. */
    boolean extend(Record record, Record later) {
        CompletableFuture<Boolean> outcome = new CompletableFuture<>();
        loop.soon(() -> outcome.complete(keeper.extend(record, later)));
        return outcome.join();
    }

    /** Nobody refers to the lease any longer. */
    void orphan(Record record) {
        if (record.fate == null) {
            Loop.warn("lease on \"" + record.request.resource + "\" was not released");
            finish(record);
        }
    }

    CompletableFuture<List<String>> close(long timeout) {
        CompletableFuture<List<String>> outcome = new CompletableFuture<>();
        Object callback = CALLBACK.get();
        closed = true;
        loop.soon(() -> {
            callbacks.remove(callback); // it must not wait for itself
            close(outcome, timeout);
        });
        return outcome;
    }

    /** The program ends: one of them may be what ends it, and wait for that. */
    void waitForNoCallback() {
        loop.soon(callbacks::clear);
    }

    /** A connection that nobody uses, or null. Called in the loop. */
    Link spare() {
        return idle.isEmpty() ? spare.poll() : idle.pop();
    }

    /** Numbers of leases that are kept, of releases that are not done, and of connections for waits. */
    CompletableFuture<int[]> counts() {
        CompletableFuture<int[]> outcome = new CompletableFuture<>();
        loop.soon(() -> outcome.complete(new int[] {keeper.records.size(), keeper.endings.size(), waits.size()}));
        return outcome;
    }

    // In the loop

    /** A function of the user's, in a thread of its own, so that it delays nobody. */
    void callBack(Record record, Consumer<LeaseLost> callback) {
        Object running = new Object();
        callbacks.add(running);
        boolean begun = Loop.inThread(() -> {
            CALLBACK.set(running);
            try {
                callback.accept(record.loss(null));
            } catch (RuntimeException e) {
                Loop.error("onLost", e);
            } finally {
                CALLBACK.remove();
                loop.soon(() -> {
                    callbacks.remove(running);
                    checkEnd();
                });
            }
        });
        if (!begun) {
            callbacks.remove(running);
        }
    }

    void checkEnd() {
        if (!ends || closing.isEmpty() || !busy.isEmpty() || !waits.isEmpty() || !keeper.endings.isEmpty()) {
            return;
        }
        keeper.stop();
        if (callbacks.isEmpty()) {
            closing.forEach(outcome -> outcome.complete(List.of()));
            closing.clear();
            stop();
        }
    }

    /** Whatever hangs, it has an end: that time, or close. */
    void limit(CompletableFuture<Connection> outcome, long until) {
        if (ends) {
            outcome.completeExceptionally(Errors.late("leases are closed"));
            return;
        }
        Loop.Alarm alarm = loop.at(until, () -> outcome.completeExceptionally(Errors.late("no connection in time")));
        connects.add(outcome);
        outcome.whenComplete((connection, error) -> loop.soon(() -> {
            alarm.cancel();
            connects.remove(outcome);
        }));
    }

    void add(Guard guard) {
        guards.add(guard);
    }

    void remove(Guard guard) {
        guards.remove(guard);
        stop();
    }

    private void stop() {
        if (ends && closing.isEmpty() && guards.isEmpty()) {
            loop.stop();
        }
    }

    void start(Call call) {
        if (closed) {
            call.outcome.completeExceptionally(new Closed(call.request.resource));
            return;
        }
        if (call.extended != null) { // the server may do it, whatever becomes of the answer
            call.extended.mayLastUntil(Clock.after(Clock.after(call.limit, Clock.PATIENCE), call.request.ttl));
        }
        calls.add(call);
        call.alarm = loop.at(call.limit, () -> expire(call));
        attempt(call);
    }

    /**
     * A try, on a connection that is never used for waits; unless the call runs: while it was in the backlog or paused,
     * it may have been the head of its line.
     */
    private void attempt(Call call) {
        if (call.outcome.isDone() || call.link != null || call.undoing) {
            return;
        }
        if (idle.isEmpty() && busy.size() >= TRIES) {
            backlog.add(call);
            return;
        }
        Link link = idle.isEmpty() ? new Link(loop, source) : idle.pop();
        busy.put(link, call);
        call.link = link;
        link.run(Clock.after(Math.min(call.limit, Clock.now()), Clock.PATIENCE),
            (schema, connection) -> call.request.statement(schema, connection, 0, call.unanswered > 0),
            answer -> tried(link, call, answer));
    }

    private void tried(Link link, Call call, Link.Answer answer) {
        busy.remove(link);
        call.link = null;
        keepOrClose(link, idle, TRIES);
        if (isRefused(call, answer)) {
            if (call.request.wait != 0 && Clock.now() < call.limit) {
                lineUp(call);
            } else {
                fail(call, call.last.get());
            }
        }
        while (!backlog.isEmpty() && (!idle.isEmpty() || busy.size() < TRIES)) {
            attempt(backlog.poll());
        }
        checkEnd();
    }

    private void keepOrClose(Link link, Deque<Link> kept, int most) {
        if (link.isUnusable() || closed || kept.size() >= most) {
            link.close();
        } else {
            kept.push(link);
        }
    }

    /** True for a refusal, for the caller to go on with. Everything else is dealt with here. */
    private boolean isRefused(Call call, Link.Answer answer) {
        if (answer.error != null) {
            failed(call, answer.error, answer.sent != 0);
            return false;
        }
        String[] row = answer.rows.get(0);
        if (row[0].equals("t")) {
            Record record = new Record(call.request, Long.parseLong(row[1]), Clock.after(answer.sent, milliseconds(row[2])));
            keeper.joinOthers(record);
            granted(call, record, answer.unsafe);
            return false;
        }
        if (call.outcome.isDone()) {
            forget(call);
            return false;
        }
        long free = row[5] == null ? 0 : Clock.after(Clock.now(), milliseconds(row[5]));
        call.last = () -> new LeaseTaken(call.request.resource, row[3], row[4], row[5] == null ? null : Duration.ofNanos(Clock.left(free)));
        return true;
    }

    private static long milliseconds(String text) {
        return Math.min(Long.parseLong(text), Clock.NEVER / Clock.MILLISECOND) * Clock.MILLISECOND;
    }

    private void granted(Call call, Record record, boolean unsafe) {
        if (unsafe && !call.outcome.isDone()) {
            Loop.warn("lease on \"" + call.request.resource + "\" was granted, but the synchronous standby did not confirm it: asking again");
            call.last = () -> Errors.late("the synchronous standby did not confirm the grant");
            if (call.isExtension(record)) {
                again(call);
                return;
            }
            call.undoing = true; // whatever was asked meanwhile would be told of the grant that ends
            keeper.finish(record, new CompletableFuture<>(), () -> {
                call.undoing = false;
                again(call);
            });
        } else if (call.request.ownOwner && Clock.now() >= record.ends - call.request.ttl / 2 && !call.outcome.isDone()) {
            // It took so long that the lease is nearly over: ask for it again.
            call.unanswered++;
            call.last = () -> Errors.late("answers take longer than the lease lasts");
            again(call);
        } else {
            drop(call);
            call.record = record;
            if (call.request.ownOwner) {
                record.doubt(call.doubtfulUntil, call.unanswered);
            }
            keeper.add(record);
            if (!call.outcome.complete(record)) {
                finish(call);
            }
        }
    }

    /** Nobody takes what it was granted. The lease that it extends is somebody's. */
    private void finish(Call call) {
        if (call.isExtension(call.record)) {
            keeper.replace(call.record);
        } else {
            keeper.finish(call.record, new CompletableFuture<>(), () -> { });
        }
    }

    private void failed(Call call, Exception error, boolean sent) {
        Errors.Action what = Errors.sort(error, sent);
        String resource = call.request.resource;
        if (what == Errors.Action.UNKNOWN) {
            call.unanswered++;
            call.doubtfulUntil = Clock.now() + Keeper.LOOK_AFTER;
        }
        if (call.outcome.isDone()) {
            forget(call);
            return;
        }
        if (Errors.isMoved(error)) {
            source.forgetSchema();
            what = call.lookedUp ? Errors.Action.NOT_AGAIN : Errors.Action.AGAIN;
            call.lookedUp = true;
        }
        if (what == Errors.Action.UNKNOWN && !call.request.ownOwner) {
            fail(call, new OutcomeUnknown("no answer to a request for \"" + resource + "\"", resource, error));
        } else if (what == Errors.Action.NOT_AGAIN) {
            fail(call, error);
        } else {
            if (call.failures == 0) {
                Loop.warn("request for \"" + resource + "\" failed, trying again: " + error.getMessage());
            }
            call.last = () -> error;
            again(call);
        }
    }

    private void again(Call call) {
        if (call.outcome.isDone()) {
            forget(call);
            return;
        }
        long then = Clock.now() + PAUSES[Math.min(call.failures++, PAUSES.length - 1)] * Clock.MILLISECOND;
        if (then >= call.limit) {
            fail(call, call.last.get());
            return;
        }
        call.pause = loop.at(then, () -> {
            call.pause = null;
            attempt(call);
        });
    }

    /** The limit is over. What the server is being asked has an end of its own; so has a try that connects. */
    private void expire(Call call) {
        if (call.link == null || call.waits && call.link.isConnecting()) {
            abandon(call, call.last.get());
        }
    }

    private void fail(Call call, Exception error) {
        call.outcome.completeExceptionally(error);
        forget(call);
    }

    void abandon(Call call, Exception error) {
        call.outcome.completeExceptionally(error);
        if (call.record != null) {
            finish(call);
        }
        if (call.link == null) {
            forget(call);
        } else if (call.waits) {
            call.link.cut();
        }
    }

    /** Nobody waits for the call any longer. What it may have been granted is released. */
    private void forget(Call call) {
        drop(call);
        if (call.unanswered > 0 && call.request.ownOwner) {
            if (call.extended != null && call.extended.fate == null) {
                call.extended.doubt(call.doubtfulUntil, call.unanswered);
            } else {
                keeper.forget(call.request, call.unanswered);
            }
            call.unanswered = 0;
        }
    }

    private void drop(Call call) {
        String resource = call.request.resource;
        calls.remove(call);
        Stream.of(call.alarm, call.pause).filter(alarm -> alarm != null).forEach(Loop.Alarm::cancel);
        if (lines.containsKey(resource) && lines.get(resource).remove(call)) {
            serve(resource);
        }
    }

    // Waits: for each resource a line, whose head waits at the server

    private void lineUp(Call call) {
        lines.computeIfAbsent(call.request.resource, resource -> new LinkedHashSet<>()).add(call);
        serve(call.request.resource);
    }

    private Call head(String resource) {
        return lines.getOrDefault(resource, Set.of()).stream().findFirst().orElse(null);
    }

    private void serve(String resource) {
        Call head = head(resource);
        if (head == null) {
            lines.remove(resource);
            Loop.Alarm poll = polls.remove(resource);
            if (poll != null) {
                poll.cancel();
            }
        } else if (!waits.containsKey(resource) && head.link == null && head.pause == null && !head.undoing) {
            if (waits.size() < WAITS) {
                await(resource, head);
            } else {
                polls.computeIfAbsent(resource, name -> loop.at(Clock.now() + INTERVAL, () -> poll(name)));
            }
        }
    }

    private void poll(String resource) {
        polls.remove(resource);
        Call head = head(resource);
        if (head != null && head.link == null) {
            attempt(head);
        }
    }

    private void await(String resource, Call call) {
        Link link = spare.isEmpty() ? new Link(loop, source) : spare.pop();
        waits.put(resource, link);
        call.link = link;
        call.waits = true;
        link.run(Clock.after(call.limit, Clock.PATIENCE),
            (schema, connection) -> call.request.statement(schema, connection, call.giveUp, call.unanswered > 0),
            answer -> waited(resource, link, call, answer));
    }

    private void waited(String resource, Link link, Call call, Link.Answer answer) {
        waits.remove(resource);
        call.link = null;
        call.waits = false;
        keepOrClose(link, spare, SPARE);
        if (isRefused(call, answer)) {
            if (Clock.now() >= call.limit) {
                fail(call, call.last.get());
            } else {
                again(call); // the server ended the wait early
            }
        }
        serve(resource);
        new ArrayList<>(lines.keySet()).forEach(this::serve);
        checkEnd();
    }

    /** Resources of what is not released, or may still be granted. */
    private List<String> left() {
        Stream<String> asking = busy.values().stream().map(call -> call.request.resource);
        return Stream.of(keeper.endings.stream().map(ending -> ending.request.resource), asking, waits.keySet().stream())
            .flatMap(resources -> resources).distinct().collect(Collectors.toList());
    }

    private void close(CompletableFuture<List<String>> outcome, long timeout) {
        closing.add(outcome);
        ends = true;
        for (Call call : new ArrayList<>(calls)) {
            if (!call.outcome.isDone()) {
                abandon(call, new Closed(call.request.resource));
            }
        }
        keeper.endAll(Reason.CLOSED);
        connects.forEach(connecting -> connecting.completeExceptionally(Errors.late("leases are closed")));
        Stream.concat(idle.stream(), spare.stream()).forEach(Link::close);
        idle.clear();
        spare.clear();
        loop.at(Clock.after(Clock.now(), timeout), () -> outcome.complete(left()));
        checkEnd();
    }
}
