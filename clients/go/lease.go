package leaselock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Lease is held until it is released or lost.
type Lease struct {
	claim
	leases          *Leases
	schema          string
	request         *request
	ttl, stopBefore time.Duration
	renews          bool
	ownOwner        bool
	onLost          func(*Lease)
	over            chan struct{} // closed when it is lost or released

	// The mutex of the Leases protects what follows.
	ends, deadline, renewAt moment
	overAt                  *moment       // it has certainly ended at the server, whatever became of a renewal without an answer
	limit                   time.Duration // of a renewal
	alone                   bool          // renewed apart from others, since its row is locked
	contended               *string
	fate                    Reason // empty while it is held
	giveBack                bool   // at its end it is not kept for its min_hold: nobody has worked, or the work has not succeeded
	unanswered              int    // other copies of its request that may arrive
	doubtfulUntil           moment // for so long
}

func newLease(l *Leases, r *request, token int64, since moment) *Lease {
	lease := &Lease{claim: r.claim, leases: l, schema: r.schema, request: r, ttl: r.ttl, stopBefore: r.stopBefore, renews: r.renews,
		ownOwner: r.ownOwner, onLost: r.onLost, over: make(chan struct{}), overAt: new(moment), giveBack: true}
	lease.token = token
	lease.extend(since)
	return lease
}

func (l *Lease) extend(sent moment) {
	left := l.ttl - l.stopBefore
	l.ends, l.deadline = sent.after(l.ttl), sent.after(left)
	*l.overAt = latest(*l.overAt, l.ends)
	l.renewAt = sent.after(shorter(l.ttl/3, left/2))
	l.limit = shorter(patience, l.ttl/6, left/4)
}

// decide is called with the mutex. False if it was lost or released before.
func (l *Lease) decide(fate Reason) bool {
	if l.fate != "" {
		return false
	}
	l.fate = fate
	close(l.over)
	return true
}

func (l *Lease) tell() {
	if l.onLost != nil {
		go l.onLost(l)
	}
}

// giveUp is called with the mutex. The rest of its time is the holder's, to stop: it
// is released then, or when the holder says that it has stopped.
func (l *Lease) giveUp() {
	if l.fate == "" && l.deadline <= now() {
		l.leases.lose(l, Expired)
		l.leases.keeper.end(l).due = l.ends
	}
}

// watch gives the lease up in time. It waits for no call.
func (l *Lease) watch() {
	for {
		l.leases.mutex.Lock()
		l.giveUp()
		until := l.deadline
		l.leases.mutex.Unlock()
		select {
		case <-l.over:
			return
		case <-earlier(until, now().after(tick)).over():
		}
	}
}

// Resource is that of the call.
func (l *Lease) Resource() string { return l.resource }

// Owner is the name under which it is held.
func (l *Lease) Owner() string { return l.owner }

// Token is the fencing token: higher for every later grant on the resource.
func (l *Lease) Token() int64 { return l.token }

// Lost is closed when the lease is lost, before another owner can have it, or
// when it is released.
func (l *Lease) Lost() <-chan struct{} { return l.over }

// Remaining is the time until the lease is given up as lost, unless it is renewed
// before; 0 if it is not held. The lease itself lasts longer.
func (l *Lease) Remaining() time.Duration {
	l.leases.mutex.Lock()
	defer l.leases.mutex.Unlock()
	if l.fate != "" {
		return 0
	}
	return l.deadline.left()
}

// Err is nil while the lease is held, and a LeaseLost afterwards. It makes no call.
func (l *Lease) Err() error {
	l.leases.mutex.Lock()
	defer l.leases.mutex.Unlock()
	switch {
	case l.fate != "":
		return &LeaseLost{ofResource{l.resource}, l.fate}
	case l.deadline <= now():
		return &LeaseLost{ofResource{l.resource}, Expired}
	}
	return nil
}

// Contended says whether anybody waits for the lease, as of the last renewal. The
// second result is false if that is not known.
func (l *Lease) Contended() (contended, known bool) {
	l.leases.mutex.Lock()
	defer l.leases.mutex.Unlock()
	return l.contended != nil && *l.contended == "t", l.contended != nil
}

// Release releases the lease. False if it was not held any longer. It ends after 5
// seconds, or with the lease, or with ctx; then the release goes on in the
// background, and the error is OutcomeUnknown or that of ctx.
func (l *Lease) Release(ctx context.Context) (bool, error) { return l.release(ctx) }

// startRelease returns nil if it is not held any longer.
func (l *Lease) startRelease() *ending {
	l.leases.mutex.Lock()
	defer l.leases.mutex.Unlock()
	l.giveUp() // watch may be late
	if !l.decide(Released) {
		l.leases.keeper.endNow(l)
		return nil
	}
	return l.leases.keeper.end(l)
}

func (l *Lease) release(ctx context.Context) (bool, error) {
	e := l.startRelease()
	if e == nil {
		return false, nil
	}
	select {
	case <-e.done:
		return e.released, e.err
	case <-earlier(now().after(patience), e.ends).over():
		if now() >= e.ends {
			l.expire()
			return false, nil
		}
		return false, &OutcomeUnknown{ofResource{l.resource}, fmt.Sprintf("the release of %q: it goes on in the background", l.resource), nil}
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// expire: it was over before the release was answered.
func (l *Lease) expire() {
	l.leases.mutex.Lock()
	defer l.leases.mutex.Unlock()
	if l.fate == Released {
		l.fate = Expired
	}
}

// End releases the lease at the end of what Acquire began, whatever became of a
// context. The error is a LeaseLost if it was lost. A release without an answer is
// logged, and goes on in the background.
func (l *Lease) End() error {
	l.leases.mutex.Lock()
	fate := l.fate
	l.leases.mutex.Unlock()
	if fate == Released {
		return nil
	}
	released, err := l.release(context.Background())
	if err != nil {
		l.leases.log("could not release lease on %q: %v", l.resource, err)
		return nil
	}
	if !released {
		return l.Err()
	}
	return nil
}

// bound returns a context that also ends with the lease.
func (l *Lease) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	bound, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-l.over:
			cancel()
		case <-bound.Done():
		}
	}()
	return bound, cancel
}

// use calls work with a context that ends before another owner can have the lease,
// and releases it.
func (l *Lease) use(ctx context.Context, work func(context.Context, *Lease) error, retryFailed bool) (err error) {
	bound, cancel := l.bound(ctx)
	defer func() {
		cancel()
		lost := l.End()
		if lost != nil && (err == nil || errors.Is(err, context.Canceled) && ctx.Err() == nil) {
			err = lost
		}
	}()
	if _, err = l.take(retryFailed); err != nil {
		return err
	}
	if err = work(bound, l); err == nil {
		l.take(false)
	}
	return err
}

// take is for the caller, who works from now on, or has succeeded; not after Close,
// which has given it back.
func (l *Lease) take(giveBack bool) (*Lease, error) {
	l.leases.mutex.Lock()
	defer l.leases.mutex.Unlock()
	l.giveBack = giveBack
	if l.fate == WasClosed {
		return nil, &Closed{ofResource{l.resource}}
	}
	return l, nil
}
