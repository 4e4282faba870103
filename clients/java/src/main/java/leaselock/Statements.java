package leaselock;

import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLWarning;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.postgresql.util.PSQLWarning;

/**
 * What is sent to the server.
 *
 * <p>Each request is a transaction, which the driver sends without waiting between its statements. So it can begin with
 * settings that end with it, and it works behind a pooler that gives each transaction another connection. The settings
 * make it independent of those of the role: names, timeouts, and whether a warning is sent. Times come back as whole
 * milliseconds.
 */
final class Statements {
    static final String FIND = "SELECT n.nspname, e.oid IS NOT NULL "
        + "FROM pg_catalog.pg_namespace AS n LEFT JOIN pg_catalog.pg_extension AS e "
        + "ON e.extnamespace OPERATOR(pg_catalog.=) n.oid AND e.extname OPERATOR(pg_catalog.=) 'lease_lock' "
        + "WHERE e.oid IS NOT NULL OR n.nspname OPERATOR(pg_catalog.=) {schema} ORDER BY e.oid IS NULL";

    /** A wait in the portable edition, and one for a transaction, does not notice otherwise that its client has gone. */
    static final String CHECK_CLIENT = "SELECT set_config('client_connection_check_interval', '1s', true) "
        + "WHERE strpos(version(), 'linux') > 0; ";

    static final String REQUEST = "SELECT granted, token, floor(extract(epoch FROM waited) * 1000)::int8, reason, blocked_by, "
        + "floor(extract(epoch FROM blocked_for) * 1000)::int8 "
        + "FROM {schema}.lease_request({resource}::text, make_interval(secs => {ttl}::float8), {owner}::text, "
        + "wait => make_interval(secs => {wait}::float8), mode => {mode}::text, permits => {permits}::int4, "
        + "if_own => {if_own}::text, min_hold => make_interval(secs => {min_hold}::float8), payload => {payload}::jsonb)";

    /** The last column: does another owner hold it now? */
    static final String RENEW = "SELECT r.n, r.held, {schema}.lease_contended(r.resource), CASE WHEN r.held THEN false ELSE EXISTS ("
        + "SELECT FROM {schema}.lease_status AS s WHERE s.resource = r.resource AND s.state = 'held' AND s.token > r.token) END "
        + "FROM (SELECT l.*, {schema}.lease_renew(l.resource, make_interval(secs => l.ttl), l.owner, l.token) AS held "
        + "FROM unnest({resources}::text[], {owners}::text[], {tokens}::int8[], {ttls}::float8[]) "
        + "WITH ORDINALITY AS l(resource, owner, token, ttl, n) OFFSET 0) AS r ORDER BY r.n";

    /** Without a token: a request whose answer was lost. */
    static final String RELEASE = "SELECT l.n, CASE WHEN l.token IS NULL THEN {schema}.lease_release(l.resource, l.owner) "
        + "ELSE {schema}.lease_release(l.resource, l.owner, l.token) END "
        + "FROM unnest({resources}::text[], {owners}::text[], {tokens}::int8[]) WITH ORDINALITY AS l(resource, owner, token, n) "
        + "ORDER BY l.n";

    /**
     * The lease is not kept for its min_hold. NULL: that cannot be said now, since an open transaction is in the way, say. If
     * the lease ends meanwhile, the request is granted anew, and that is released.
     */
    static final String GIVE_BACK = "SELECT 1, CASE WHEN l.held = coalesce(l.token, l.held) THEN ("
        + "SELECT CASE WHEN g.granted AND (g.reason IS NULL OR g.token = l.held) "
        + "THEN {schema}.lease_release(l.resource, l.owner, g.token) AND g.token = l.held "
        + "WHEN g.reason NOT IN ('open', 'failover') THEN false END "
        + "FROM {schema}.lease_request(l.resource, make_interval(secs => {ttl}::float8), l.owner, mode => {mode}::text, "
        + "permits => {permits}::int4, if_own => 'renew', min_hold => '0') AS g) ELSE false END "
        + "FROM (SELECT l.*, {schema}.lease_token(l.resource, l.owner) AS held "
        + "FROM unnest({resources}::text[], {owners}::text[], {tokens}::int8[]) AS l(resource, owner, token) OFFSET 0) AS l";

    /**
     * In a transaction of the user's, whose settings stay as they are, but for one that would hide the warning of a COMMIT
     * whose wait for a synchronous standby is cancelled.
     */
    static final String ASSERT = "SELECT {schema}.lease_assert({resource}, {owner}), "
        + "pg_catalog.set_config('lease_lock.owner', {owner}, true), "
        + "CASE WHEN pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.=) 'error' "
        + "THEN pg_catalog.set_config('client_min_messages', 'warning', true) END";

    private static final Pattern NAME = Pattern.compile("\\{(\\w+)\\}");

    /** What the server answered; unsafe: a synchronous wait was cancelled, so what was written may not survive a failover. */
    static final class Result {
        final List<String[]> rows = new ArrayList<>();
        boolean unsafe;
    }

    private Statements() { }

    /** Limits of the server, that end with the transaction. */
    static String settings(Connection connection, long timeout, long lockTimeout) throws SQLException {
        String newer = connection.getMetaData().getDatabaseMajorVersion() >= 17 ? setting("transaction_timeout", "0") : "";
        return "SELECT " + newer + setting("search_path", "pg_catalog, pg_temp") + setting("client_min_messages", "warning")
            + setting("statement_timeout", milliseconds(timeout)) + setting("lock_timeout", milliseconds(lockTimeout)) + "true; ";
    }

    private static String setting(String name, String value) {
        return "pg_catalog.set_config('" + name + "', '" + value + "', true), ";
    }

    /** The server takes 0 as no limit. */
    private static String milliseconds(long limit) {
        return limit == Clock.NEVER ? "0" : String.valueOf(Math.max(1, Math.min(limit / Clock.MILLISECOND + 1, Integer.MAX_VALUE)));
    }

    /** Puts values in the place of their names, in one pass: a value may have braces. */
    static String fill(String text, Map<String, String> values) {
        return NAME.matcher(text).replaceAll(found -> Matcher.quoteReplacement(values.get(found.group(1))));
    }

    static <T> String array(Collection<T> from, Function<T, Object> each) {
        return from.stream().map(each).map(Statements::literal).collect(Collectors.joining(", ", "ARRAY[", "]"));
    }

    static String literal(Object value) {
        return value instanceof Number ? value.toString() : quote((String) value);
    }

    /** Needs no setting of the server: E'' always knows backslashes. */
    static String quote(String text) {
        if (text == null) {
            return "NULL";
        }
        if (text.indexOf(0) >= 0) {
            throw new IllegalArgumentException("a text has the character 0");
        }
        return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'";
    }

    /** In a transaction of their own; rows of the last one. */
    static Result execute(Connection connection, String statements) throws SQLException {
        try {
            return run(connection, "BEGIN; " + statements + "; COMMIT");
        } catch (SQLException e) {
            if (!connection.isClosed() && !Errors.state(e).startsWith("08")) {
                rollBack(connection, e);
            }
            throw e;
        }
    }

    private static void rollBack(Connection connection, SQLException because) throws SQLException {
        try {
            run(connection, "ROLLBACK");
        } catch (SQLException e) {
            because.addSuppressed(e);
            connection.close();
        }
    }

    static Result run(Connection connection, String text) throws SQLException {
        Result result = new Result();
        try (Statement statement = connection.createStatement()) {
            statement.setEscapeProcessing(false);
            boolean isRows = statement.execute(text);
            while (isRows || statement.getUpdateCount() != -1) {
                if (isRows) {
                    read(statement.getResultSet(), result.rows);
                }
                isRows = statement.getMoreResults();
            }
            result.unsafe = isWaitCancelled(statement.getWarnings());
        }
        return result;
    }

    private static void read(ResultSet from, List<String[]> rows) throws SQLException {
        rows.clear();
        int columns = from.getMetaData().getColumnCount();
        while (from.next()) {
            String[] row = new String[columns];
            for (int n = 0; n < columns; n++) {
                row[n] = from.getString(n + 1);
            }
            rows.add(row);
        }
    }

    /** Was the wait for a synchronous standby cancelled? The text of the warning is translated. */
    static boolean isWaitCancelled(SQLWarning first) {
        for (SQLWarning warning = first; warning != null; warning = warning.getNextWarning()) {
            if (warning instanceof PSQLWarning
                    && "SyncRepWaitForLSN".equals(((PSQLWarning) warning).getServerErrorMessage().getRoutine())) {
                return true;
            }
        }
        return false;
    }
}
