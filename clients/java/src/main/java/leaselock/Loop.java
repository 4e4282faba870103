package leaselock;

import java.lang.System.Logger.Level;
import java.util.ArrayDeque;
import java.util.Comparator;
import java.util.Queue;
import java.util.TreeSet;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * The thread that everything runs in that needs an order. It never touches the network, so nothing delays the alarm of
 * a deadline. It ends when nothing is left to do.
 */
final class Loop {
    private static final System.Logger LOG = System.getLogger("leaselock");

    /** For what may block. A thread that is idle ends. */
    static final ExecutorService THREADS =
        new ThreadPoolExecutor(0, Integer.MAX_VALUE, 1, TimeUnit.SECONDS, new SynchronousQueue<>(), thread("lease_lock connection"));

    /** One after the other, since the program's log may block; what is too much is not kept. */
    private static final ExecutorService LOGS = new ThreadPoolExecutor(
        0, 1, 1, TimeUnit.SECONDS, new ArrayBlockingQueue<>(1000), thread("lease_lock log"), new ThreadPoolExecutor.DiscardPolicy());

    /** Waits do not count the time of a suspend: look at the clock at least this often. */
    private static final long TICK = Clock.SECOND;

    final class Alarm {
        private final long time;
        private final long number = ++numbers;
        private final Runnable run;

        private Alarm(long time, Runnable run) {
            this.time = time;
            this.run = run;
        }

        void cancel() {
            alarms.remove(this);
        }
    }

    // Of the loop.
    private final TreeSet<Alarm> alarms =
        new TreeSet<>(Comparator.<Alarm>comparingLong(alarm -> alarm.time).thenComparingLong(alarm -> alarm.number));
    private long numbers;

    // Of the monitor.
    private final Queue<Runnable> inbox = new ArrayDeque<>();
    private Thread thread;
    private boolean stopped;

    /** A daemon, since a program ends with its own threads. It keeps nothing of the thread that begins it. */
    private static ThreadFactory thread(String name) {
        return run -> {
            Thread thread = new Thread(null, run, name, 0, false);
            thread.setDaemon(true);
            return thread;
        };
    }

    /** Run it in the loop. Called in any thread. */
    synchronized void soon(Runnable run) {
        inbox.add(run);
        if (thread == null) {
            thread = thread("lease_lock").newThread(this::work);
            thread.start();
        }
        notifyAll();
    }

    /** Run it at a time. Called in the loop only. */
    Alarm at(long time, Runnable run) {
        Alarm alarm = new Alarm(time, run);
        if (time != Clock.NEVER) {
            alarms.add(alarm);
        }
        return alarm;
    }

    /** When nothing is left in the inbox. */
    synchronized void stop() {
        stopped = true;
    }

    private void work() {
        while (true) {
            while (!alarms.isEmpty() && alarms.first().time <= Clock.now()) {
                call(alarms.pollFirst().run);
            }
            Runnable run;
            synchronized (this) {
                run = take();
                if (thread == null) {
                    return;
                }
            }
            if (run != null) {
                call(run);
            }
        }
    }

    private Runnable take() {
        if (inbox.isEmpty()) {
            if (stopped) {
                thread = null;
                return null;
            }
            long left = alarms.isEmpty() ? TICK : Math.min(TICK, Clock.left(alarms.first().time));
            try {
                wait(left / Clock.MILLISECOND + 1);
            } catch (InterruptedException ofNobody) {
                return null;
            }
        }
        return inbox.poll();
    }

    private static void call(Runnable run) {
        try {
            run.run();
        } catch (Throwable e) { // the loop goes on
            error("lease_lock", e);
        }
    }

    /** False if no thread can be made. That is logged: the loop, which calls it, must go on. */
    static boolean inThread(Runnable run) {
        try {
            THREADS.execute(run);
            return true;
        } catch (OutOfMemoryError e) {
            error("no thread could be made", e);
            return false;
        }
    }

    static void error(String text, Throwable e) {
        log(() -> LOG.log(Level.ERROR, text, e));
    }

    static void warn(String text) {
        log(() -> LOG.log(Level.WARNING, text));
    }

    private static void log(Runnable run) {
        try {
            LOGS.execute(run);
        } catch (OutOfMemoryError noThread) {
            // it stays in the queue, for the next one
        }
    }
}
