package leaselock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

// A source makes the connections of the package's own, and knows where the
// functions are.
type source struct {
	config func(context.Context) (*pgx.ConnConfig, error)
	after  func(context.Context, *pgx.Conn) error
	schema string
}

func newSource(text string, options Options) (*source, error) {
	s := &source{config: options.Connect, schema: options.Schema}
	switch {
	case s.config != nil:
	case options.Pool == nil || text != "":
		config, err := pgx.ParseConfig(text)
		if err != nil {
			return nil, err
		}
		s.config = func(context.Context) (*pgx.ConnConfig, error) { return config, nil }
	case options.Pool.Config().BeforeAcquire != nil:
		return nil, &usageError{"the pool has BeforeAcquire: leases are kept on connections of their own, to which Connect has to do the same"}
	default:
		s.ofPool(options.Pool.Config())
	}
	return s, nil
}

func (s *source) ofPool(pool *pgxpool.Config) {
	s.after = pool.AfterConnect
	s.config = func(ctx context.Context) (*pgx.ConnConfig, error) {
		config := pool.ConnConfig.Copy()
		if pool.BeforeConnect == nil {
			return config, nil
		}
		return config, pool.BeforeConnect(ctx, config)
	}
}

// connect tries one host after another, each with its share of the time: one
// that is silent must not use up all of it.
func (s *source) connect(ctx context.Context, notice func(*pgconn.PgConn, *pgconn.Notice)) (*pgx.Conn, error) {
	config, err := s.config(ctx)
	if err != nil {
		return nil, err
	}
	hosts := hostsOf(config)
	for n, host := range hosts {
		host.PreferSimpleProtocol = true
		if notice != nil {
			host.OnNotice = notice
		}
		var conn *pgx.Conn
		if conn, err = connectOne(ctx, len(hosts)-n, host); err == nil && s.after != nil {
			err = s.after(ctx, conn)
		}
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		drop(conn)
	}
	return nil, err
}

func connectOne(ctx context.Context, share int, host *pgx.ConnConfig) (*pgx.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(share))
		defer cancel()
	}
	return pgx.ConnectConfig(ctx, host)
}

// hostsOf takes a configuration apart: each host, with what it falls back to
// without TLS. Of several hosts, that is wanted which takes writes.
func hostsOf(config *pgx.ConnConfig) []*pgx.ConnConfig {
	type address struct {
		host string
		port uint16
	}
	one := config.Copy()
	one.Fallbacks = nil
	hosts := []*pgx.ConnConfig{one}
	index := map[address]*pgx.ConnConfig{{one.Host, one.Port}: one}
	for _, other := range config.Fallbacks {
		at := address{other.Host, other.Port}
		if known := index[at]; known != nil {
			known.Fallbacks = append(known.Fallbacks, other)
			continue
		}
		next := config.Copy()
		next.Host, next.Port, next.TLSConfig, next.Fallbacks = other.Host, other.Port, other.TLSConfig, nil
		index[at] = next
		hosts = append(hosts, next)
	}
	for _, host := range hosts {
		if len(hosts) > 1 && host.ValidateConnect == nil {
			host.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
		}
	}
	return hosts
}

func drop(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx)
}

const findText = `SET LOCAL search_path = pg_catalog, pg_temp;
SELECT n.nspname, e.oid IS NOT NULL
FROM pg_namespace AS n LEFT JOIN pg_extension AS e ON e.extnamespace = n.oid AND e.extname = 'lease_lock'
WHERE e.oid IS NOT NULL OR n.nspname = %s
ORDER BY e.oid IS NULL`

// find returns the schema of the functions, quoted.
func (s *source) find(ctx context.Context, conn *pgx.Conn) (string, error) {
	rows, err := execute(ctx, conn, fmt.Sprintf(findText, quote(s.schema)))
	switch {
	case err != nil:
		return "", err
	case len(rows) == 0 && s.schema != "":
		return "", &usageError{"the database does not have the schema " + s.schema}
	case len(rows) == 0:
		return "", &usageError{"the database does not have the extension lease_lock"}
	case *rows[0][1] == "t" && s.schema != "":
		return "", &usageError{"a schema is given, but the database has the extension lease_lock"}
	}
	return pgx.Identifier{*rows[0][0]}.Sanitize(), nil
}

// errTooLate is for what found no connection, or none that was free.
var errTooLate = errors.New("no connection in time")
