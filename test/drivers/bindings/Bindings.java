// The calls of the table of drivers in docs/drivers.md, by JDBC. Prints the
// version, then what was sent and what came back. With stringtype=unspecified
// a string is sent without a type; otherwise ttl and wait need ?::interval.
import java.sql.*;

public class Bindings {
	static Connection connection;

	interface Getter {
		String get(ResultSet row) throws SQLException;
	}

	static String call(String sql, Getter getter, Object... values) throws SQLException {
		try (PreparedStatement statement = connection.prepareStatement(sql)) {
			for (int i = 0; i < values.length; i++)
				statement.setObject(i + 1, values[i]);
			try (ResultSet row = statement.executeQuery()) {
				row.next();
				return getter.get(row);
			}
		}
	}

	static void say(String... fields) {
		System.out.println(String.join("\t", fields));
	}

	static void fail(String item, String sql, String resource) {
		try {
			call(sql, row -> "", resource, "o");
			say(item, sql, "no error");
		} catch (SQLException e) {
			say(item, sql, e.getClass().getSimpleName() + " " + e.getSQLState());
		}
	}

	public static void main(String[] arguments) throws Exception {
		connection = DriverManager.getConnection(arguments[0]);
		say(connection.getMetaData().getDriverVersion());
		Array names = connection.createArrayOf("text", new String[] {"a", "b"});
		say("list", "createArrayOf(\"text\", {\"a\", \"b\"})", call("SELECT lease_renew_several(?, ?, ?)", row -> "" + row.getBoolean(1), names, "1 hour", "o"));
		long token = Long.parseLong(call("SELECT lease_token(?, ?)", row -> "" + row.getLong(1), "a", "o"));
		say("token", "long " + token, call("SELECT lease_assert_token(?, ?)", row -> "" + row.getLong(1), "a", token));
		String wait = "CALL lease_wait(?, ?, ?, ?)";
		say("wait", wait, call(wait, row -> "{" + row.getBoolean(1) + ", " + row.getLong(2) + ", " + row.getTimestamp(3) + "}", "w", "1 minute", "o", "10 s"));
		fail("lost", "SELECT lease_assert(?, ?)", "free");
		fail("timeout", "SELECT lease_release(?, ?)", "busy");
	}
}
