package leaselock

import (
	"sync"
	"time"
)

// mostLines that nobody has read yet are kept.
const mostLines = 1000

// A journal writes the log in a goroutine of its own: a log that nobody reads must
// not keep a lease from being renewed. The goroutine ends when nothing is left.
type journal struct {
	logf  func(format string, args ...interface{})
	mutex sync.Mutex
	lines []func()
	busy  bool
}

func (j *journal) log(format string, args ...interface{}) {
	j.add(func() { j.logf(format, args...) })
}

func (j *journal) add(line func()) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	if len(j.lines) < mostLines {
		j.lines = append(j.lines, line)
	}
	if !j.busy {
		j.busy = true
		go j.write()
	}
}

func (j *journal) next() func() {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	if len(j.lines) == 0 {
		j.busy = false
		return nil
	}
	line := j.lines[0]
	j.lines = j.lines[1:]
	return line
}

func (j *journal) write() {
	for line := j.next(); line != nil; line = j.next() {
		line()
	}
}

// flush waits until the lines are written, for at most a second.
func (j *journal) flush() {
	done := make(chan struct{})
	j.add(func() { close(done) })
	select {
	case <-done:
	case <-time.After(time.Second):
	}
}
