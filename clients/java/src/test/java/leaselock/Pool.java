package leaselock;

import java.io.PrintWriter;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.sql.SQLFeatureNotSupportedException;
import java.sql.Statement;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.logging.Logger;
import javax.sql.DataSource;

/** A pool that lets callers wait without limit, and tells what it is as BasicDataSource of DBCP does. */
public final class Pool implements DataSource {
    interface Work {
        void run(Connection connection) throws Exception;
    }

    Work afterCommit = connection -> { };

    private final String url;
    private final List<String> setup;
    private final Semaphore room;
    private final Queue<Connection> idle = new ConcurrentLinkedQueue<>();
    private volatile boolean closed;

    Pool(String url, int size, List<String> setup) {
        this.url = url;
        this.setup = setup;
        room = new Semaphore(size);
    }

    public String getUrl() {
        return url;
    }

    public List<String> getConnectionInitSqls() {
        return setup;
    }

    @Override
    public Connection getConnection() throws SQLException {
        room.acquireUninterruptibly();
        try {
            if (closed) {
                throw new SQLException("the pool is closed");
            }
            Connection known = idle.poll();
            Connection connection = known != null && known.isValid(1) ? known : connect();
            return (Connection) Proxy.newProxyInstance(Pool.class.getClassLoader(), new Class<?>[] {Connection.class},
                (proxy, method, args) -> {
                    if (method.getName().equals("close")) {
                        giveBack(connection);
                        return null;
                    }
                    try {
                        Object result = method.invoke(connection, args);
                        if (method.getName().equals("commit")) {
                            afterCommit.run(connection);
                        }
                        return result;
                    } catch (java.lang.reflect.InvocationTargetException e) {
                        throw e.getCause();
                    }
                });
        } catch (SQLException | RuntimeException e) {
            room.release();
            throw e;
        }
    }

    private Connection connect() throws SQLException {
        Connection connection = DriverManager.getConnection(url);
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            for (String each : setup) {
                statement.execute(each);
            }
        }
        connection.commit();
        return connection;
    }

    private void giveBack(Connection connection) throws SQLException {
        if (closed || connection.isClosed()) {
            connection.close();
        } else {
            idle.add(connection);
        }
        room.release();
    }

    boolean isWaitedFor() {
        return room.hasQueuedThreads();
    }

    void close() throws SQLException {
        closed = true;
        for (Connection each; (each = idle.poll()) != null;) {
            each.close();
        }
    }

    @Override
    public Connection getConnection(String user, String password) throws SQLException {
        throw new SQLFeatureNotSupportedException();
    }

    @Override
    public PrintWriter getLogWriter() {
        return null;
    }

    @Override
    public void setLogWriter(PrintWriter out) { }

    @Override
    public void setLoginTimeout(int seconds) { }

    @Override
    public int getLoginTimeout() {
        return 0;
    }

    @Override
    public Logger getParentLogger() {
        return Logger.getGlobal();
    }

    @Override
    public <T> T unwrap(Class<T> type) throws SQLException {
        throw new SQLFeatureNotSupportedException();
    }

    @Override
    public boolean isWrapperFor(Class<?> type) {
        return false;
    }
}
