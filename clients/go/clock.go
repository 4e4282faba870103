package leaselock

import "time"

// patience is how long the server is waited for where neither a wait nor the end
// of a lease sets a limit.
const patience = 5 * time.Second

// tick is the longest sleep: the timers of Go do not count the time of a suspend.
const tick = time.Second

// A moment is a time of a clock that nobody can set, and that goes on in suspend
// where the system has such a clock.
type moment time.Duration

const (
	never   = moment(1<<63 - 1)
	forever = time.Duration(never)
)

func (m moment) after(d time.Duration) moment {
	if m == never || d == forever {
		return never
	}
	return m + moment(d)
}

// left is never less than zero.
func (m moment) left() time.Duration {
	if m == never {
		return forever
	}
	return longer(time.Duration(m-now()), 0)
}

// timer is a channel that gets a value then, and what stops it. Before Go 1.23 nothing else frees a timer.
func (m moment) timer() (over <-chan time.Time, stop func() bool) {
	if m == never {
		return nil, func() bool { return true }
	}
	timer := time.NewTimer(m.left())
	return timer.C, timer.Stop
}

// over is a channel that gets a value then. It should be soon: nothing stops the timer.
func (m moment) over() <-chan time.Time {
	if m == never {
		return nil
	}
	return time.After(m.left())
}

func earlier(a, b moment) moment {
	return moment(shorter(time.Duration(a), time.Duration(b)))
}

func latest(a, b moment) moment {
	return moment(longer(time.Duration(a), time.Duration(b)))
}

func shorter(a time.Duration, others ...time.Duration) time.Duration {
	for _, b := range others {
		if b < a {
			a = b
		}
	}
	return a
}

func longer(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}
