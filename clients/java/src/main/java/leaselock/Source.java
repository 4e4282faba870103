package leaselock;

import java.lang.reflect.InvocationTargetException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import javax.sql.DataSource;
import org.postgresql.Driver;
import org.postgresql.PGProperty;

/**
 * Where connections come from: leases are kept on connections of the package's own, at most 13 at a time, which are
 * opened when they are needed. Their timeouts and their auto-commit are set here, whatever the url says.
 */
public final class Source {
    /** Makes a connection of PostgreSQL's driver, or a wrapper of one, each time anew. Called in any thread. */
    public interface Connector {
        Connection connect() throws SQLException;
    }

    /** What a connection is for. */
    private enum Use { LEASES, TRANSACTION }

    private interface Opener {
        Connection open(long until, Use use) throws SQLException;
    }

    private final Opener opener;
    private final DataSource pool; // for transactions
    private final String given;
    private volatile String schema; // where the functions are, quoted; null if it is not known

    private Source(Opener opener, DataSource pool, String given) {
        this.opener = opener;
        this.pool = pool;
        this.given = given;
    }

    /**
     * Connections of PostgreSQL's driver. Of several hosts or addresses, that is wanted which takes writes.
     *
     * @param url as in {@code jdbc:postgresql://host/database?user=app}
     */
    public static Source of(String url) {
        return of(url, new Properties());
    }

    /**
     * @param url that of PostgreSQL's driver
     * @param properties of the driver, such as user and password; the url goes first
     */
    public static Source of(String url, Properties properties) {
        Properties copy = new Properties();
        properties.stringPropertyNames().forEach(name -> copy.setProperty(name, properties.getProperty(name)));
        checked(url);
        return new Source((until, use) -> open(url, copy, until, use), null, null);
    }

    /** Connections that a function makes: for passwords that change, or statements that each connection begins with. */
    public static Source of(Connector connector) {
        return new Source((until, use) -> connector.connect(), null, null);
    }

    /**
     * Leases on connections with the pool's url, user and password, outside of it; transactions on connections of the
     * pool. HikariCP, DBCP, Tomcat's pool, c3p0 and the DataSources of Spring and of the driver tell these; for others, and
     * for a pool with statements that each connection begins with, use a {@link Connector} and {@link #transactions}.
     *
     * @throws IllegalArgumentException if the pool does not tell its url, or has such statements
     */
    public static Source of(DataSource pool) {
        for (String name : List.of("getConnectionInitSql", "getConnectionInitSqls", "getInitSQL")) {
            Object hook = ask(pool, name);
            if (hook != null && !(hook instanceof Collection && ((Collection<?>) hook).isEmpty())) {
                throw new IllegalArgumentException("connections of the pool begin with \"" + hook
                    + "\": leases are kept on connections of their own, so name a Connector that does the same, with transactions(pool)");
            }
        }
        checked(first(pool, "getJdbcUrl", "getUrl", "getURL"));
        return new Source((until, use) -> ofPool(pool, until), pool, null);
    }

    /** @param pool has the connections for {@link Lease#inTransaction}; without it, each gets one that is made for it */
    public Source transactions(DataSource pool) {
        return new Source(opener, pool, given);
    }

    /** @param name the schema of the functions of the portable edition. An error if the database has the extension */
    public Source schema(String name) {
        return new Source(opener, pool, name);
    }

    private static void checked(String url) {
        if (url == null) {
            throw new IllegalArgumentException("the DataSource does not tell its url: name a Connector, with transactions(dataSource)");
        }
        if (!new Driver().acceptsURL(url)) {
            throw new IllegalArgumentException("not a url of PostgreSQL's driver: " + url);
        }
    }

    private static Object ask(Object pool, String getter) {
        try {
            return pool.getClass().getMethod(getter).invoke(pool);
        } catch (NoSuchMethodException | IllegalAccessException | InvocationTargetException isAnother) {
            return null;
        }
    }

    private static String first(Object pool, String... getters) {
        for (String getter : getters) {
            Object found = ask(pool, getter);
            if (found instanceof String && !((String) found).isEmpty()) {
                return (String) found;
            }
        }
        return null;
    }

    /** Asks each time: passwords change. */
    private static Connection ofPool(DataSource pool, long until) throws SQLException {
        Properties properties = new Properties();
        Object more = ask(pool, "getDataSourceProperties");
        if (more instanceof Properties) {
            properties.putAll((Properties) more);
        }
        String user = first(pool, "getUsername", "getUserName", "getUser");
        String password = first(pool, "getPassword");
        if (user != null) {
            properties.setProperty("user", user);
        }
        if (password != null) {
            properties.setProperty("password", password);
        }
        return open(first(pool, "getJdbcUrl", "getUrl", "getURL"), properties, until, Use.LEASES);
    }

    /** Each address of each host gets its share of the time: one that is silent must not use up all of it. */
    private static Connection open(String url, Properties properties, long until, Use use) throws SQLException {
        Properties parsed = Driver.parseURL(url, properties); // null: the driver tells why
        String[] hosts = PGProperty.PG_HOST.getOrDefault(parsed == null ? properties : parsed).split(",");
        int addresses = addresses(hosts);
        for (int n = 0;; n++) {
            Properties ours = new Properties();
            String seconds = String.valueOf(Math.max(1, Clock.left(until) / hosts.length / (addresses - n) / Clock.SECOND));
            ours.setProperty("connectTimeout", seconds);
            ours.setProperty("socketTimeout", seconds);
            ours.setProperty(KeptAlive.ADDRESS, String.valueOf(n));
            if (hosts.length * addresses > 1) {
                ours.setProperty("targetServerType", "primary");
            }
            try {
                return open(url, properties, ours, use);
            } catch (SQLException e) {
                if (n + 1 == addresses || Errors.sort(e, false) == Errors.Action.NOT_AGAIN) {
                    throw e;
                }
            }
        }
    }

    /** How many there are of the host that has most. */
    private static int addresses(String[] hosts) {
        int most = 1;
        for (String host : hosts) {
            try {
                most = Math.max(most, InetAddress.getAllByName(host).length);
            } catch (UnknownHostException e) {
                // the driver tells of it, or its proxy knows the host
            }
        }
        return most;
    }

    /** ours: they go before those of the url. */
    private static Connection open(String url, Properties properties, Properties ours, Use use) throws SQLException {
        Properties all = new Properties();
        all.setProperty("ApplicationName", "lease_lock");
        all.setProperty("socketFactory", KeptAlive.class.getName());
        all.putAll(properties);
        ours.setProperty("loginTimeout", "0");
        ours.setProperty("tcpKeepAlive", "true");
        ours.setProperty("readOnly", "false");
        if (use == Use.LEASES) {
            ours.setProperty("preferQueryMode", "simple"); // a request is one message
            ours.setProperty("assumeMinServerVersion", "15"); // no statements of the driver's own
        }
        all.putAll(ours);
        String[] parts = url.split("\\?", 2);
        StringBuilder address = new StringBuilder(parts[0]).append('?');
        for (String parameter : parts.length > 1 ? parts[1].split("&") : new String[0]) {
            if (!ours.containsKey(parameter.split("=", 2)[0])) {
                address.append(parameter).append('&');
            }
        }
        return new Driver().connect(address.toString(), all);
    }

    /** For leases. */
    Connection connect(long until) throws SQLException {
        return connect(until, Use.LEASES);
    }

    private Connection connect(long until, Use use) throws SQLException {
        Connection connection = opener.open(until, use);
        if (connection == null) {
            throw new IllegalStateException("the Connector returned no connection");
        }
        connection.setAutoCommit(true);
        connection.setNetworkTimeout(Runnable::run, 0); // the limit was for the login
        return connection;
    }

    Connection forTransaction(long until) throws SQLException {
        return pool == null ? connect(until, Use.TRANSACTION) : pool.getConnection();
    }

    /** Where the functions are. */
    String schema(Connection connection) throws SQLException {
        String known = schema;
        return known != null ? known : (schema = find(connection));
    }

    /** The extension may have moved. */
    void forgetSchema() {
        schema = null;
    }

    private String find(Connection connection) throws SQLException {
        List<String[]> rows = Statements.execute(connection, Statements.FIND.replace("{schema}", Statements.quote(given))).rows;
        if (rows.isEmpty()) {
            throw new IllegalStateException("database \"" + connection.getCatalog() + "\" does not have the "
                + (given == null ? "extension lease_lock" : "schema \"" + given + "\""));
        }
        if (rows.get(0)[1].equals("t") && given != null) {
            throw new IllegalStateException("the schema \"" + given + "\" is given, but database \"" + connection.getCatalog()
                + "\" has the extension lease_lock");
        }
        return '"' + rows.get(0)[0].replace("\"", "\"\"") + '"';
    }
}
