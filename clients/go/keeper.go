package leaselock

import (
	"context"
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/jackc/pgx/v4"
)

const (
	// lookAfter is how long an owner whose request was abandoned is looked after.
	lookAfter = 1500 * time.Millisecond
	// lockTimeout is how long an end waits for a lock before it is tried again.
	lockTimeout = 100 * time.Millisecond
)

// An ending is a lease, or what a request may have been granted, that is to be released.
type ending struct {
	claim
	request    *request
	ends       moment // of the lease, as far as it was told
	over       moment // of a request: then it is over by itself
	due        moment
	pause      time.Duration
	lease      *Lease // nil: of a request
	held       bool   // as far as is known here
	unanswered bool
	alone      bool   // in a statement of its own
	giveBack   bool   // before its min_hold
	sureAt     moment // an answer counts from then on
	copies     int    // of the request: more releases than that do not come
	warned     bool
	released   bool
	err        error
	done       chan struct{} // closed when it is over
}

// until is when it is over by itself. A renewal that is under way may still move that.
func (e *ending) until() moment {
	if e.lease == nil {
		return e.over
	}
	return *e.lease.overAt
}

func (e *ending) later() {
	e.due = now().after(e.pause)
	e.pause = shorter(2*e.pause, time.Second)
}

// A keeper keeps the leases of a Leases alive, and ends them, in a goroutine and
// on a connection of its own. Renewals go first, with one statement for all leases
// that are nearly due. An end that meets a lock is tried again until its lease is
// over, and not waited for. The mutex of the Leases protects what is here.
type keeper struct {
	leases  *Leases
	link    *link
	held    map[*Lease]bool
	endings []*ending
	groups  [][]*Lease // renewals that are due at once
	wake    chan struct{}
	stop    bool // when nothing is left to end
	running bool
	adopted bool          // it has looked for an idle connection
	stopped chan struct{} // closed when it has ended
}

func newKeeper(l *Leases) *keeper {
	return &keeper{leases: l, link: &link{leases: l}, held: map[*Lease]bool{}, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
}

// rouse is called with the mutex.
func (k *keeper) rouse() {
	if !k.running {
		k.running = true
		go k.run()
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *keeper) run() {
	defer close(k.stopped)
	defer func() { k.link.close() }()
	for {
		work, next := k.next()
		switch {
		case work != nil:
			work()
		case next == 0:
			return
		default:
			select {
			case <-earlier(next, now().after(tick)).over():
			case <-k.wake:
			}
		}
	}
}

// next returns what is due, or the time of what is due next; 0 if it is to stop.
func (k *keeper) next() (func(), moment) {
	k.leases.mutex.Lock()
	defer k.leases.mutex.Unlock()
	k.dropOver()
	if group := k.dueRenewals(); len(group) > 0 {
		return func() { k.renew(group) }, 0
	}
	if due := k.dueEndings(); len(due) > 0 {
		return func() { k.release(due) }, 0
	}
	if k.stop && len(k.endings) == 0 {
		return nil, 0
	}
	next := never
	for lease := range k.held {
		if lease.renews {
			next = earlier(next, lease.renewAt)
		}
	}
	for _, e := range k.endings {
		next = earlier(next, earlier(e.due, e.until()))
	}
	return nil, next
}

// end takes over the end of a lease. Called with the mutex, for a lease whose fate is decided.
func (k *keeper) end(lease *Lease) *ending {
	delete(k.held, lease)
	return k.add(&ending{claim: lease.claim, request: lease.request, ends: lease.ends, lease: lease, copies: 1,
		held: lease.fate == Released, giveBack: lease.giveBack && lease.request.keeps()})
}

// shareOver: all holds of a counted lease are one lease at the server, which lasts as
// long as any of them. Called with the mutex.
func (k *keeper) shareOver(lease *Lease) {
	if lease.request.ifOwn != "count" {
		return
	}
	share := func(other *Lease) {
		if other.claim == lease.claim && other.request.ifOwn == "count" {
			*other.overAt = latest(*other.overAt, *lease.overAt)
			lease.overAt = other.overAt
		}
	}
	for other := range k.held {
		share(other)
	}
	for _, e := range k.endings {
		if e.lease != nil {
			share(e.lease)
		}
	}
}

// endNow: the holder has stopped. Called with the mutex; nil is all leases.
func (k *keeper) endNow(lease *Lease) {
	for _, e := range k.endings {
		if lease == nil || e.lease == lease {
			e.due = earlier(e.due, now())
			k.rouse()
		}
	}
}

// forget looks after an owner whose request has no answer: it may be granted the
// lease after this client has looked.
// Called with the mutex.
func (k *keeper) forget(r *request, copies int) {
	k.add(&ending{claim: r.claim, request: r, over: now().after(longer(r.ttl, lookAfter)), sureAt: now().after(lookAfter),
		copies: copies, giveBack: r.keeps()})
}

func (k *keeper) add(e *ending) *ending {
	e.due, e.pause, e.done = now(), 50*time.Millisecond, make(chan struct{})
	k.endings = append(k.endings, e)
	k.rouse()
	return e
}

// finish is called with the mutex.
func (k *keeper) finish(e *ending, released bool, err error) {
	for i, other := range k.endings {
		if other == e {
			k.endings = append(k.endings[:i], k.endings[i+1:]...)
			break
		}
	}
	e.released, e.err = released, err
	close(e.done)
	if e.lease != nil && e.lease.doubtfulUntil > now() {
		k.forget(e.request, e.lease.unanswered)
	}
}

// dropOver drops the leases that are over by themselves.
func (k *keeper) dropOver() {
	for _, e := range append([]*ending{}, k.endings...) {
		if e.until() > now() {
			continue
		}
		if e.held && e.lease.fate == Released {
			e.lease.fate = Expired
		}
		k.finish(e, false, nil)
	}
}

// ask runs a statement, bounded by limit. To connect may take half of the time that
// is left: a connection that took long must not be thrown away unused.
func (k *keeper) ask(limit, lockTimeout time.Duration, text string, claims []claim, more map[string]string) answer {
	connecting := patience
	k.leases.mutex.Lock()
	for lease := range k.held {
		if lease.renews {
			connecting = shorter(connecting, lease.deadline.left()/2)
		}
	}
	k.leases.mutex.Unlock()
	if !k.adopted {
		k.adopt()
	}
	return k.link.run(context.Background(), longer(connecting, limit), limit, func(schema string, conn *pgx.Conn) string {
		values := columns(claims)
		for name, value := range more {
			values[name] = value
		}
		values["schema"] = schema
		return settings(conn, limit, lockTimeout) + fill(text, values)
	})
}

// adopt takes an idle connection, if there is one, so that the first renewal does
// not fail for want of another one.
func (k *keeper) adopt() {
	k.adopted = true
	for _, kept := range []*links{k.leases.tries, k.leases.waits} {
		select {
		case k.link = <-kept.idle:
			return
		default:
		}
	}
}

// Renewals

func (k *keeper) dueRenewals() []*Lease {
	if group := k.nextGroup(); group != nil {
		return group
	}
	due, time := false, now()
	for lease := range k.held {
		due = due || lease.renews && lease.renewAt <= time
	}
	if !due {
		return nil
	}
	var together []*Lease
	for lease := range k.held {
		switch {
		case !lease.renews || lease.renewAt > time.after(lease.ttl/12):
		case lease.alone:
			k.groups = append(k.groups, []*Lease{lease})
		default:
			together = append(together, lease)
		}
	}
	if len(together) == 0 {
		return k.nextGroup()
	}
	return together
}

// nextGroup returns nil if there is none.
func (k *keeper) nextGroup() []*Lease {
	for len(k.groups) > 0 {
		var group []*Lease
		for _, lease := range k.groups[0] {
			if lease.fate == "" {
				group = append(group, lease)
			}
		}
		k.groups = k.groups[1:]
		if group != nil {
			return group
		}
	}
	return nil
}

func (k *keeper) renew(group []*Lease) {
	limit := patience
	var claims []claim
	var ttls []string
	k.leases.mutex.Lock()
	for _, lease := range group {
		limit = shorter(limit, lease.limit, lease.deadline.left())
		claims, ttls = append(claims, lease.claim), append(ttls, fmt.Sprint(lease.ttl.Seconds()))
	}
	k.leases.mutex.Unlock()
	limit = longer(limit, time.Millisecond)
	result := k.ask(limit, limit/16, renewText, claims, map[string]string{"ttls": array(ttls)})
	if result.err == nil && result.unsafe {
		result.err = errUnconfirmed
	}
	if result.err != nil {
		k.renewalFailed(group, result)
		return
	}
	k.leases.mutex.Lock()
	defer k.leases.mutex.Unlock()
	for i, row := range result.rows {
		switch lease := group[i]; {
		case *row[1] == "t":
			lease.extend(result.sent)
			lease.alone, lease.contended = false, row[2]
		case *row[3] == "t":
			k.leases.lose(lease, TakenOver)
		default:
			k.leases.lose(lease, Broken)
		}
	}
}

// renewalFailed: one lease can make a renewal of many fail, when somebody has locked
// its row. It is found; the others must not suffer.
func (k *keeper) renewalFailed(group []*Lease, result answer) {
	err := result.err
	k.leases.log("could not renew lease on %q and %d others: %v", group[0].resource, len(group)-1, err)
	k.leases.mutex.Lock()
	defer k.leases.mutex.Unlock()
	if result.sent != 0 {
		for _, lease := range group {
			*lease.overAt = latest(*lease.overAt, now().after(lease.ttl))
		}
	}
	if isMoved(err) {
		k.leases.schema = ""
	}
	if !isOfServer(err) && len(group) > 1 {
		size := int(math.Sqrt(float64(len(group))))
		for ; len(group) > size; group = group[size:] {
			k.groups = append(k.groups, group[:size])
		}
		k.groups = append(k.groups, group)
		return
	}
	for _, lease := range group {
		lease.alone = !isOfServer(err)
		lease.renewAt = now().after(shorter(lease.ttl/30, time.Second))
	}
}

// Releases

func (k *keeper) dueEndings() []*ending {
	var due, together []*ending
	for _, e := range k.endings {
		if e.due <= now() {
			due = append(due, e)
		}
	}
	sort.Slice(due, func(i, j int) bool { return due[i].due < due[j].due })
	for _, e := range due {
		switch {
		case !e.alone && !e.giveBack && len(together) < 500:
			together = append(together, e)
		case e == due[0]:
			return []*ending{e}
		}
	}
	return together
}

// release: nothing may hold up a renewal for longer than a part of the shortest lease.
func (k *keeper) release(endings []*ending) {
	limit, text, more := patience, releaseText, map[string]string(nil)
	k.leases.mutex.Lock()
	for lease := range k.held {
		if lease.renews {
			limit = shorter(limit, lease.limit)
		}
	}
	k.leases.mutex.Unlock()
	if endings[0].giveBack {
		r := endings[0].request
		text = giveBackText
		more = map[string]string{"ttl": interval(r.ttl), "mode": r.values["mode"], "permits": r.values["permits"]}
	}
	var claims []claim
	for _, e := range endings {
		claims = append(claims, e.claim)
	}
	result := k.ask(limit, shorter(limit/4, lockTimeout), text, claims, more)
	if result.err != nil {
		k.releaseFailed(endings, result)
		return
	}
	k.leases.mutex.Lock()
	defer k.leases.mutex.Unlock()
	for i, e := range endings {
		k.answered(e, result.rows[i][1], result.sent)
	}
}

// answered: nil means that it cannot be said now, since an open transaction is in
// the way, say.
func (k *keeper) answered(e *ending, value *string, sent moment) {
	released := value != nil && *value == "t"
	if released {
		e.copies--
	}
	if value == nil || e.copies > 0 && sent < e.sureAt {
		e.later()
		return
	}
	// It may have been released by a statement whose answer was lost.
	released = released || e.held && e.unanswered
	if !released && e.held && e.lease.fate == Released {
		e.lease.fate = Broken
		e.lease.tell()
	}
	k.finish(e, released, nil)
}

func (k *keeper) releaseFailed(endings []*ending, result answer) {
	what := sortError(result.err, result.sent != 0)
	mayBeDone := what == unknown && result.sent != 0
	if isMoved(result.err) {
		k.leases.forgetSchema()
	}
	for _, e := range endings {
		if !e.warned {
			k.leases.log("could not release lease on %q: %v", e.resource, result.err)
			e.warned = true
		}
	}
	k.leases.mutex.Lock()
	defer k.leases.mutex.Unlock()
	for _, e := range endings {
		e.unanswered = e.unanswered || mayBeDone
		e.alone = !isOfServer(result.err)
		switch {
		case what == notAgain && len(endings) == 1:
			k.finish(e, false, result.err)
		case mayBeDone && e.lease != nil && !e.lease.ownOwner:
			// Once more, it would end a hold of somebody else.
			k.finish(e, false, &OutcomeUnknown{ofResource{e.resource}, fmt.Sprintf("the release of %q", e.resource), result.err})
		default:
			e.later()
		}
	}
}
