package leaselock;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A clock that nobody can set, and that goes on in suspend where the system tells. All times are nanoseconds.
 *
 * <p>{@link System#nanoTime} stops in suspend. Linux tells the time since boot with suspend, rounded down to hundredths
 * of a second. So the difference of the two is never too large, and what is largest of it is right.
 */
final class Clock {
    static final long NEVER = Long.MAX_VALUE;
    static final long MILLISECOND = 1_000_000;
    static final long SECOND = 1_000_000_000;

    /** How long the server is waited for where neither a wait nor the end of a lease sets a limit. */
    static final long PATIENCE = 5 * SECOND;

    private static final byte[] BUFFER = new byte[32];
    private static final RandomAccessFile UPTIME = open();
    private static final AtomicLong DIFFERENCE = new AtomicLong(UPTIME == null ? 1 - System.nanoTime() : Long.MIN_VALUE);

    private Clock() { }

    private static RandomAccessFile open() {
        try {
            return new RandomAccessFile("/proc/uptime", "r");
        } catch (IOException notLinux) {
            return null;
        }
    }

    static long now() {
        long uptime = UPTIME == null ? Long.MIN_VALUE : uptime();
        long time = System.nanoTime(); // after it
        return time + (uptime == Long.MIN_VALUE ? DIFFERENCE.get() : DIFFERENCE.accumulateAndGet(uptime - time, Math::max));
    }

    private static long uptime() {
        synchronized (BUFFER) {
            try {
                UPTIME.seek(0);
                int length = UPTIME.read(BUFFER);
                long hundredths = 0;
                for (int n = 0; n < length && BUFFER[n] != ' '; n++) {
                    hundredths = BUFFER[n] == '.' ? hundredths : 10 * hundredths + BUFFER[n] - '0';
                }
                return hundredths * (SECOND / 100);
            } catch (IOException e) {
                throw new IllegalStateException("/proc/uptime cannot be read", e);
            }
        }
    }

    static long after(long time, long duration) {
        return duration >= NEVER - Math.max(0, time) ? NEVER : time + duration;
    }

    /** Never less than zero. */
    static long left(long time) {
        return time == NEVER ? NEVER : Math.max(0, time - now());
    }

    static long nanos(Duration duration) {
        return duration.compareTo(Duration.ofNanos(NEVER)) >= 0 ? NEVER : duration.toNanos();
    }

    static long min(long... times) {
        long least = NEVER;
        for (long time : times) {
            least = Math.min(least, time);
        }
        return least;
    }

    static double seconds(long nanos) {
        return nanos / (double) SECOND;
    }
}
