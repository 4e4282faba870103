package leaselock;

import java.lang.ref.WeakReference;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import leaselock.LeaseLost.Reason;

/** A lease that was granted, and its times. It knows nothing of what the caller has, so that this can be collected. */
final class Record {
    final Request request;
    final long token;
    final CompletableFuture<Reason> lost = new CompletableFuture<>();
    volatile long deadline; // then the holder must have stopped
    volatile Reason fate;   // null while it is held
    volatile Boolean contended;
    volatile boolean giveBack = true; // at its end it is not kept for its min_hold: nobody has worked, or the work has not succeeded

    // Of the loop.
    final Set<Guard> guards = new HashSet<>();
    WeakReference<List<Consumer<LeaseLost>>> callbacks = new WeakReference<>(null); // the lease's: they may refer to it
    long ends;
    long over; // it has certainly ended at the server, whatever became of a renewal without an answer
    private long[] overForAll = new long[1]; // so have the owner's other holds of a counted lease, which share this
    long doubtfulUntil;
    int doubtfulCopies;
    long renewAt;
    long limit;    // of a renewal
    boolean alone; // renewed apart from others, since its row is locked
    Loop.Alarm alarm;

    Record(Request request, long token, long since) {
        this.request = request;
        this.token = token;
        extend(since);
    }

    void extend(long sent) {
        long left = request.ttl - request.stopBefore;
        ends = Clock.after(sent, request.ttl);
        mayLastUntil(ends);
        deadline = Clock.after(sent, left);
        renewAt = Clock.after(sent, Math.min(request.ttl / 3, left / 2));
        limit = Clock.min(request.ttl / 6, left / 4, Clock.PATIENCE);
    }

    void mayLastUntil(long time) {
        over = Math.max(over, time);
        overForAll[0] = Math.max(overForAll[0], over);
    }

    /** So many copies of its request may arrive. */
    void doubt(long until, int copies) {
        doubtfulUntil = until;
        doubtfulCopies = copies;
    }

    /** The server has one lease for all holds of it that are counted. */
    void join(Record other) {
        if (request.isCounted() && token == other.token && request.owner.equals(other.request.owner)
            && request.resource.equals(other.request.resource)) {
            overForAll = other.overForAll;
            mayLastUntil(over);
        }
    }

    long overForAll() {
        return overForAll[0];
    }

    long remaining() {
        return fate != null ? 0 : Clock.left(deadline);
    }

    /** False if it was lost or released before. */
    boolean decide(Reason reason) {
        if (fate != null) {
            return false;
        }
        fate = reason;
        if (alarm != null) {
            alarm.cancel();
        }
        return true;
    }

    /** By its caller, who works from now on; not after close, which has given it back. */
    void take(boolean mayBeGivenBack) {
        giveBack = mayBeGivenBack;
        if (fate == Reason.CLOSED) {
            throw new Closed(request.resource);
        }
    }

    LeaseLost loss(Throwable cause) {
        Reason reason = fate;
        return new LeaseLost(request.resource, reason == null ? Reason.EXPIRED : reason, cause);
    }
}
