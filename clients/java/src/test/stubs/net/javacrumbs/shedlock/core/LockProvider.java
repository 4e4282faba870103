package net.javacrumbs.shedlock.core;

import java.util.Optional;

/** As in ShedLock, which Debian does not have. */
public interface LockProvider {
    Optional<SimpleLock> lock(LockConfiguration lockConfiguration);
}
