package leaselock;

import java.time.Duration;

/** Options of {@link Leases#hold} and its relatives: {@code new Options().waitFor(ofSeconds(10)).mode("shared")}. */
public final class Options {
    Duration wait = Duration.ZERO;
    Duration stopBefore;
    Duration minHold;
    String mode = "exclusive";
    String ifOwn = "refuse";
    String payload;
    String owner;
    Integer permits;
    boolean renew = true;
    boolean retryFailed;
    Record extended; // null: it is for a lease of its own

    /** All as it is by default. */
    public Options() { }

    Options(Options other) {
        wait = other.wait;
        stopBefore = other.stopBefore;
        minHold = other.minHold;
        mode = other.mode;
        ifOwn = other.ifOwn;
        payload = other.payload;
        owner = other.owner;
        permits = other.permits;
        renew = other.renew;
        retryFailed = other.retryFailed;
        extended = other.extended;
    }

    /**
     * Without it the lease is not waited for, and the server for at most 5 seconds, plus 5 while a request is without an
     * answer.
     *
     * @param limit how long to wait for the lease, an outage of the server included
     */
    public Options waitFor(Duration limit) {
        wait = limit;
        return this;
    }

    /** Wait until the thread is interrupted, or the leases are closed. */
    public Options waitForever() {
        return waitFor(Duration.ofSeconds(Long.MAX_VALUE));
    }

    /** @param time how long before the end of the lease its holder must have stopped; a sixth of the ttl by default */
    public Options stopBefore(Duration time) {
        stopBefore = time;
        return this;
    }

    /** @param on false for a lease that is lost when its ttl is over */
    public Options renew(boolean on) {
        renew = on;
        return this;
    }

    /** @param on true: a job of {@link Leases#once} that threw an exception may be run again at once, on any host */
    public Options retryFailed(boolean on) {
        retryFailed = on;
        return this;
    }

    /** @param name exclusive (the default), shared, or permit */
    public Options mode(String name) {
        mode = name;
        return this;
    }

    /** @param number how many leases of the mode permit there may be at the same time */
    public Options permits(int number) {
        permits = number;
        return this;
    }

    /** @param time for which a lease that is released in time is kept, from its grant on; it may be longer than the ttl */
    public Options minHold(Duration time) {
        minHold = time;
        return this;
    }

    /** @param json is kept with the lease */
    public Options payload(String json) {
        payload = json;
        return this;
    }

    /**
     * @param what to do if the owner has the lease: refuse (the default), renew or count. All leases of a {@link Leases}
     *     that are counted have one owner
     */
    public Options ifOwn(String what) {
        ifOwn = what;
        return this;
    }

    /** @param name of the owner, instead of one that nobody else has. If an answer is lost: {@link OutcomeUnknown} */
    public Options owner(String name) {
        owner = name;
        return this;
    }

    /** For a later end of a lease. */
    Options extending(Record record) {
        extended = record;
        return owner(record.request.owner).ifOwn("renew");
    }
}
