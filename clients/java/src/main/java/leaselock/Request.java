package leaselock;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;

/** What one hold asks for. */
final class Request {
    final String resource;
    final String owner;
    final String mode;
    final Integer permits;
    final long ttl;
    final long wait;
    final long stopBefore;
    final boolean renew;
    final boolean ownOwner; // nobody else uses the owner, so the request can be repeated
    volatile String schema; // where the functions are: known when it was sent

    private final Map<String, String> values = new HashMap<>();
    private final String ifOwn;

    Request(String resource, Duration ttl, Options options, String sharedOwner) {
        this.resource = resource;
        this.ttl = Clock.nanos(ttl);
        wait = Clock.nanos(options.wait);
        stopBefore = options.stopBefore == null ? this.ttl / 6 : Clock.nanos(options.stopBefore);
        if (resource == null) {
            throw new IllegalArgumentException("the resource is null");
        }
        if (this.ttl <= 0) {
            throw new IllegalArgumentException("ttl must be more than zero, not " + ttl);
        }
        if (wait < 0) {
            throw new IllegalArgumentException("the wait must not be less than zero");
        }
        if (stopBefore < 0 || stopBefore >= this.ttl) {
            throw new IllegalArgumentException("stopBefore must be less than the ttl");
        }
        mode = options.mode;
        permits = options.permits;
        renew = options.renew;
        ifOwn = options.ifOwn;
        ownOwner = options.extended != null ? options.extended.request.ownOwner : options.owner == null && !isCounted();
        owner = options.owner != null ? options.owner : ownOwner ? newOwner() : sharedOwner;
        values.put("resource", Statements.quote(resource));
        values.put("owner", Statements.quote(owner));
        values.put("ttl", seconds(this.ttl));
        values.put("mode", Statements.quote(mode));
        values.put("permits", String.valueOf(permits));
        values.put("min_hold", options.minHold == null ? "NULL" : seconds(Clock.nanos(options.minHold)));
        values.put("payload", Statements.quote(options.payload));
    }

    /** Whether its release may leave the lease kept for its min_hold. A hold of several does not. */
    boolean keeps() {
        return !values.get("min_hold").equals("NULL") && !isCounted();
    }

    boolean isCounted() {
        return ifOwn.equals("count");
    }

    static String newOwner() {
        String host;
        try {
            host = InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            host = "localhost";
        }
        return host + ":" + ProcessHandle.current().pid() + ":" + UUID.randomUUID();
    }

    private static String seconds(long time) {
        return String.valueOf(Clock.seconds(time));
    }

    /**
     * until: when the wait at the server ends, 0 for a try; repeated: an earlier answer was lost. Called just before it is
     * sent.
     */
    String statement(String found, Connection connection, long until, boolean repeated) throws SQLException {
        schema = found;
        long left = Clock.left(until);
        Map<String, String> all = new HashMap<>(values);
        all.put("schema", found);
        all.put("wait", left == Clock.NEVER ? "NULL" : seconds(left));
        all.put("if_own", Statements.quote(repeated ? "renew" : ifOwn));
        return Statements.settings(connection, Clock.after(left, Clock.PATIENCE), Clock.NEVER)
            + (until == 0 ? "" : Statements.CHECK_CLIENT) + Statements.fill(Statements.REQUEST, all);
    }
}
