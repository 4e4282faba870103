package net.javacrumbs.shedlock.core;

import java.time.Duration;
import java.time.Instant;

/** As in ShedLock. */
public class LockConfiguration {
    private final String name;
    private final Duration lockAtMostFor;
    private final Duration lockAtLeastFor;

    public LockConfiguration(Instant createdAt, String name, Duration lockAtMostFor, Duration lockAtLeastFor) {
        this.name = name;
        this.lockAtMostFor = lockAtMostFor;
        this.lockAtLeastFor = lockAtLeastFor;
    }

    public String getName() {
        return name;
    }

    public Duration getLockAtMostFor() {
        return lockAtMostFor;
    }

    public Duration getLockAtLeastFor() {
        return lockAtLeastFor;
    }
}
