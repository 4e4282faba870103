// Package leaselock has leases of the PostgreSQL extension lease_lock: renewed
// in the background, noticed in time when they are lost, and fenced where data
// is written.
//
//	leases, err := leaselock.New("host=db dbname=app", leaselock.Options{})
//	defer leases.Close(context.Background())
//	err = leases.Hold(ctx, "invoice:17", 30*time.Second, func(ctx context.Context, lease *leaselock.Lease) error {
//		return lease.Transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
//			_, err := tx.Exec(ctx, "UPDATE invoice SET sent = true WHERE id = 17")
//			return err
//		})
//	})
//
// The context of the function is cancelled before another owner can have the
// lease. README.md says what each call is bounded by.
package leaselock

import (
	"context"
	"errors"
	"log"
	"sync"
	"time"

	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

// Connections for tries, and for waits, and how many of these are kept. A resource
// beyond them is tried in intervals.
const (
	tries, triesKept = 4, 4
	waits, waitsKept = 8, 2
	pollAfter        = 500 * time.Millisecond
)

// Options of New. All may be left out.
type Options struct {
	// Pool is for transactions. Without a connection string or Connect, leases are
	// kept on connections with its parameters, outside of it.
	Pool *pgxpool.Pool
	// Connect returns the parameters of a connection, each time anew, instead of a
	// connection string: for passwords that change, and with AfterConnect in it for
	// connections that have to be set up.
	Connect func(context.Context) (*pgx.ConnConfig, error)
	// Schema is where the functions of the portable edition are. An error if the
	// database has the extension.
	Schema string
	// Logf logs what went wrong in the background; log.Printf by default.
	Logf func(format string, args ...interface{})
}

// Leases are renewed in the background, on one connection for all. All methods may
// be called by several goroutines at the same time.
type Leases struct {
	source  *source
	options Options
	owner   string // of leases that are counted
	tries   *links
	waits   *links
	journal *journal
	closing chan struct{} // closed by Close
	closed  chan struct{} // closed when nothing is left

	mutex  sync.Mutex // protects what follows, the keeper, and the times of leases
	schema string     // where the functions are, quoted; empty if it is not known
	keeper *keeper
	lines  map[string]*line
	calls  map[*call]bool // true while a request of it is at the server
	ended  sync.WaitGroup // of the calls
}

// A line is for the calls in this process that wait for one resource: one of them
// waits at the server.
type line struct {
	head    chan struct{} // has room for one
	callers int
}

// New returns leases on the server that a connection string of pgx names; it may be
// empty, and environment variables count. It makes no connection yet.
func New(connection string, options Options) (*Leases, error) {
	source, err := newSource(connection, options)
	if err != nil {
		return nil, err
	}
	if options.Logf == nil {
		options.Logf = log.Printf
	}
	l := &Leases{source: source, options: options, journal: &journal{logf: options.Logf}, owner: newOwner(), lines: map[string]*line{}, calls: map[*call]bool{},
		closing: make(chan struct{}), closed: make(chan struct{})}
	l.tries, l.waits, l.keeper = newLinks(l, tries, triesKept), newLinks(l, waits, waitsKept), newKeeper(l)
	return l, nil
}

func (l *Leases) log(format string, args ...interface{}) {
	l.journal.log("lease_lock: "+format, args...)
}

// Hold calls work while it holds the lease. The context of work is cancelled
// before another owner can have the lease.
//
// The error is that of work; or a LeaseTaken, or one of pgx, if there is no lease
// after the wait; or a LeaseLost if the lease was lost and work returned no error,
// or that of its context. When ctx ends, the wait ends, or the context of work; the
// lease is released all the same, for at most 5 seconds.
func (l *Leases) Hold(ctx context.Context, resource string, ttl time.Duration,
	work func(ctx context.Context, lease *Lease) error, options ...Option) error {
	lease, err := l.acquire(ctx, resource, ttl, options)
	if err != nil {
		return err
	}
	return lease.use(ctx, work, false)
}

// TryHold is Hold that does not wait, and returns false, and no error, if another
// owner has the lease.
func (l *Leases) TryHold(ctx context.Context, resource string, ttl time.Duration,
	work func(ctx context.Context, lease *Lease) error, options ...Option) (bool, error) {
	return l.try(ctx, resource, ttl, work, options)
}

func (l *Leases) try(ctx context.Context, resource string, ttl time.Duration,
	work func(ctx context.Context, lease *Lease) error, options []Option) (bool, error) {
	lease, err := l.acquire(ctx, resource, ttl, with(options, Wait(0)))
	if taken := (*LeaseTaken)(nil); errors.As(err, &taken) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, lease.use(ctx, work, lease.request.retryFailed)
}

// Once calls job unless one ran under this name in the period before, on whichever
// host. After a crash another host can run it when the ttl is over; after an error,
// with RetryFailed, at once. The first result is whether it was called.
func (l *Leases) Once(ctx context.Context, name string, period, ttl time.Duration,
	job func(ctx context.Context, lease *Lease) error, options ...Option) (bool, error) {
	return l.try(ctx, name, shorter(ttl, period), job, with(options, MinHold(period)))
}

// Elect calls run whenever this is the leader, until it returns while it still is,
// and returns its error. When the lease is lost, the context of run is cancelled,
// and this stands for election again. It returns nil after Close.
func (l *Leases) Elect(ctx context.Context, resource string, ttl time.Duration,
	run func(ctx context.Context, lease *Lease) error, options ...Option) error {
	for {
		lease, err := l.acquire(ctx, resource, ttl, with(options, Wait(ttl)))
		if err == nil {
			err = lease.use(ctx, run, false)
			var lost *LeaseLost
			if ctx.Err() != nil || !errors.As(lease.Err(), &lost) || lost.Reason == Released {
				return err
			}
			l.log("leader no more: %v (it returned: %v)", lost, err)
			continue
		}
		if taken := (*LeaseTaken)(nil); errors.As(err, &taken) {
			continue
		}
		if closed := (*Closed)(nil); errors.As(err, &closed) {
			return nil
		}
		if ctx.Err() != nil || sortError(err, true) == notAgain {
			return err
		}
		l.log("could not be elected on %q: %v", resource, err)
		select {
		case <-time.After(time.Second):
		case <-l.closing:
		case <-ctx.Done():
		}
	}
}

// Acquire returns a lease that is to be released, by End or Release. The errors are
// those of Hold. The end of ctx ends the wait, but not the lease.
func (l *Leases) Acquire(ctx context.Context, resource string, ttl time.Duration, options ...Option) (*Lease, error) {
	lease, err := l.acquire(ctx, resource, ttl, options)
	if err != nil {
		return nil, err
	}
	return lease.take(false)
}

func (l *Leases) acquire(ctx context.Context, resource string, ttl time.Duration, options []Option) (*Lease, error) {
	r, err := l.newRequest(resource, ttl, options)
	if err != nil {
		return nil, err
	}
	l.mutex.Lock()
	if l.isClosed() {
		l.mutex.Unlock()
		return nil, &Closed{ofResource{resource}}
	}
	c, done := newCall(l, r), make(chan struct{})
	l.calls[c] = false
	l.ended.Add(1)
	l.mutex.Unlock()
	bound, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer l.callEnds(c)
		c.lease, c.err = c.run(bound)
		select {
		case done <- struct{}{}:
		case <-bound.Done():
			if c.lease != nil {
				c.lease.startRelease()
			}
		}
	}()
	select {
	case <-done:
	case <-l.closing:
		return nil, &Closed{ofResource{resource}}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.err != nil && l.isClosed() {
		return nil, &Closed{ofResource{resource}}
	}
	return c.lease, c.err
}

func (l *Leases) asks(c *call, asks bool) {
	l.mutex.Lock()
	l.calls[c] = asks
	l.mutex.Unlock()
}

func (l *Leases) callEnds(c *call) {
	l.mutex.Lock()
	delete(l.calls, c)
	l.mutex.Unlock()
	l.ended.Done()
}

func (l *Leases) isClosed() bool {
	select {
	case <-l.closing:
		return true
	default:
		return false
	}
}

// keep begins to renew and to watch a lease; false after Close.
func (l *Leases) keep(lease *Lease) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.keeper.shareOver(lease)
	if l.isClosed() {
		lease.decide(WasClosed)
		l.keeper.end(lease)
		return false
	}
	l.keeper.held[lease] = true
	l.keeper.rouse()
	go lease.watch()
	return true
}

// lose is called with the mutex.
func (l *Leases) lose(lease *Lease, reason Reason) {
	if lease.decide(reason) {
		delete(l.keeper.held, lease)
		lease.tell()
	}
}

func (l *Leases) findSchema(ctx context.Context, conn *pgx.Conn) (string, error) {
	l.mutex.Lock()
	known := l.schema
	l.mutex.Unlock()
	if known != "" {
		return known, nil
	}
	found, err := l.source.find(ctx, conn)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.schema = found
	return found, err
}

// forgetSchema: the extension may have moved.
func (l *Leases) forgetSchema() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.schema = ""
}

// Counts returns the numbers of leases that are kept, of ends that are not done,
// and of waits at the server.
func (l *Leases) Counts() (leases, ending, waiting int) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return len(l.keeper.held), len(l.keeper.endings), len(l.waits.room)
}

// Close releases what is held; what waits returns a Closed. It leaves no connection
// and no goroutine. It ends after 10 seconds, or with ctx, and returns the resources
// that are not released by then, and of requests without an answer; that goes on in
// the background.
func (l *Leases) Close(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	l.mutex.Lock()
	if !l.isClosed() {
		close(l.closing)
		for lease := range l.keeper.held {
			lease.decide(WasClosed)
			l.keeper.end(lease)
		}
		l.keeper.endNow(nil)
		go l.conclude()
	}
	l.mutex.Unlock()
	select {
	case <-l.closed:
	case <-ctx.Done():
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	left, named := []string{}, map[string]bool{}
	name := func(resource string) {
		if !named[resource] {
			left, named[resource] = append(left, resource), true
		}
	}
	for _, e := range l.keeper.endings {
		name(e.resource)
	}
	for c, asks := range l.calls {
		if asks {
			name(c.request.resource)
		}
	}
	return left
}

// conclude waits for the calls, ends the keeper, and closes the connections.
func (l *Leases) conclude() {
	l.ended.Wait()
	l.mutex.Lock()
	l.keeper.stop = true
	l.keeper.rouse()
	l.mutex.Unlock()
	<-l.keeper.stopped
	l.tries.close()
	l.waits.close()
	l.journal.flush()
	close(l.closed)
}
