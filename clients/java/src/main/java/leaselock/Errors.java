package leaselock;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** What to do after an error: errors.tsv, which all clients share, sorts them. */
final class Errors {
    enum Action { AGAIN, NOT_AGAIN, UNKNOWN }

    /** SQLSTATE of an assertion that fails. */
    static final String NOT_HELD = "55000";

    private static final Map<String, Action> TABLE = read();

    private Errors() { }

    private static Map<String, Action> read() {
        try (BufferedReader table = new BufferedReader(
                new InputStreamReader(Errors.class.getResourceAsStream("errors.tsv"), StandardCharsets.UTF_8))) {
            return table.lines().filter(line -> !line.startsWith("#")).map(line -> line.split("\t"))
                .collect(Collectors.toMap(fields -> fields[0], fields -> Action.valueOf(fields[1].toUpperCase(Locale.ROOT).replace(' ', '_'))));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** The SQLSTATE; empty if there is none. */
    static String state(Throwable error) {
        String state = error instanceof SQLException ? ((SQLException) error).getSQLState() : null;
        return state == null ? "" : state;
    }

    /** The functions are not where they were. */
    static boolean isMoved(Throwable error) {
        return List.of("42883", "3F000").contains(state(error));
    }

    /** The server takes no writes. Another one may have its name by now, so its connections are of no use. */
    static boolean isReadOnly(Throwable error) {
        return state(error).equals("25006");
    }

    /** Is it an error of the server as a whole, rather than of one lease? */
    static boolean isOfServer(Throwable error) {
        String state = state(error);
        return state.isEmpty() || isMoved(error) || Stream.of("08", "57", "25", "53").anyMatch(state::startsWith);
    }

    /** sent: whether the statement was sent. */
    static Action sort(Throwable error, boolean sent) {
        String state = state(error);
        Action what = TABLE.get("any other");
        if (!(error instanceof SQLException)) {
            return what;
        }
        if (state.equals("08004") && !sent) {
            return what; // the driver's own: it was given no password, for example
        }
        if (state.isEmpty()) {
            what = TABLE.get("no answer");
        }
        for (int n = 2; n <= state.length(); n++) {
            what = TABLE.getOrDefault(state.substring(0, n), what);
        }
        return what == Action.UNKNOWN && !sent ? TABLE.get("not connected") : what;
    }

    static SQLException late(String what) {
        return new SQLException("lease_lock: " + what);
    }
}
