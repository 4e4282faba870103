package leaselock

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
		return nil, &UsageError{"the pool has BeforeAcquire: leases are kept on connections of their own, to which Connect has to do the same"}
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

func (s *source) connect(ctx context.Context, notice func(*pgconn.PgConn, *pgconn.Notice)) (*pgx.Conn, error) {
	config, err := s.config(ctx)
	if err != nil {
		return nil, err
	}
	return inTurn(ctx, hostsOf(config), func(ctx context.Context, host *pgx.ConnConfig) (*pgx.Conn, error) {
		host.PreferSimpleProtocol = true
		if notice != nil {
			host.OnNotice = notice
		}
		addresses, err := addressesOf(ctx, host)
		if err != nil {
			return nil, err
		}
		return inTurn(ctx, addresses, s.connectTo)
	})
}

type connector func(context.Context, *pgx.ConnConfig) (*pgx.Conn, error)

// inTurn tries one server after another, each with its share of the time: one that
// is silent must not use up all of it.
func inTurn(ctx context.Context, servers []*pgx.ConnConfig, try connector) (*pgx.Conn, error) {
	failure := errors.New("the host has no address")
	for n, server := range servers {
		share, cancel := shareOf(ctx, len(servers)-n)
		conn, err := try(share, server)
		cancel()
		if err == nil {
			return conn, nil
		}
		if weightOf(err) >= weightOf(failure) {
			failure = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, failure
}

// weightOf says which error counts, of several servers. What a server said must not be
// hidden by one that cannot be reached, nor one that may take the client later by one
// that never will.
func weightOf(err error) int {
	switch {
	case stateOf(err) == "":
		return 0
	case sortError(err, false) == notAgain:
		return 1
	}
	return 2
}

func shareOf(ctx context.Context, shares int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(shares))
}

func (s *source) connectTo(ctx context.Context, address *pgx.ConnConfig) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, address)
	if err != nil || s.after == nil {
		return conn, err
	}
	if err = s.after(ctx, conn); err != nil {
		drop(conn)
		return nil, err
	}
	return conn, nil
}

// hostsOf takes a configuration apart: each host, with what it falls back to
// without TLS.
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
	return wantWrites(hosts)
}

// addressesOf takes a host apart. Each address keeps the name, which is that of its
// certificate.
func addressesOf(ctx context.Context, host *pgx.ConnConfig) ([]*pgx.ConnConfig, error) {
	if strings.HasPrefix(host.Host, "/") {
		return []*pgx.ConnConfig{host}, nil
	}
	found, err := host.LookupFunc(ctx, host.Host)
	var addresses []*pgx.ConnConfig
	for _, address := range found {
		only, one := []string{address}, host.Copy()
		one.LookupFunc = func(context.Context, string) ([]string, error) { return only, nil }
		addresses = append(addresses, one)
	}
	return wantWrites(addresses), err
}

// wantWrites: of several servers, that is wanted which takes writes. Whether its
// transactions are read-only by default may be changed later, by a hook of the program.
func wantWrites(servers []*pgx.ConnConfig) []*pgx.ConnConfig {
	for _, server := range servers {
		if len(servers) > 1 && server.ValidateConnect == nil {
			server.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
		}
	}
	return servers
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
		return "", &UsageError{"the database does not have the schema " + s.schema}
	case len(rows) == 0:
		return "", &UsageError{"the database does not have the extension lease_lock"}
	case *rows[0][1] == "t" && s.schema != "":
		return "", &UsageError{"a schema is given, but the database has the extension lease_lock"}
	}
	return pgx.Identifier{*rows[0][0]}.Sanitize(), nil
}

// errTooLate is for what found no connection, or none that was free.
var errTooLate = errors.New("no connection in time")
