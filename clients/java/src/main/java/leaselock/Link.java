package leaselock;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;
import java.util.function.Consumer;
import org.postgresql.PGConnection;

/**
 * A connection of the package's own, and what waits for it in another thread: connects if need be, sends, reports. That
 * can be abandoned, so that whatever hangs (a look-up of a name, the user's function) holds up nobody else. All public
 * methods are called in the loop.
 */
final class Link {
    /** After a connection was cut off, its thread reports. If it does not within so long, it is abandoned. */
    private static final long GRACE = Clock.SECOND / 2;

    /** A connection that was idle for so long is tried first: the server may have closed it. */
    private static final long IDLE = Clock.SECOND;

    /** Returns the statements. Called just before they are sent. */
    interface Job {
        String statements(String schema, Connection connection) throws SQLException;
    }

    /** What became of it. */
    static final class Answer {
        List<String[]> rows;
        Exception error;
        long sent; // 0: it was not
        boolean unsafe; // see Statements.Result
    }

    private static final class Task {
        final Job job;
        final long connectUntil;
        final long until;
        final long limit;
        final Consumer<Answer> done;
        volatile long sent;
        volatile boolean late;

        Task(Job job, long until, long connecting, long limit, Consumer<Answer> done) {
            this.job = job;
            this.until = until;
            this.limit = limit;
            this.done = done;
            connectUntil = Math.min(until, Clock.after(Clock.now(), connecting));
        }
    }

    private final Loop loop;
    private final Source source;
    private Task task;
    private boolean ended;
    private Loop.Alarm toConnect;
    private Loop.Alarm toAnswer;

    // Of the thread that performs; another one cuts it off.
    private volatile Connection connection;
    private long used;

    Link(Loop loop, Source source) {
        this.loop = loop;
        this.source = source;
    }

    boolean isBusy() {
        return task != null;
    }

    /** What it is to run was not sent yet. */
    boolean isConnecting() {
        return task != null && task.sent == 0;
    }

    /** Abandoned: it does not come back. */
    boolean isUnusable() {
        return ended;
    }

    void run(long until, Job job, Consumer<Answer> done) {
        run(until, Clock.PATIENCE, Clock.NEVER, job, done);
    }

    /** connecting: how long it may take to connect; limit: how long an answer, counted from when it was sent. */
    void run(long until, long connecting, long limit, Job job, Consumer<Answer> done) {
        Task now = new Task(job, until, connecting, limit, done);
        task = now;
        toConnect = loop.at(now.connectUntil, () -> {
            if (now.sent == 0) {
                end(now);
            }
        });
        toAnswer = loop.at(until, () -> end(now));
        Loop.inThread(() -> perform(now));
    }

    /** End what is running: its answer is an error. */
    void cut() {
        if (task != null) {
            end(task);
        }
    }

    void close() {
        cut();
        ended = true;
        if (task == null) {
            Loop.inThread(this::drop);
        }
    }

    private void sent(Task which) {
        if (which == task && which.limit != Clock.NEVER) {
            toAnswer.cancel();
            toAnswer = loop.at(Math.min(which.until, which.sent + which.limit), () -> end(which));
        }
    }

    private void end(Task which) {
        if (which != task || which.late) {
            return;
        }
        which.late = true;
        Connection known = connection;
        if (known == null) {
            abandon(which);
        } else {
            loop.at(Clock.now() + GRACE, () -> abandon(which));
            cut(known);
        }
    }

    /** Closes the socket, so that what waits for it fails. That may wait, with TLS, so it has a thread. */
    static void cut(Connection connection) {
        Loop.inThread(() -> abort(connection));
    }

    static void abort(Connection connection) {
        try {
            connection.abort(Runnable::run);
        } catch (SQLException e) {
            Loop.warn("could not cut off a connection: " + e.getMessage());
        }
    }

    private void abandon(Task which) {
        if (which == task) {
            ended = true;
            Answer answer = new Answer();
            answer.sent = which.sent;
            answer.error = Errors.late(which.sent == 0 ? "no connection in time" : "no answer in time");
            finish(which, answer);
        }
    }

    private void finish(Task which, Answer answer) {
        if (which != task) {
            Loop.inThread(this::drop); // abandoned before
            return;
        }
        task = null;
        toConnect.cancel();
        toAnswer.cancel();
        if (which.late && answer.sent != 0 && Errors.state(answer.error).startsWith("08")) {
            answer.error = Errors.late("no answer in time: the connection was cut off here");
        }
        which.done.accept(answer);
        if (ended) {
            Loop.inThread(this::drop);
        }
    }

    // In another thread

    private void perform(Task now) {
        Answer answer = new Answer();
        try {
            prepare(now);
            String text = now.job.statements(source.schema(connection), connection);
            if (now.late) {
                throw Errors.late("no connection in time");
            }
            now.sent = Clock.now();
            loop.soon(() -> sent(now));
            Statements.Result result = Statements.execute(connection, text);
            answer.rows = result.rows;
            answer.unsafe = result.unsafe;
        } catch (SQLException | RuntimeException e) {
            answer.error = e;
            if (now.late || isOfNoUse(e)) {
                drop();
            }
        }
        used = Clock.now();
        answer.sent = now.sent;
        loop.soon(() -> finish(now, answer));
    }

    private void prepare(Task now) throws SQLException {
        Connection known = connection;
        int seconds = (int) Math.max(1, Clock.left(now.connectUntil) / Clock.SECOND);
        if (known != null && (isOver(known) || Clock.now() - used > IDLE && !known.isValid(seconds))) {
            drop();
        }
        if (connection == null) {
            connection = source.connect(now.connectUntil);
        }
        // The alarms end what takes too long. This is for a connection that cannot be cut off, and against settings.
        long limit = Math.min(Clock.left(now.until), now.limit);
        long milliseconds = limit == Clock.NEVER ? 0 : Math.min(limit + GRACE, Integer.MAX_VALUE * Clock.MILLISECOND) / Clock.MILLISECOND;
        connection.setNetworkTimeout(Runnable::run, (int) milliseconds);
    }

    /** The server has ended it: that was read by nobody yet. Makes no call. */
    private static boolean isOver(Connection connection) {
        try {
            if (connection.isWrapperFor(PGConnection.class)) {
                connection.unwrap(PGConnection.class).getNotifications();
            }
            return connection.isClosed();
        } catch (SQLException e) {
            return true;
        }
    }

    private boolean isOfNoUse(Exception error) {
        String state = Errors.state(error);
        try {
            return state.startsWith("08") || state.startsWith("57P") || Errors.isReadOnly(error) || connection == null || connection.isClosed();
        } catch (SQLException e) {
            return true;
        }
    }

    private void drop() {
        Connection known = connection;
        connection = null;
        try {
            if (known != null) {
                known.close();
            }
        } catch (SQLException isGone) {
            // nothing is left to close
        }
    }
}
