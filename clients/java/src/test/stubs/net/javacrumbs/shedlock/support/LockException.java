package net.javacrumbs.shedlock.support;

/** As in ShedLock. */
public class LockException extends RuntimeException {
    private static final long serialVersionUID = 1;

    public LockException(String message, Throwable cause) {
        super(message, cause);
    }
}
