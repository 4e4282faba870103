package leaselock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

// An answer of the server.
type answer struct {
	rows   [][]*string
	err    error
	sent   moment // when the statement was sent; 0: it was not
	unsafe bool   // a synchronous wait was cancelled: what was written may not survive a failover
}

// A link is a connection of the package's own, for one goroutine at a time. The
// driver closes it when the context of a statement is over.
type link struct {
	leases *Leases
	conn   *pgx.Conn
	unsafe bool
}

// run connects if need be, within a limit, and runs statements in one message,
// within another one. text is called just before they are sent.
func (l *link) run(ctx context.Context, connecting, limit time.Duration, text func(schema string, conn *pgx.Conn) string) (result answer) {
	defer func() {
		if l.conn != nil && (l.conn.IsClosed() || stateOf(result.err) == readOnly) {
			l.close()
		}
	}()
	var schema string
	if schema, result.err = l.ready(ctx, connecting); result.err != nil {
		return result
	}
	statement := text(schema, l.conn)
	l.unsafe = false
	if limit != forever {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	result.sent = now()
	result.rows, result.err = execute(ctx, l.conn, statement)
	result.unsafe = l.unsafe
	return result
}

// ready connects unless there is a connection that can be used.
func (l *link) ready(ctx context.Context, limit time.Duration) (schema string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if l.conn != nil && !isQuiet(l.conn) {
		l.close()
	}
	if l.conn == nil {
		if l.conn, err = l.leases.source.connect(ctx, l.notice); err != nil {
			return "", err
		}
		keepAlive(l.conn)
	}
	return l.leases.findSchema(ctx, l.conn)
}

// notice knows a warning by the function that raised it, since its text is translated.
func (l *link) notice(_ *pgconn.PgConn, n *pgconn.Notice) {
	l.unsafe = l.unsafe || n.Routine == "SyncRepWaitForLSN"
}

func (l *link) close() {
	drop(l.conn)
	l.conn = nil
}

// Links are a limited number of links, of which some are kept for the next call.
type links struct {
	leases *Leases
	room   chan struct{}
	idle   chan *link
}

func newLinks(l *Leases, number, kept int) *links {
	return &links{leases: l, room: make(chan struct{}, number), idle: make(chan *link, kept)}
}

// take returns nil if none becomes free in time.
func (l *links) take(ctx context.Context, until moment) *link {
	select {
	case l.room <- struct{}{}:
	default:
		over, stop := until.timer()
		defer stop()
		select {
		case l.room <- struct{}{}:
		case <-over:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	select {
	case known := <-l.idle:
		return known
	default:
		return &link{leases: l.leases}
	}
}

func (l *links) putBack(used *link) {
	select {
	case l.idle <- used:
	default:
		used.close()
	}
	<-l.room
}

// close is called when none is in use any longer.
func (l *links) close() {
	close(l.idle)
	for unused := range l.idle {
		unused.close()
	}
}

// execute runs statements in a transaction of their own; it returns the rows of the last one.
func execute(ctx context.Context, conn *pgx.Conn, statement string) ([][]*string, error) {
	results, err := conn.PgConn().Exec(ctx, statement).ReadAll()
	if err != nil {
		return nil, err
	}
	var rows [][]*string
	for _, values := range results[len(results)-1].Rows {
		row := make([]*string, len(values))
		for i, value := range values {
			if value != nil {
				text := string(value)
				row[i] = &text
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// quote returns a literal, which needs no setting of the server: E” always knows
// backslashes.
func quote(text string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + "'"
}

// A claim is what the server knows a lease by.
type claim struct {
	resource, owner string
	token           int64 // 0: not known
}

// columns returns an array of each.
func columns(claims []claim) map[string]string {
	var resources, owners, tokens []string
	for _, c := range claims {
		resources, owners = append(resources, quote(c.resource)), append(owners, quote(c.owner))
		tokens = append(tokens, fmt.Sprintf("nullif(%d, 0)", c.token))
	}
	return map[string]string{"resources": array(resources), "owners": array(owners), "tokens": array(tokens)}
}

func array(values []string) string { return "ARRAY[" + strings.Join(values, ", ") + "]" }

// fill puts values in the place of their names in braces, in one pass: a value
// may have braces.
func fill(text string, values map[string]string) string {
	pairs := []string{}
	for name, value := range values {
		pairs = append(pairs, "{"+name+"}", value)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
