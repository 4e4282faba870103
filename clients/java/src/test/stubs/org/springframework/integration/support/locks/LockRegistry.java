package org.springframework.integration.support.locks;

import java.util.concurrent.locks.Lock;

/** As in Spring Integration, which Debian does not have. */
public interface LockRegistry {
    Lock obtain(Object lockKey);
}
