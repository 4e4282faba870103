// The program that clients/conformance drives. See its README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"

	"leaselock"
)

var errFailed = errors.New("it failed")

type unsupported string

func (u unsupported) Error() string { return string(u) }

type object map[string]interface{}

type command struct {
	ID         json.RawMessage `json:"id"`
	Do         string          `json:"do"`
	Client     string          `json:"client"`
	Lease      string          `json:"lease"`
	Resource   string          `json:"resource"`
	Source     source          `json:"source"`
	Options    object          `json:"options"`
	Statements []string        `json:"statements"`
	Pause      bool            `json:"pause"`
	Period     float64         `json:"period"`
	Fail       bool            `json:"fail"`
	Lasts      bool            `json:"lasts"`
	Closed     bool            `json:"closed"`
	Of         json.RawMessage `json:"of"`
	Timeout    float64         `json:"timeout"`
	Number     int             `json:"number"`
}

type source struct {
	Kind     string   `json:"kind"`
	Conninfo string   `json:"conninfo"`
	Service  string   `json:"service"`
	Size     int32    `json:"size"`
	Setup    []string `json:"setup"`
	Connect  *bool    `json:"connect"`
}

type program struct {
	mutex   sync.Mutex
	clients map[string]*leaselock.Leases
	leases  map[string]*leaselock.Lease
	cancels map[string]context.CancelFunc
	gates   map[string]chan struct{}
	pools   map[string]*pgxpool.Pool
}

func (p *program) write(line object) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func clock() float64 {
	var spec syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 7, uintptr(unsafe.Pointer(&spec)), 0)
	return float64(spec.Nano()) / 1e9
}

func describe(ctx context.Context, err error) object {
	var taken *leaselock.LeaseTaken
	var lost *leaselock.LeaseLost
	var unsure *leaselock.OutcomeUnknown
	var closed *leaselock.Closed
	var cannot unsupported
	var failure *pgconn.PgError
	var known leaselock.LeaseError
	result := object{"text": err.Error()}
	if errors.As(err, &known) {
		result["resource"] = known.Resource()
	}
	switch {
	case errors.As(err, &closed):
		result["name"] = "Closed"
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		result["name"] = "Interrupted"
	case errors.As(err, &taken):
		result["name"], result["reason"], result["blocked_by"], result["blocked_for"] = "LeaseTaken", taken.Reason, nil, nil
		if taken.BlockedBy != "" {
			result["blocked_by"] = taken.BlockedBy
		}
		if taken.BlockedFor != nil {
			result["blocked_for"] = taken.BlockedFor.Seconds()
		}
	case errors.As(err, &lost):
		result["name"], result["reason"] = "LeaseLost", lost.Reason
	case errors.As(err, &unsure):
		result["name"] = "OutcomeUnknown"
	case errors.As(err, &cannot):
		result["name"] = "Unsupported"
	case errors.Is(err, errFailed):
		result["name"] = "Failed"
	default:
		result["name"], result["sqlstate"] = "Driver", nil
		if errors.As(err, &failure) {
			result["sqlstate"] = failure.Code
		}
	}
	return result
}

func seconds(value interface{}) time.Duration {
	return time.Duration(value.(float64) * float64(time.Second))
}

func (p *program) options(c *command) (time.Duration, []leaselock.Option) {
	ttl := 30 * time.Second
	var options []leaselock.Option
	for name, value := range c.Options {
		switch name {
		case "ttl":
			ttl = seconds(value)
		case "wait":
			if value == nil {
				options = append(options, leaselock.WaitForever())
			} else {
				options = append(options, leaselock.Wait(seconds(value)))
			}
		case "stop_before":
			options = append(options, leaselock.StopBefore(seconds(value)))
		case "renew":
			if value == false {
				options = append(options, leaselock.NoRenewal())
			}
		case "min_hold":
			options = append(options, leaselock.MinHold(seconds(value)))
		case "retry_failed":
			if value == true {
				options = append(options, leaselock.RetryFailed())
			}
		case "mode":
			options = append(options, leaselock.Mode(value.(string)))
		case "permits":
			options = append(options, leaselock.Permits(int(value.(float64))))
		case "payload":
			options = append(options, leaselock.Payload(value))
		case "if_own":
			options = append(options, leaselock.IfOwn(value.(string)))
		case "owner":
			options = append(options, leaselock.Owner(value.(string)))
		}
	}
	if name := c.Lease; name != "" {
		options = append(options, leaselock.OnLost(func(lease *leaselock.Lease) {
			var lost *leaselock.LeaseLost
			at := clock()
			if errors.As(lease.Err(), &lost) {
				p.write(object{"event": "lost", "lease": name, "reason": lost.Reason, "at": at})
			}
		}))
	}
	return ttl, options
}

func (p *program) client(c *command) *leaselock.Leases {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.clients[c.Client]
}

func (p *program) lease(c *command, take bool) *leaselock.Lease {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	lease := p.leases[c.Lease]
	if take {
		delete(p.leases, c.Lease)
	}
	if lease == nil {
		panic("no lease " + c.Lease)
	}
	return lease
}

func (p *program) gate(id json.RawMessage) chan struct{} {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.gates[string(id)] == nil {
		p.gates[string(id)] = make(chan struct{}, 1)
	}
	return p.gates[string(id)]
}

func (p *program) open(c *command) error {
	options := leaselock.Options{Logf: func(format string, args ...interface{}) { fmt.Fprintf(os.Stderr, format+"\n", args...) }}
	options.Schema, _ = c.Options["schema"].(string)
	text := c.Source.Conninfo
	switch c.Source.Kind {
	case "conninfo", "environment":
	case "service":
		text = "service=" + c.Source.Service
	case "callable":
		options.Connect = c.Source.config
	case "pool", "pool with hook":
		text = ""
		pool, err := c.Source.pool()
		if err != nil {
			return err
		}
		options.Pool, p.pools[c.Client] = pool, pool
		if c.Source.Kind == "pool with hook" && (c.Source.Connect == nil || *c.Source.Connect) {
			options.Connect = c.Source.config
		}
	default:
		return unsupported(c.Source.Kind)
	}
	leases, err := leaselock.New(text, options)
	p.clients[c.Client] = leases
	return err
}

func (s *source) config(context.Context) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(s.Conninfo)
	if err == nil {
		config.AfterConnect = s.prepare
	}
	return config, err
}

func (s *source) prepare(ctx context.Context, conn *pgconn.PgConn) error {
	for _, statement := range s.Setup {
		if _, err := conn.Exec(ctx, statement).ReadAll(); err != nil {
			return err
		}
	}
	return nil
}

func (s *source) pool() (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.Conninfo)
	if err != nil {
		return nil, err
	}
	config.LazyConnect, config.MaxConns = true, s.Size
	if s.Kind == "pool with hook" {
		config.BeforeAcquire = func(ctx context.Context, conn *pgx.Conn) bool { return s.prepare(ctx, conn.PgConn()) == nil }
	}
	return pgxpool.ConnectConfig(context.Background(), config)
}

func (p *program) occupy(ctx context.Context, c *command) error {
	for ; c.Number > 0; c.Number-- {
		if _, err := p.pools[c.Client].Acquire(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *program) hold(ctx context.Context, c *command) (interface{}, error) {
	ttl, options := p.options(c)
	lease, err := p.client(c).Acquire(ctx, c.Resource, ttl, options...)
	if err != nil {
		var taken *leaselock.LeaseTaken
		if c.Do == "try" && errors.As(err, &taken) {
			return nil, nil
		}
		return nil, err
	}
	p.mutex.Lock()
	p.leases[c.Lease] = lease
	p.mutex.Unlock()
	return object{"token": lease.Token(), "owner": lease.Owner(), "remaining": lease.Remaining().Seconds()}, nil
}

func (p *program) transaction(ctx context.Context, c *command) (result interface{}, err error) {
	err = p.lease(c, false).Transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for _, statement := range c.Statements {
			rows, err := tx.Query(ctx, statement)
			if err != nil {
				return err
			}
			all := [][]interface{}{}
			for rows.Next() {
				values, err := rows.Values()
				if err != nil {
					return err
				}
				all = append(all, values)
			}
			if rows.Err() != nil {
				return rows.Err()
			}
			result = nil
			if len(rows.FieldDescriptions()) > 0 {
				result = all
			}
		}
		if c.Pause {
			p.write(object{"event": "paused", "id": c.ID})
			select {
			case <-p.gate(c.ID):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return result, err
}

func (p *program) elect(ctx context.Context, c *command) error {
	c.Lease = ""
	ttl, options := p.options(c)
	return p.client(c).Elect(p.contextOfJob(ctx, c), c.Resource, ttl, func(ctx context.Context, lease *leaselock.Lease) error {
		p.write(object{"event": "elected", "id": c.ID, "token": lease.Token()})
		select {
		case <-p.gate(c.ID):
			return nil
		case <-ctx.Done():
			if c.Fail {
				return errFailed
			}
			return ctx.Err()
		}
	}, options...)
}

// closesAtGrant is asked for Done when a call begins, and when it has its lease: before
// its caller has that.
type closesAtGrant struct {
	context.Context
	client *leaselock.Leases
}

func (ctx closesAtGrant) Done() <-chan struct{} {
	if held, _, _ := ctx.client.Counts(); held > 0 {
		ctx.client.Close(context.Background())
	}
	return ctx.Context.Done()
}

func (p *program) contextOfJob(ctx context.Context, c *command) context.Context {
	if c.Closed {
		return closesAtGrant{ctx, p.client(c)}
	}
	return ctx
}

func (p *program) once(ctx context.Context, c *command) (bool, error) {
	c.Lease = ""
	ttl, options := p.options(c)
	return p.client(c).Once(p.contextOfJob(ctx, c), c.Resource, seconds(c.Period), ttl, func(_ context.Context, lease *leaselock.Lease) error {
		if c.Lasts {
			p.write(object{"event": "began", "id": c.ID})
			<-lease.Lost()
		}
		if c.Fail {
			return errFailed
		}
		return nil
	}, options...)
}

func (p *program) perform(ctx context.Context, c *command) (interface{}, error) {
	switch c.Do {
	case "hello":
		return object{"language": "go", "kinds": []string{"conninfo", "service", "environment", "callable", "pool", "pool with hook"}, "clock": clock()}, nil
	case "open":
		return nil, p.open(c)
	case "occupy":
		return nil, p.occupy(ctx, c)
	case "shut":
		p.pools[c.Client].Close()
		return nil, nil
	case "hold", "try":
		return p.hold(ctx, c)
	case "release":
		return p.lease(c, true).Release(ctx)
	case "end":
		return nil, p.lease(c, true).End()
	case "check":
		return nil, p.lease(c, false).Err()
	case "state":
		lease := p.lease(c, false)
		var contended interface{}
		if value, known := lease.Contended(); known {
			contended = value
		}
		return object{"lost": lease.Err() != nil, "remaining": lease.Remaining().Seconds(), "contended": contended}, nil
	case "transaction":
		return p.transaction(ctx, c)
	case "elect":
		return nil, p.elect(ctx, c)
	case "once":
		return p.once(ctx, c)
	case "keeper":
		leases, ending, waits := p.client(c).Counts()
		return object{"leases": leases, "ending": ending, "waits": waits}, nil
	case "close":
		bounded, cancel := context.WithTimeout(ctx, time.Hour)
		if c.Timeout > 0 {
			bounded, cancel = context.WithTimeout(ctx, seconds(c.Timeout))
		}
		defer cancel()
		left := p.client(c).Close(bounded)
		return left, ctx.Err()
	}
	return nil, unsupported(c.Do)
}

func (p *program) answer(ctx context.Context, c *command) {
	result, err := p.perform(ctx, c)
	p.mutex.Lock()
	delete(p.cancels, string(c.ID))
	p.mutex.Unlock()
	if err != nil {
		p.write(object{"id": c.ID, "error": describe(ctx, err)})
	} else {
		p.write(object{"id": c.ID, "ok": result})
	}
}

func (p *program) closeAll() {
	for _, leases := range p.clients {
		leases.Close(context.Background())
	}
	os.Exit(0)
}

func main() {
	p := &program{clients: map[string]*leaselock.Leases{}, leases: map[string]*leaselock.Lease{},
		cancels: map[string]context.CancelFunc{}, gates: map[string]chan struct{}{}, pools: map[string]*pgxpool.Pool{}}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		p.closeAll()
	}()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		c := &command{}
		if err := json.Unmarshal(lines.Bytes(), c); err != nil {
			panic(err)
		}
		switch c.Do {
		case "go":
			select {
			case p.gate(c.Of) <- struct{}{}:
			default:
			}
			p.write(object{"id": c.ID, "ok": nil})
		case "interrupt":
			p.mutex.Lock()
			cancel := p.cancels[string(c.Of)]
			p.mutex.Unlock()
			if cancel != nil {
				cancel()
			}
			p.write(object{"id": c.ID, "ok": nil})
		default:
			ctx, cancel := context.WithCancel(context.Background())
			p.mutex.Lock()
			p.cancels[string(c.ID)] = cancel
			p.mutex.Unlock()
			if c.Do == "open" {
				p.answer(ctx, c) // later commands need it
			} else {
				go p.answer(ctx, c)
			}
		}
	}
	p.closeAll()
}
