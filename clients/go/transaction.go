package leaselock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
	"github.com/jackc/puddle"
)

// A Beginner is a connection or pool of pgx.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Transaction calls work in a transaction that asserts the lease, and may write to
// tables that it protects. Nobody else can be granted the lease before it ends.
//
// It is rolled back if work returns an error, or if the lease is lost meanwhile:
// then the error is a LeaseLost. The context of work ends with the lease, too. It
// begins within 5 seconds or fails. COMMIT must be answered while the lease lasts;
// else the error is an OutcomeUnknown. It is that, too, if somebody cancelled the
// wait for a synchronous standby.
//
// It is on a connection of Options.Pool, or else on one that is made for it. pgx
// tells the warnings of a connection only to the one that made it: with a pool, a
// wait that was cancelled is not noticed.
func (l *Lease) Transaction(ctx context.Context, work func(ctx context.Context, tx pgx.Tx) error) error {
	if pool := l.leases.options.Pool; pool != nil {
		return l.transaction(ctx, pool.Begin, true, work)
	}
	var own link
	defer own.close()
	begin := func(ctx context.Context) (_ pgx.Tx, err error) {
		own.close()
		if own.conn, err = l.leases.source.connect(ctx, own.notice); err != nil {
			return nil, err
		}
		return own.conn.Begin(ctx)
	}
	err := l.transaction(ctx, begin, true, work)
	if err == nil && own.unsafe {
		err = l.unknownCommit(errors.New("the synchronous standby did not confirm it"))
	}
	return err
}

// TransactionOn is Transaction on a connection or pool of the program, as with
// Options.Pool.
func (l *Lease) TransactionOn(ctx context.Context, on Beginner, work func(ctx context.Context, tx pgx.Tx) error) error {
	return l.transaction(ctx, on.Begin, false, work)
}

type beginner func(context.Context) (pgx.Tx, error)

func (l *Lease) transaction(ctx context.Context, begin beginner, repeat bool, work func(ctx context.Context, tx pgx.Tx) error) (err error) {
	bound, cancel := l.bound(ctx)
	defer cancel()
	tx, err := l.begin(bound, begin, repeat)
	if err != nil {
		return l.explain(ctx, err)
	}
	defer func() {
		if tx != nil {
			rollBack(tx)
		}
	}()
	if err = work(bound, tx); err != nil {
		return l.explain(ctx, err)
	}
	if err = l.Err(); err != nil {
		return err
	}
	ended := tx
	tx = nil
	return l.commit(ended)
}

// begin tries again on another connection if one breaks: nothing of the program's
// is in the transaction yet.
func (l *Lease) begin(ctx context.Context, begin beginner, repeat bool) (pgx.Tx, error) {
	limited, cancel := context.WithTimeout(ctx, shorter(patience, l.Remaining()))
	defer cancel()
	for n := 0; ; n++ {
		if err := l.Err(); err != nil {
			return nil, err
		}
		tx, err := begin(limited)
		if err == nil {
			if err = l.assert(limited, tx); err == nil {
				return tx, nil
			}
			leaveReadOnly(tx, err)
			rollBack(tx)
		}
		if !repeat || errors.Is(err, puddle.ErrClosedPool) || sortError(err, true) == notAgain {
			return nil, err
		}
		select {
		case <-limited.Done():
			return nil, err
		case <-time.After(pauseAfter(n)):
		}
	}
}

// assert must not end up in a cache of prepared statements.
func (l *Lease) assert(ctx context.Context, tx pgx.Tx) error {
	rows, err := execute(ctx, tx.Conn(), fill(assertText, map[string]string{
		"schema": l.schema, "resource": quote(l.resource), "owner": quote(l.owner)}))
	if err == nil && *rows[0][0] != fmt.Sprint(l.token) {
		err = &pgconn.PgError{Severity: "ERROR", Code: notHeld, Message: "the owner has a later lease"}
	}
	if stateOf(err) == notHeld {
		l.leases.mutex.Lock()
		defer l.leases.mutex.Unlock()
		l.leases.lose(l, Broken)
	}
	return err
}

// leaveReadOnly closes a connection that its pool would hand out again.
func leaveReadOnly(tx pgx.Tx, err error) {
	if _, pooled := tx.(*pgxpool.Tx); pooled && stateOf(err) == readOnly {
		drop(tx.Conn())
	}
}

func rollBack(tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tx.Rollback(ctx)
}

// explain: what fails because the lease is lost is a LeaseLost.
func (l *Lease) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	lost := l.Err()
	if lost != nil && (stateOf(err) != "" || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || pgconn.SafeToRetry(err)) {
		return lost
	}
	return err
}

// commit has a context of its own: its outcome should be known.
func (l *Lease) commit(tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.Background(), l.Remaining())
	defer cancel()
	err := tx.Commit(ctx)
	if err == nil || errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed) || sortError(err, true) != unknown {
		return err
	}
	return l.unknownCommit(err)
}

func (l *Lease) unknownCommit(err error) error {
	return &OutcomeUnknown{ofResource{l.resource}, fmt.Sprintf("COMMIT under the lease on %q", l.resource), err}
}
