package leaselock;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import leaselock.LeaseLost.Reason;
import org.postgresql.core.BaseConnection;
import org.postgresql.core.TransactionState;

/** One transaction under a lease, in the thread of the caller. */
final class Transaction {
    private enum Stage { BEGINS, WORKS, COMMITS, ENDED }

    private final Core core;
    private final Record record;
    private final String resource;
    private Stage stage = Stage.BEGINS;
    private Connection connection;
    private Guard guard;
    private boolean autoCommit;
    private boolean readOnly; // the server of the connection

    Transaction(Core core, Record record) {
        this.core = core;
        this.record = record;
        resource = record.request.resource;
    }

    <T, X extends Exception> T run(Lease lease, Lease.Query<T, X> work) throws SQLException, InterruptedException, X {
        lease.check();
        try {
            begin(lease);
            stage = Stage.WORKS;
            T result = work.run(connection);
            lease.check();
            commit();
            return result;
        } catch (SQLException e) {
            readOnly = Errors.isReadOnly(e);
            throw meaning(e);
        } finally {
            conclude();
        }
    }

    /** On another connection if one breaks: nothing of the user's is in the transaction yet. */
    private void begin(Lease lease) throws SQLException, InterruptedException {
        long until = Clock.now() + Math.min(Clock.PATIENCE, record.remaining());
        for (int pause = 50;; pause = Math.min(2 * pause, 500)) {
            try {
                connection = connect(until);
                readOnly = false;
                guard = new Guard(core, record, connection);
                guard.limit(until);
                autoCommit = connection.getAutoCommit();
                connection.setAutoCommit(false);
                assertHeld(core, record, connection);
                guard.limit(Clock.NEVER);
                return;
            } catch (SQLException e) {
                readOnly = Errors.isReadOnly(e);
                conclude();
                if (Errors.sort(e, true) == Errors.Action.NOT_AGAIN || Clock.now() + pause * Clock.MILLISECOND >= until) {
                    throw e;
                }
                Thread.sleep(pause);
                lease.check();
            }
        }
    }

    /** A pool may let it wait, so that has a thread, and is abandoned when the time is over. */
    private Connection connect(long until) throws SQLException, InterruptedException {
        CompletableFuture<Connection> outcome = new CompletableFuture<>();
        core.loop.soon(() -> core.limit(outcome, until));
        Loop.THREADS.execute(() -> {
            try {
                Connection made = core.source.forTransaction(until);
                if (!outcome.complete(made)) {
                    made.close();
                }
            } catch (SQLException | RuntimeException e) {
                outcome.completeExceptionally(e);
            }
        });
        try {
            return Core.await(outcome);
        } catch (InterruptedException e) {
            if (!outcome.cancel(true)) {
                outcome.thenAccept(Transaction::giveBack);
            }
            throw e;
        }
    }

    static void assertHeld(Core core, Record record, Connection connection) throws SQLException {
        String token = null;
        try {
            token = Statements.run(connection, Statements.fill(Statements.ASSERT, Map.of("schema", record.request.schema,
                "resource", Statements.quote(record.request.resource), "owner", Statements.quote(record.request.owner)))).rows.get(0)[0];
        } catch (SQLException e) {
            if (!Errors.state(e).equals(Errors.NOT_HELD)) {
                throw e;
            }
        }
        if (!String.valueOf(record.token).equals(token)) {
            core.loop.soon(() -> core.keeper.lose(record, Reason.BROKEN));
            throw new LeaseLost(record.request.resource, Reason.BROKEN, null);
        }
    }

    /** COMMIT of a transaction that has failed is answered like a rollback, which the driver may be set not to tell. */
    private void commit() throws SQLException {
        if (connection.unwrap(BaseConnection.class).getTransactionState() != TransactionState.OPEN) {
            throw new SQLException("the transaction had failed, or its work has ended it", "25P02");
        }
        if (!guard.commits()) {
            throw new SQLException("the connection was cut off before COMMIT", "08006");
        }
        stage = Stage.COMMITS;
        guard.limit(record.deadline);
        connection.clearWarnings();
        connection.commit();
        boolean isUnconfirmed = Statements.isWaitCancelled(connection.getWarnings()); // fails if it was cut off just now
        stage = Stage.ENDED;
        if (isUnconfirmed) {
            throw unknown("COMMIT was not confirmed by the synchronous standby", null);
        }
    }

    private OutcomeUnknown unknown(String what, SQLException cause) {
        return new OutcomeUnknown(what + " under the lease on \"" + resource + "\"", resource, cause);
    }

    private SQLException meaning(SQLException e) throws InterruptedException {
        if (stage == Stage.COMMITS && Errors.sort(e, true) == Errors.Action.UNKNOWN) {
            throw unknown("no answer to COMMIT", e);
        }
        if (stage != Stage.COMMITS && record.fate != null) {
            throw record.loss(e);
        }
        if (stage == Stage.WORKS && Errors.state(e).startsWith("08") && Thread.interrupted()) {
            throw (InterruptedException) new InterruptedException("the transaction was rolled back").initCause(e);
        }
        return e;
    }

    /** Rolls back what was not committed, and gives the connection back. */
    private void conclude() {
        if (guard == null) {
            return;
        }
        try {
            if (stage != Stage.ENDED) {
                guard.limit(Clock.now() + Clock.PATIENCE);
                connection.rollback();
            }
            connection.setAutoCommit(autoCommit);
        } catch (SQLException e) {
            guard.cut(); // the server ends it with the connection
        }
        guard.end();
        guard = null;
        if (readOnly) {
            Link.abort(connection); // a pool would give it to the next transaction
        }
        giveBack(connection);
    }

    private static void giveBack(Connection connection) {
        try {
            connection.close();
        } catch (SQLException isGone) {
            // nothing is left to close
        }
    }
}
