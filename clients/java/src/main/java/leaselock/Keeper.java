package leaselock;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import leaselock.LeaseLost.Reason;

/**
 * Keeps leases alive, ends them, and tells in time when one is lost. All of it runs in the loop.
 *
 * <p>The holder must stop before anybody else can be granted the lease. So the end of a lease is counted here, from
 * before the request was sent, and the loop tells of a loss stopBefore earlier. One connection renews and ends leases:
 * renewals go first, with one statement for all leases that are nearly due. An end that meets a lock is tried again until
 * its lease is over, and not waited for.
 */
final class Keeper {
    /** How long an owner whose request was abandoned is looked after. */
    static final long LOOK_AFTER = Clock.SECOND * 3 / 2;

    /** How long an end waits for a lock before it is tried again. */
    private static final long LOCK_TIMEOUT = Clock.SECOND / 10;

    final Set<Record> records = new LinkedHashSet<>();
    final Set<Ending> endings = new LinkedHashSet<>();

    private final Core core;
    private final Queue<List<Record>> groups = new ArrayDeque<>(); // renewals that are due at once
    private Link link;
    private Loop.Alarm next;
    private boolean stopped;

    Keeper(Core core) {
        this.core = core;
    }

    /** It takes the connection of the grant, unless it has one: the first renewal must not fail for want of another. */
    void add(Record record) {
        if (link == null) {
            link = core.spare();
        }
        records.add(record);
        watch(record);
        goOn();
    }

    /** At the server, all holds of one owner that are counted are one lease. */
    void joinOthers(Record record) {
        Stream.concat(records.stream(), endings.stream().map(ending -> ending.record)).filter(Objects::nonNull).forEach(record::join);
    }

    /** The rest of its time is the holder's, to stop: it is released then, or when the holder says that it has stopped. */
    private void watch(Record record) {
        if (record.fate != null) {
            return;
        }
        if (record.deadline <= Clock.now()) {
            lose(record, Reason.EXPIRED);
            end(record, new CompletableFuture<>(), record.ends);
        } else {
            record.alarm = core.loop.at(record.deadline, () -> watch(record));
        }
    }

    /** The server says that it is not held. */
    void lose(Record record, Reason reason) {
        if (record.decide(reason)) {
            records.remove(record);
            tell(record);
        }
    }

    private void tell(Record record) {
        record.lost.complete(record.fate);
        record.guards.forEach(Guard::cut);
        Optional.ofNullable(record.callbacks.get()).ifPresent(all -> all.forEach(callback -> core.callBack(record, callback)));
        record.callbacks.clear();
    }

    /** The outcome is true if the server gave it back, or false if it was not held any longer. */
    void finish(Record record, CompletableFuture<Boolean> outcome, Runnable after) {
        if (record.deadline <= Clock.now()) {
            watch(record); // its alarm is late
        }
        if (record.decide(Reason.RELEASED)) {
            records.remove(record);
            end(record, outcome, 0).after = after;
            return;
        }
        outcome.complete(false);
        endNow(ending -> ending.record == record);
        after.run();
    }

    private void endNow(Predicate<Ending> which) {
        endings.stream().filter(which).forEach(ending -> ending.due = Math.min(ending.due, Clock.now()));
        goOn();
    }

    /** Another record has it. */
    void replace(Record record) {
        record.decide(Reason.RELEASED);
        records.remove(record);
    }

    /** True if the lease goes on as the later record: its end was moved before it was lost. */
    boolean extend(Record record, Record later) {
        if (record.token != later.token) {
            lose(record, Reason.BROKEN);
        }
        if (record.fate != null) {
            return false;
        }
        replace(record);
        return true;
    }

    /** An owner whose request has no answer. It may be granted the lease after this client has looked. */
    void forget(Request request, int copies) {
        add(abandoned(request, copies));
    }

    private static Ending abandoned(Request request, int copies) {
        Ending ending = new Ending(request, null);
        ending.copies = copies;
        ending.over = Clock.after(Clock.now(), Math.max(request.ttl, LOOK_AFTER));
        ending.sureAt = Clock.now() + LOOK_AFTER;
        return ending;
    }

    void endAll(Reason reason) {
        for (Record record : new ArrayList<>(records)) {
            record.decide(reason);
            records.remove(record);
            record.callbacks.clear();
            tell(record);
            end(record, new CompletableFuture<>(), 0);
        }
        endNow(ending -> true);
    }

    void stop() {
        stopped = true;
        if (link != null) {
            link.close();
        }
    }

    private Ending end(Record record, CompletableFuture<Boolean> outcome, long due) {
        Ending ending = new Ending(record.request, record);
        ending.held = record.fate == Reason.RELEASED;
        ending.due = Math.max(ending.due, due);
        ending.outcome = outcome;
        core.loop.at(Clock.min(Clock.now() + Clock.PATIENCE, record.ends), () -> late(ending));
        add(ending);
        return ending;
    }

    private void add(Ending ending) {
        endings.add(ending);
        goOn();
    }

    private void late(Ending ending) {
        String resource = ending.request.resource;
        if (!endings.contains(ending)) {
            return;
        }
        if (ending.record != null && Clock.now() < ending.record.ends) {
            ending.outcome.completeExceptionally(new OutcomeUnknown(
                "no answer to the release of \"" + resource + "\": it goes on in the background", resource, null));
            return;
        }
        if (ending.held) {
            ending.record.fate = Reason.EXPIRED;
            ending.held = false;
        }
        ending.outcome.complete(false);
    }

    /** Start what is due, if nothing runs. */
    private void goOn() {
        if (stopped || link != null && link.isBusy()) {
            return;
        }
        if (next != null) {
            next.cancel();
        }
        dropOver();
        List<Record> group = dueRenewals();
        List<Ending> due = group == null ? dueEndings() : List.of();
        if (group != null) {
            renew(group);
        } else if (!due.isEmpty()) {
            release(due);
        } else {
            long time = Stream.concat(records.stream().filter(record -> record.request.renew).map(record -> record.renewAt),
                endings.stream().map(ending -> Math.min(ending.due, overAtServer(ending)))).min(Comparator.naturalOrder()).orElse(Clock.NEVER);
            next = core.loop.at(time, this::goOn);
        }
    }

    private void ask(long limit, long lockTimeout, String text, Map<String, String> values, Consumer<Link.Answer> done) {
        if (link == null || link.isUnusable()) {
            link = new Link(core.loop, core.source);
        }
        link.run(Clock.NEVER, Math.max(limit, toConnect()), limit, (schema, connection) -> {
            values.put("schema", schema);
            return Statements.settings(connection, limit, lockTimeout) + Statements.fill(text, values);
        }, answer -> {
            done.accept(answer);
            goOn();
            core.checkEnd();
        });
    }

    /** Half of the time that is left: a connection that took long must not be thrown away unused. */
    private long toConnect() {
        return records.stream().filter(record -> record.request.renew).mapToLong(record -> record.remaining() / 2)
            .reduce(Clock.PATIENCE, Math::min);
    }

    private static <T> Map<String, String> columns(Collection<T> from, Function<T, Request> request, Function<T, Object> token) {
        Map<String, String> values = new HashMap<>();
        values.put("resources", Statements.array(from, each -> request.apply(each).resource));
        values.put("owners", Statements.array(from, each -> request.apply(each).owner));
        values.put("tokens", Statements.array(from, token));
        return values;
    }

    // Renewals

    private List<Record> dueRenewals() {
        long now = Clock.now();
        if (groups.isEmpty() && records.stream().anyMatch(record -> record.request.renew && record.renewAt <= now)) {
            Map<Boolean, List<Record>> due = records.stream()
                .filter(record -> record.request.renew && record.renewAt - record.request.ttl / 12 <= now)
                .collect(Collectors.partitioningBy(record -> record.alone));
            groups.add(due.get(false));
            due.get(true).forEach(record -> groups.add(List.of(record)));
        }
        while (!groups.isEmpty()) {
            List<Record> group = groups.poll().stream().filter(record -> record.fate == null).collect(Collectors.toList());
            if (!group.isEmpty()) {
                return group;
            }
        }
        return null;
    }

    private void renew(List<Record> group) {
        long limit = Math.max(Clock.MILLISECOND, group.stream().mapToLong(record -> Math.min(record.limit, record.remaining())).min().getAsLong());
        Map<String, String> values = columns(group, record -> record.request, record -> record.token);
        values.put("ttls", Statements.array(group, record -> Clock.seconds(record.request.ttl)));
        ask(limit, limit / 16, Statements.RENEW, values, answer -> renewed(group, answer));
    }

    private void renewed(List<Record> group, Link.Answer answer) {
        if (answer.error != null || answer.unsafe) {
            if (answer.sent != 0) {
                group.forEach(record -> record.mayLastUntil(Clock.after(Clock.now(), record.request.ttl)));
            }
            renewalFailed(group, answer.error);
            return;
        }
        for (int n = 0; n < group.size(); n++) {
            Record record = group.get(n);
            String[] row = answer.rows.get(n);
            if (row[1].equals("t")) {
                record.extend(answer.sent);
                record.alone = false;
                record.contended = row[2] == null ? null : (Boolean) row[2].equals("t");
            } else {
                lose(record, row[3].equals("t") ? Reason.TAKEN_OVER : Reason.BROKEN);
            }
        }
    }

    /** One lease can make a renewal of many fail: somebody has locked its row. Find it; the others must not suffer. */
    private void renewalFailed(List<Record> group, Exception error) {
        Loop.warn("could not renew lease on \"" + group.get(0).request.resource + "\" and " + (group.size() - 1) + " others: "
            + (error == null ? "the standby did not confirm it" : error.getMessage()));
        boolean ofOne = !Errors.isOfServer(error);
        if (Errors.isMoved(error)) {
            core.source.forgetSchema();
        }
        if (ofOne && group.size() > 1) {
            int size = (int) Math.sqrt(group.size());
            for (int n = 0; n < group.size(); n += size) {
                groups.add(group.subList(n, Math.min(n + size, group.size())));
            }
            return;
        }
        for (Record record : group) {
            record.alone = ofOne;
            record.renewAt = Clock.now() + Math.min(record.request.ttl / 30, Clock.SECOND);
        }
    }

    // Releases

    /** Leases that are over by themselves. */
    private void dropOver() {
        long now = Clock.now();
        for (Ending ending : new ArrayList<>(endings)) {
            if (ending.until() <= now) {
                late(ending);
            }
            if (overAtServer(ending) <= now) {
                done(ending, false, null);
            }
        }
    }

    /** A hold that is counted has to be counted down as long as others of its owner may keep the lease. */
    private static long overAtServer(Ending ending) {
        return ending.record == null ? ending.until() : ending.record.overForAll();
    }

    private List<Ending> dueEndings() {
        long now = Clock.now();
        List<Ending> due = endings.stream().filter(ending -> ending.due <= now).sorted(Comparator.comparingLong(ending -> ending.due))
            .collect(Collectors.toList());
        if (!due.isEmpty() && (due.get(0).alone || due.get(0).giveBack)) {
            return due.subList(0, 1);
        }
        return due.stream().filter(ending -> !ending.alone && !ending.giveBack).limit(500).collect(Collectors.toList());
    }

    /** Nothing may hold up a renewal for longer than a part of the shortest lease. */
    private void release(List<Ending> due) {
        long limit = records.stream().filter(record -> record.request.renew).mapToLong(record -> record.limit).min().orElse(Clock.PATIENCE);
        Map<String, String> values = columns(due, ending -> ending.request, ending -> ending.token);
        Request first = due.get(0).request;
        values.put("ttl", String.valueOf(Clock.seconds(first.ttl)));
        values.put("mode", Statements.quote(first.mode));
        values.put("permits", String.valueOf(first.permits));
        ask(limit, Math.min(limit / 4, LOCK_TIMEOUT), due.get(0).giveBack ? Statements.GIVE_BACK : Statements.RELEASE, values,
            answer -> released(due, answer));
    }

    private void released(List<Ending> due, Link.Answer answer) {
        if (answer.error != null) {
            releaseFailed(due, answer);
            return;
        }
        for (int n = 0; n < due.size(); n++) {
            Ending ending = due.get(n);
            String value = answer.rows.get(n)[1];
            boolean released = "t".equals(value);
            ending.copies -= released ? 1 : 0;
            if (value == null || ending.copies > 0 && answer.sent < ending.sureAt) {
                ending.later();
                continue;
            }
            // It may have been released by a statement whose answer was lost.
            released |= ending.held && ending.unanswered;
            if (!released && ending.held) {
                ending.record.fate = Reason.BROKEN;
                tell(ending.record);
            }
            done(ending, released, null);
        }
    }

    private void releaseFailed(List<Ending> due, Link.Answer answer) {
        Errors.Action what = Errors.sort(answer.error, answer.sent != 0);
        boolean mayBeDone = what == Errors.Action.UNKNOWN && answer.sent != 0;
        if (Errors.isMoved(answer.error)) {
            core.source.forgetSchema();
        }
        for (Ending ending : due) {
            ending.unanswered |= mayBeDone;
            ending.alone = !Errors.isOfServer(answer.error);
            if (!ending.warned) {
                Loop.warn("could not release lease on \"" + ending.request.resource + "\": " + answer.error.getMessage());
                ending.warned = true;
            }
            if (what == Errors.Action.NOT_AGAIN && due.size() == 1) {
                done(ending, false, answer.error);
            } else if (mayBeDone && ending.record != null && !ending.request.ownOwner) {
                // Once more, it would end a hold of somebody else.
                String resource = ending.request.resource;
                done(ending, false, new OutcomeUnknown("no answer to the release of \"" + resource + "\"", resource, answer.error));
            } else {
                ending.later();
            }
        }
    }

    /** Starts nothing: what else was answered with it must not be sent again. */
    private void done(Ending ending, boolean released, Exception error) {
        endings.remove(ending);
        if (ending.record != null && ending.record.doubtfulUntil > Clock.now()) {
            endings.add(abandoned(ending.request, ending.record.doubtfulCopies));
        }
        if (error == null) {
            ending.outcome.complete(released);
        } else {
            ending.outcome.completeExceptionally(error);
        }
        core.loop.soon(ending.after);
        core.loop.soon(core::checkEnd);
    }
}
