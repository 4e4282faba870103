package leaselock;

import java.util.concurrent.CompletableFuture;

/** A lease, or what a request may have been granted, that is to be released. All of it is of the loop. */
final class Ending {
    final Request request;
    final Long token;    // null: of a request
    final Record record; // null: of a request
    final boolean giveBack; // before its min_hold
    boolean held;        // as far as is known here
    boolean unanswered;
    boolean alone;       // in a statement of its own
    boolean warned;
    long over;           // without a record: then the lease is over by itself
    long sureAt;         // an answer counts from then on
    int copies = 1;      // of the request: more releases than that do not come
    long due = Clock.now();
    CompletableFuture<Boolean> outcome = new CompletableFuture<>();
    Runnable after = () -> { };

    private long pause = Clock.SECOND / 20;

    Ending(Request request, Record record) {
        this.request = request;
        this.record = record;
        giveBack = request.keeps() && (record == null || record.giveBack);
        token = record == null ? null : record.token;
    }

    /** Then it is over by itself. A renewal that is under way may still move that. */
    long until() {
        return record == null ? over : record.over;
    }

    void later() {
        due = Clock.now() + pause;
        pause = Math.min(2 * pause, Clock.SECOND);
    }
}
