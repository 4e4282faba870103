package leaselock;

import java.sql.Connection;

/** Cuts a connection off when its lease is lost, at a time that is set, or if its thread is interrupted: JDBC heeds none. */
final class Guard {
    /** How often it looks for an interruption. */
    private static final long LOOK = Clock.SECOND / 4;

    private final Core core;
    private final Record record;
    private final Connection connection;
    private final Thread thread = Thread.currentThread();
    private Loop.Alarm alarm; // of the loop

    // Of the monitor.
    private boolean cut;
    private boolean commits;
    private boolean ended;

    Guard(Core core, Record record, Connection connection) {
        this.core = core;
        this.record = record;
        this.connection = connection;
        core.loop.soon(() -> {
            core.add(this);
            record.guards.add(this);
            if (record.fate != null) {
                cut();
            }
            look();
        });
    }

    private synchronized void look() {
        if (thread.isInterrupted() && !commits) {
            cut();
        }
        if (!ended && !commits && !cut) {
            core.loop.at(Clock.now() + LOOK, this::look);
        }
    }

    /** From now on an interruption waits: the outcome should be known. False if the connection was cut off before. */
    synchronized boolean commits() {
        commits = true;
        return !cut;
    }

    void limit(long time) {
        core.loop.soon(() -> {
            if (alarm != null) {
                alarm.cancel();
            }
            alarm = core.loop.at(time, this::cut);
        });
    }

    synchronized void cut() {
        if (!ended && !cut) {
            cut = true;
            Link.cut(connection);
        }
    }

    /** From now on it is not cut off. Returns whether it was. */
    synchronized boolean end() {
        ended = true;
        limit(Clock.NEVER);
        core.loop.soon(() -> {
            record.guards.remove(this);
            core.remove(this);
        });
        return cut;
    }
}
