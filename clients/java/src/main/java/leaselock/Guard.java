package leaselock;

import java.sql.Connection;

/** Cuts a connection off when its lease is lost, or at a time that is set. */
final class Guard {
    private final Loop loop;
    private final Record record;
    private final Connection connection;
    private Loop.Alarm alarm; // of the loop

    // Of the monitor.
    private boolean cut;
    private boolean ended;

    Guard(Loop loop, Record record, Connection connection) {
        this.loop = loop;
        this.record = record;
        this.connection = connection;
        loop.soon(() -> {
            record.guards.add(this);
            if (record.fate != null) {
                cut();
            }
        });
    }

    void limit(long time) {
        loop.soon(() -> {
            if (alarm != null) {
                alarm.cancel();
            }
            alarm = loop.at(time, this::cut);
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
        loop.soon(() -> record.guards.remove(this));
        return cut;
    }
}
