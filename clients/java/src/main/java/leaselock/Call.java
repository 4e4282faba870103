package leaselock;

import java.sql.SQLException;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;

/** One hold, from the request to the lease. The outcome is the caller's; the rest is of the loop. */
final class Call {
    final Request request;
    final CompletableFuture<Record> outcome = new CompletableFuture<>();
    final long giveUp; // end of the wait at the server
    final long limit;
    final Record extended; // the lease whose end it moves, or null
    Supplier<Exception> last = () -> Errors.late("no connection in time");
    Record record;
    Link link;
    boolean waits; // at the server
    int unanswered; // copies of the request that may arrive
    long doubtfulUntil;
    boolean undoing; // a grant that a failover may forget
    boolean lookedUp;
    int failures;
    Loop.Alarm alarm;
    Loop.Alarm pause;

    Call(Request request) {
        this(request, null);
    }

    Call(Request request, Record extended) {
        this.request = request;
        this.extended = extended;
        giveUp = Clock.after(Clock.now(), request.wait);
        limit = request.wait == 0 ? Clock.after(Clock.now(), Clock.PATIENCE) : giveUp;
    }

    /** What was granted is the lease that it extends. */
    boolean isExtension(Record granted) {
        return extended != null && extended.token == granted.token;
    }

    /** By the caller. Whatever becomes of it after an interruption, nobody takes its lease. */
    Record take(Core core) throws SQLException, InterruptedException {
        core.loop.soon(() -> core.start(this));
        try {
            return Core.await(outcome);
        } catch (InterruptedException e) {
            core.loop.soon(() -> core.abandon(this, e));
            throw e;
        }
    }
}
