package leaselock;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Proxy;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.sql.DataSource;

/** The program that clients/conformance drives. See its README.md. */
final class Conformance {
    private static final class Failed extends Exception {
        private static final long serialVersionUID = 1;
    }

    private static final class Unsupported extends RuntimeException {
        private static final long serialVersionUID = 1;

        Unsupported(Object what) {
            super(String.valueOf(what));
        }
    }

    private static final Pattern PARAMETER = Pattern.compile("(\\w+)\\s*=\\s*(?:'((?:[^'\\\\]|\\\\.)*)'|(\\S+))");

    /** An uptime is rounded down to hundredths of a second. */
    private static final double ROUNDED = 0.01;

    private final Map<Object, Leases> clients = new ConcurrentHashMap<>();
    private final Map<Object, Pool> pools = new ConcurrentHashMap<>();
    private final Map<Object, Lease> leases = new ConcurrentHashMap<>();
    private final Map<Object, Thread> threads = new ConcurrentHashMap<>();
    private final Map<Object, CountDownLatch> gates = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        exitOnTerm();
        loadDriver();
        new Conformance().run();
        System.exit(0);
    }

    /** To load its classes takes seconds on a busy machine, which the first call would have to wait for: nobody listens on port 1. */
    private static void loadDriver() {
        try {
            DriverManager.getConnection("jdbc:postgresql://127.0.0.1:1/nowhere?user=nobody").close();
        } catch (SQLException e) {
            // as expected
        }
    }

    /** With 0, where Java would exit with 143. The compiler warns of these classes, so they are named at run time. */
    private static void exitOnTerm() throws ReflectiveOperationException {
        Class<?> signal = Class.forName("sun.misc.Signal");
        Class<?> handler = Class.forName("sun.misc.SignalHandler");
        Object exit = Proxy.newProxyInstance(null, new Class<?>[] {handler}, (proxy, method, args) -> {
            System.exit(0);
            return null;
        });
        signal.getMethod("handle", signal, handler).invoke(null, signal.getConstructor(String.class).newInstance("TERM"), exit);
    }

    private void run() throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = input.readLine()) != null;) {
            @SuppressWarnings("unchecked")
            Map<String, Object> args = (Map<String, Object>) Json.parse(line);
            args.putIfAbsent("options", Map.of());
            if (List.of("interrupt", "go").contains(args.get("do"))) {
                perform(args);
            } else {
                Thread thread = new Thread(() -> perform(args));
                thread.setDaemon(true);
                threads.put(args.get("id"), thread);
                thread.start();
            }
        }
    }

    private synchronized void write(Object... namesAndValues) {
        System.out.println(Json.write(object(namesAndValues)));
        System.out.flush();
    }

    private static Map<String, Object> object(Object... namesAndValues) {
        Map<String, Object> object = new LinkedHashMap<>();
        for (int n = 0; n < namesAndValues.length; n += 2) {
            object.put((String) namesAndValues[n], namesAndValues[n + 1]);
        }
        return object;
    }

    private void perform(Map<String, Object> args) {
        String what = "ok";
        Object answer;
        try {
            answer = answer(args);
        } catch (Throwable e) {
            what = "error";
            answer = describe(e);
        }
        threads.remove(args.get("id"));
        write("id", args.get("id"), what, answer);
    }

    private static Map<String, Object> describe(Throwable e) {
        if (e instanceof SQLException) {
            return object("name", "Driver", "sqlstate", ((SQLException) e).getSQLState(), "text", e.getMessage());
        }
        if (e instanceof InterruptedException) {
            return object("name", "Interrupted");
        }
        Map<String, Object> error = object("name", e.getClass().getSimpleName(), "text", String.valueOf(e.getMessage()));
        if (e instanceof LeaseException) {
            error.put("resource", ((LeaseException) e).resource());
        } else if (!(e instanceof Failed || e instanceof Unsupported)) {
            e.printStackTrace();
        }
        if (e instanceof LeaseLost) {
            error.put("reason", name(((LeaseLost) e).reason()));
        }
        if (e instanceof LeaseTaken) {
            LeaseTaken taken = (LeaseTaken) e;
            error.put("reason", taken.reason());
            error.put("blocked_by", taken.blockedBy().orElse(null));
            error.put("blocked_for", taken.blockedFor().map(Conformance::seconds).orElse(null));
        }
        return error;
    }

    private static String name(LeaseLost.Reason reason) {
        return reason.name().toLowerCase(Locale.ROOT);
    }

    private static double now() {
        return Clock.seconds(Clock.now()) + ROUNDED;
    }

    private static double seconds(Duration duration) {
        return duration.toNanos() / 1e9 + 1e-9; // not whole, so that it is written as it is
    }

    private static Duration duration(Object seconds) {
        return Duration.ofNanos((long) ((Double) seconds * 1e9));
    }

    private Object answer(Map<String, Object> args) throws Exception {
        switch ((String) args.get("do")) {
            case "hello": return object("language", "java", "kinds",
                List.of("conninfo", "service", "callable", "pool", "pool with hook"), "clock", now());
            case "open": return open(args);
            case "hold": return keep(args, client(args).hold((String) args.get("resource"), ttl(args, 30), options(args)));
            case "try": return keep(args, client(args).tryHold((String) args.get("resource"), ttl(args, 30), options(args)));
            case "release": return leases.remove(args.get("lease")).release();
            case "end": leases.remove(args.get("lease")).close(); return null;
            case "check": lease(args).check(); return null;
            case "state": return object("lost", lease(args).isLost(), "remaining", seconds(lease(args).remaining()),
                "contended", lease(args).contended().orElse(null));
            case "drop": leases.remove(args.get("lease")); System.gc(); return null;
            case "transaction": return transaction(args);
            case "elect": return elect(args);
            case "once": return once(args);
            case "go": gate(args.get("of")).countDown(); return null;
            case "interrupt": return interrupt(args);
            case "keeper": return keeper(args);
            case "close": return client(args).close(duration(args.getOrDefault("timeout", 10.0)));
            case "occupy": pools.get(args.get("client")).getConnection(); return null;
            case "shut": pools.get(args.get("client")).close(); return null;
            default: throw new Unsupported(args.get("do"));
        }
    }

    private Leases client(Map<String, Object> args) {
        if (args.containsKey("closed")) {
            throw new Unsupported("closed: in Tests.java");
        }
        return clients.get(args.get("client"));
    }

    private Lease lease(Map<String, Object> args) {
        return leases.get(args.get("lease"));
    }

    private CountDownLatch gate(Object id) {
        return gates.computeIfAbsent(id, same -> new CountDownLatch(1));
    }

    // Sources

    @SuppressWarnings("unchecked")
    private Object open(Map<String, Object> args) throws SQLException {
        Source source = source(args.get("client"), (Map<String, Object>) args.get("source"));
        Object schema = ((Map<String, Object>) args.get("options")).get("schema");
        clients.put(args.get("client"), new Leases(schema == null ? source : source.schema((String) schema)));
        return null;
    }

    @SuppressWarnings("unchecked")
    private Source source(Object client, Map<String, Object> args) {
        String url = args.get("conninfo") == null ? null : url((String) args.get("conninfo"));
        List<String> setup = (List<String>) args.getOrDefault("setup", List.of());
        switch ((String) args.get("kind")) {
            case "conninfo": return Source.of(url);
            case "service": return Source.of("jdbc:postgresql://?service=" + args.get("service"));
            case "callable": return Source.of(() -> connect(url, setup));
            case "pool": return Source.of((DataSource) pool(client, url, args, List.of()));
            case "pool with hook": return Boolean.FALSE.equals(args.get("connect"))
                ? Source.of((DataSource) pool(client, url, args, setup))
                : Source.of(() -> connect(url, setup)).transactions(pool(client, url, args, setup));
            default: throw new Unsupported(args.get("kind"));
        }
    }

    private Pool pool(Object client, String url, Map<String, Object> args, List<String> setup) {
        Pool pool = new Pool(url, ((Double) args.get("size")).intValue(), setup);
        pools.put(client, pool);
        return pool;
    }

    /** What nobody should rely on is as it should not be. */
    private static Connection connect(String url, List<String> setup) throws SQLException {
        Connection connection = DriverManager.getConnection(url + "&socketTimeout=3&autosave=always");
        try (Statement statement = connection.createStatement()) {
            for (String each : setup) {
                statement.execute(each);
            }
        }
        connection.setAutoCommit(false);
        return connection;
    }

    /** The url that says the same as a connection string of libpq. */
    private static String url(String conninfo) {
        Map<String, String> found = new LinkedHashMap<>();
        for (Matcher matcher = PARAMETER.matcher(conninfo); matcher.find();) {
            found.put(matcher.group(1), matcher.group(2) != null ? matcher.group(2).replaceAll("\\\\(.)", "$1") : matcher.group(3));
        }
        List<String> hosts = new ArrayList<>(Arrays.asList(found.remove("host").split(",")));
        String[] ports = found.remove("port").split(",");
        for (int n = 0; n < hosts.size(); n++) {
            hosts.set(n, hosts.get(n) + ":" + ports[n]);
        }
        StringBuilder url = new StringBuilder("jdbc:postgresql://" + String.join(",", hosts) + "/" + found.remove("dbname") + "?");
        found.forEach((name, value) -> url.append(name.equals("application_name") ? "ApplicationName" : name).append('=')
            .append(URLEncoder.encode(value, StandardCharsets.UTF_8)).append('&'));
        return url.append("tcpKeepAlive=true").toString();
    }

    // Calls

    private static Duration ttl(Map<String, Object> args, double byDefault) {
        return duration(((Map<?, ?>) args.get("options")).containsKey("ttl") ? ((Map<?, ?>) args.get("options")).get("ttl") : byDefault);
    }

    private static Options options(Map<String, Object> args) {
        Options options = new Options();
        ((Map<?, ?>) args.get("options")).forEach((name, value) -> {
            switch ((String) name) {
                case "ttl": break;
                case "wait": options.waitFor(value == null ? Duration.ofSeconds(Long.MAX_VALUE) : duration(value)); break;
                case "stop_before": options.stopBefore(duration(value)); break;
                case "renew": options.renew((Boolean) value); break;
                case "min_hold": options.minHold(duration(value)); break;
                case "retry_failed": options.retryFailed((Boolean) value); break;
                case "mode": options.mode((String) value); break;
                case "permits": options.permits(((Double) value).intValue()); break;
                case "payload": options.payload(Json.write(value)); break;
                case "if_own": options.ifOwn((String) value); break;
                case "owner": options.owner((String) value); break;
                default: throw new Unsupported(name);
            }
        });
        return options;
    }

    private Object keep(Map<String, Object> args, Lease lease) {
        if (lease == null) {
            return null;
        }
        Object name = args.get("lease");
        lease.onLost(lost -> write("event", "lost", "lease", name, "reason", name(lost.reason()), "at", now()));
        leases.put(name, lease);
        return object("token", lease.token(), "owner", lease.owner(), "remaining", seconds(lease.remaining()));
    }

    private Object transaction(Map<String, Object> args) throws Exception {
        return lease(args).callInTransaction(connection -> {
            List<Object> rows = null;
            try (Statement statement = connection.createStatement()) {
                for (Object each : (List<?>) args.get("statements")) {
                    rows = statement.execute((String) each) ? rows(statement.getResultSet()) : null;
                }
            }
            if (Boolean.TRUE.equals(args.get("pause"))) {
                write("event", "paused", "id", args.get("id"));
                gate(args.get("id")).await();
            }
            return rows;
        });
    }

    private static List<Object> rows(ResultSet from) throws SQLException {
        List<Object> rows = new ArrayList<>();
        while (from.next()) {
            List<Object> row = new ArrayList<>();
            for (int n = 1; n <= from.getMetaData().getColumnCount(); n++) {
                Object value = from.getObject(n);
                row.add(value instanceof Number || value instanceof Boolean || value == null ? value : value.toString());
            }
            rows.add(row);
        }
        return rows;
    }

    private Object elect(Map<String, Object> args) throws Exception {
        client(args).elect((String) args.get("resource"), ttl(args, 10), options(args), lease -> {
            write("event", "elected", "id", args.get("id"), "token", lease.token());
            while (!lease.isLost() && gate(args.get("id")).getCount() > 0) {
                Thread.sleep(20);
            }
            if (Boolean.TRUE.equals(args.get("fail")) && lease.isLost()) {
                throw new Failed();
            }
        });
        return null;
    }

    private Object once(Map<String, Object> args) throws Exception {
        return client(args).once((String) args.get("resource"), duration(args.get("period")), ttl(args, 30), options(args), lease -> {
            if (Boolean.TRUE.equals(args.get("lasts"))) {
                write("event", "began", "id", args.get("id"));
                while (!lease.isLost()) {
                    Thread.sleep(20);
                }
            }
            if (Boolean.TRUE.equals(args.get("fail"))) {
                throw new Failed();
            }
        });
    }

    private Object interrupt(Map<String, Object> args) {
        Thread thread = threads.get(args.get("of"));
        if (thread != null) {
            thread.interrupt();
        }
        return null;
    }

    private Object keeper(Map<String, Object> args) throws Exception {
        int[] counts = client(args).counts();
        return object("leases", counts[0], "ending", counts[1], "waits", counts[2]);
    }
}
