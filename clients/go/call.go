package leaselock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v4"
)

var errUnconfirmed = errors.New("the synchronous standby did not confirm it")

// pauseAfter says how long to wait before a call is made again.
func pauseAfter(failures int) time.Duration {
	if failures > 4 {
		return time.Second
	}
	return 50 * time.Millisecond << failures
}

// A call is one Acquire. It runs in a goroutine of its own, and ends what it is granted
// when its caller does not wait any longer.
type call struct {
	leases        *Leases
	request       *request
	giveUp, limit moment
	unanswered    int    // copies of the request that may arrive
	doubtfulUntil moment // for so long
	lookedUp      bool
	failures      int
	last          error // what it returns when the time is over
	refused       moment
	lease         *Lease // what becomes of it
	err           error
}

func newCall(l *Leases, r *request) *call {
	c := &call{leases: l, request: r, giveUp: now().after(r.wait), limit: now().after(r.wait), last: errTooLate}
	if r.wait == 0 {
		c.limit = now().after(patience)
	}
	return c
}

func (c *call) run(ctx context.Context) (*Lease, error) {
	lease, err := c.try(ctx)
	if isTaken(err) && c.request.wait != 0 {
		lease, err = c.inLine(ctx)
	}
	var taken *LeaseTaken
	if errors.As(err, &taken) && taken.BlockedFor != nil {
		*taken.BlockedFor = longer(*taken.BlockedFor-time.Duration(now()-c.refused), 0)
	}
	if lease == nil && c.unanswered > 0 && c.request.ownOwner {
		c.leases.mutex.Lock()
		c.leases.keeper.forget(c.request, c.unanswered)
		c.leases.mutex.Unlock()
	}
	return lease, err
}

func isTaken(err error) bool {
	var taken *LeaseTaken
	return errors.As(err, &taken)
}

// try asks on a connection that is never used for waits, until there is an answer.
func (c *call) try(ctx context.Context) (*Lease, error) {
	for {
		used := c.leases.tries.take(ctx, c.limit)
		if used == nil {
			return nil, c.over(ctx)
		}
		lease, done, err := c.ask(ctx, used, 0)
		c.leases.tries.putBack(used)
		if done {
			return lease, err
		}
		if err := c.pause(ctx); err != nil {
			return nil, err
		}
	}
}

// inLine waits behind the other calls of this process for the resource, and then at
// the server.
func (c *call) inLine(ctx context.Context) (*Lease, error) {
	own := c.leases.join(c.request.resource)
	defer c.leases.leave(c.request.resource)
	over, stop := c.limit.timer()
	defer stop()
	select {
	case own.head <- struct{}{}:
		defer func() { <-own.head }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-over:
		return nil, c.over(ctx)
	}
	for {
		lease, done, err := c.await(ctx)
		if done && (!isTaken(err) || now() >= c.limit) {
			return lease, err
		}
		if err := c.pause(ctx); err != nil {
			return nil, err
		}
		if !done {
			// Perhaps there is no room for another connection: what tries has one.
			if lease, err := c.try(ctx); !isTaken(err) {
				return lease, err
			}
		}
	}
}

// await waits at the server; without a connection for waits, it tries in intervals.
func (c *call) await(ctx context.Context) (lease *Lease, done bool, err error) {
	used := c.leases.waits.take(ctx, earlier(c.limit, now().after(pollAfter)))
	if used == nil {
		c.failures = 0
		lease, err = c.try(ctx)
		return lease, true, err
	}
	defer c.leases.waits.putBack(used)
	return c.ask(ctx, used, c.giveUp)
}

// ask asks once; the wait at the server ends at until. done is false if it is to be
// asked again.
func (c *call) ask(ctx context.Context, used *link, until moment) (lease *Lease, done bool, err error) {
	asking, connecting, limit := ctx, patience, forever
	if until == 0 {
		if !c.request.ownOwner {
			asking = context.Background() // of a try that is cut off, nobody could end the hold
		}
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeout(asking, patience) // for all of it
		defer cancel()
	} else {
		connecting = shorter(patience, c.limit.left())
	}
	if until != never {
		limit = until.left() + patience
	}
	c.leases.asks(c, true)
	defer c.leases.asks(c, false)
	result := used.run(asking, connecting, limit, func(schema string, conn *pgx.Conn) string {
		return c.request.statement(schema, conn, until, c.unanswered > 0)
	})
	if until != 0 && result.sent == 0 && now() >= c.limit && ctx.Err() == nil {
		return nil, true, c.last // the end of the wait cut off what was connecting
	}
	if result.err != nil {
		done = c.failed(ctx, result)
		return nil, done, c.last
	}
	return c.answered(ctx, result)
}

func (c *call) answered(ctx context.Context, result answer) (*Lease, bool, error) {
	row := result.rows[0]
	if *row[0] != "t" {
		c.last = c.taken(row)
		return nil, true, c.last
	}
	since := result.sent.after(timeOf(row[2]))
	lease := newLease(c.leases, c.request, number(row[1]), since)
	switch {
	case result.unsafe:
		c.leases.log("lease on %q was granted, but the synchronous standby did not confirm it: asking again", c.request.resource)
		c.last = errUnconfirmed
		c.leases.mutex.Lock()
		c.leases.keeper.shareOver(lease)
		lease.decide(Released)
		undone := c.leases.keeper.end(lease)
		c.leases.mutex.Unlock()
		over, stop := c.limit.timer()
		defer stop()
		select {
		case <-undone.done:
		case <-over:
		case <-ctx.Done():
		}
	case c.request.ownOwner && now() >= since.after(c.request.ttl/2):
		// It took so long that the lease is nearly over: ask for it again.
		c.unanswered, c.last = c.unanswered+1, errors.New("answers take longer than the lease lasts")
	default:
		if c.request.ownOwner {
			lease.unanswered, lease.doubtfulUntil = c.unanswered, c.doubtfulUntil
		}
		if !c.leases.keep(lease) {
			return nil, true, &Closed{ofResource{c.request.resource}}
		}
		return lease, true, nil
	}
	return nil, false, c.last
}

func (c *call) taken(row []*string) error {
	c.refused = now()
	taken := &LeaseTaken{ofResource: ofResource{c.request.resource}, Reason: *row[3]}
	if row[4] != nil {
		taken.BlockedBy = *row[4]
	}
	if row[5] != nil {
		left := timeOf(row[5])
		taken.BlockedFor = &left
	}
	return taken
}

func number(text *string) (n int64) {
	fmt.Sscan(*text, &n)
	return n
}

func timeOf(milliseconds *string) time.Duration {
	return time.Duration(number(milliseconds)) * time.Millisecond
}

// failed sets the error, and says whether that is the end of the call.
func (c *call) failed(ctx context.Context, result answer) bool {
	c.last = result.err
	what := sortError(result.err, result.sent != 0)
	if what == unknown {
		c.unanswered++
		c.doubtfulUntil = now().after(lookAfter)
	}
	if isMoved(result.err) {
		c.leases.forgetSchema()
	}
	switch {
	case ctx.Err() != nil:
		c.last = ctx.Err()
		return true
	case isMoved(result.err) && !c.lookedUp:
		c.lookedUp = true
		return false
	case isMoved(result.err), what == notAgain:
		return true
	case what == unknown && !c.request.ownOwner:
		c.last = &OutcomeUnknown{ofResource{c.request.resource}, fmt.Sprintf("a request for %q", c.request.resource), result.err}
		return true
	}
	if c.failures == 0 {
		c.leases.log("request for %q failed, trying again: %v", c.request.resource, result.err)
	}
	return false
}

// pause sleeps before the call is made again. An error if there is no time left.
func (c *call) pause(ctx context.Context) error {
	pause := pauseAfter(c.failures)
	c.failures++
	if now().after(pause) >= c.limit {
		return c.over(ctx)
	}
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// over is the error of a call that ended without an answer.
func (c *call) over(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.last
}

func (l *Leases) join(resource string) *line {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	own := l.lines[resource]
	if own == nil {
		own = &line{head: make(chan struct{}, 1)}
		l.lines[resource] = own
	}
	own.callers++
	return own
}

func (l *Leases) leave(resource string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	own := l.lines[resource]
	if own.callers--; own.callers == 0 {
		delete(l.lines, resource)
	}
}
