package leaselock;

import java.util.concurrent.CompletableFuture;

/** A lease, or what a request may have been granted, that is to be released. All of it is of the loop. */
final class Ending {
    final Request request;
    final Long token;    // null: of a request
    final Record record; // null: of a request
    final long until;    // then the lease is over by itself
    boolean held;        // as far as is known here
    boolean unanswered;
    boolean alone;       // in a statement of its own
    boolean giveBack;    // before its min_hold
    boolean warned;
    long sureAt;         // an answer counts from then on
    long due = Clock.now();
    CompletableFuture<Boolean> outcome = new CompletableFuture<>();
    Runnable after = () -> { };

    private long pause = Clock.SECOND / 20;

    Ending(Request request, Record record, long until) {
        this.request = request;
        this.record = record;
        this.until = until;
        token = record == null ? null : record.token;
    }

    void later() {
        due = Clock.now() + pause;
        pause = Math.min(2 * pause, Clock.SECOND);
    }
}
