package leaselock;

import java.time.Duration;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.LockRegistry;

/** Locks for Spring Integration: {@link Leases#lock} of the key's text. */
public final class LeaseLockRegistry implements LockRegistry {
    private final Leases leases;
    private final Duration ttl;

    /** @param ttl that of the leases; how long others wait after a crash */
    public LeaseLockRegistry(Leases leases, Duration ttl) {
        this.leases = leases;
        this.ttl = ttl;
    }

    @Override
    public Lock obtain(Object key) {
        return leases.lock(key.toString(), ttl);
    }
}
