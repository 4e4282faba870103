package leaselock;

import java.time.Duration;
import java.util.Optional;

/** Another owner has the lease. */
public class LeaseTaken extends LeaseException {
    private static final long serialVersionUID = 1;

    private final String reason;
    private final String blockedBy;
    private final Duration blockedFor;

    LeaseTaken(String resource, String reason, String blockedBy, Duration blockedFor) {
        super("lease on \"" + resource + "\" is taken (" + reason + (blockedBy == null ? "" : " by " + blockedBy) + ")",
            resource, null);
        this.reason = reason;
        this.blockedBy = blockedBy;
        this.blockedFor = blockedFor;
    }

    /** @return the reason of lease_request: held, open, queue, own or failover */
    public String reason() {
        return reason;
    }

    /** @return the owner that has it, if the role may see it */
    public Optional<String> blockedBy() {
        return Optional.ofNullable(blockedBy);
    }

    /** @return how long until it may be free, if that is known */
    public Optional<Duration> blockedFor() {
        return Optional.ofNullable(blockedFor);
    }
}
