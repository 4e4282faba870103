package leaselock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

// What only Go has: contexts, panics, goroutines, pgx. The promises are tested by
// clients/conformance.

const long = time.Minute

var errOfWork = errors.New("the work failed")

func TestMain(m *testing.M) {
	conn, err := pgx.Connect(context.Background(), "")
	if err == nil {
		_, err = conn.Exec(context.Background(), "CREATE EXTENSION IF NOT EXISTS lease_lock")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func open(t *testing.T, options Options) (*Leases, *pgx.Conn) {
	ctx := context.Background()
	options.Logf = t.Logf
	leases, err := New("", options)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		leases.Close(ctx)
		conn.Close(ctx)
	})
	return leases, conn
}

func ask(t *testing.T, conn *pgx.Conn, statement string) (answer bool) {
	t.Helper()
	if err := conn.QueryRow(context.Background(), statement).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

func isHeld(t *testing.T, conn *pgx.Conn, resource string) bool {
	t.Helper()
	return ask(t, conn, "SELECT EXISTS (SELECT FROM lease_status WHERE state = 'held' AND resource = '"+resource+"')")
}

func TestReleaseDoesNotNeedTheContextOfTheCaller(t *testing.T) {
	leases, conn := open(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	err := leases.Hold(ctx, "sigterm", long, func(inner context.Context, lease *Lease) error {
		cancel()
		<-inner.Done()
		return inner.Err()
	})
	if !errors.Is(err, context.Canceled) || isHeld(t, conn, "sigterm") {
		t.Error(err, isHeld(t, conn, "sigterm"))
	}
}

func TestLossCancelsTheWorkAndIsAnError(t *testing.T) {
	leases, conn := open(t, Options{})
	for _, ofWork := range []error{nil, context.Canceled, errOfWork} {
		told := make(chan error, 1)
		err := leases.Hold(context.Background(), "lost", 3*time.Second, func(ctx context.Context, lease *Lease) error {
			ask(t, conn, "SELECT lease_break('lost')")
			<-ctx.Done()
			<-lease.Lost()
			return ofWork
		}, OnLost(func(lease *Lease) { told <- lease.Err() }))
		var lost *LeaseLost
		if !errors.As(<-told, &lost) || lost.Reason != Broken || lost.Resource() != "lost" {
			t.Error("OnLost was told", lost)
		}
		if ofWork == errOfWork {
			if err != errOfWork {
				t.Error("the error of the work was hidden by", err)
			}
		} else if !errors.As(err, &lost) {
			t.Error(ofWork, "became", err)
		}
	}
}

func TestAReleaseWithoutAnAnswerBeforeTheEndIsALoss(t *testing.T) {
	leases, err := New("host=127.0.0.1 port=1", Options{Logf: func(string, ...interface{}) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer leases.Close(context.Background())
	for n := 0; n < 20; n++ {
		r, _ := leases.newRequest("over", 100*time.Millisecond, nil)
		var lost *LeaseLost
		if err := newLease(leases, r, 1, now()).End(); !errors.As(err, &lost) || lost.Reason != Expired {
			t.Fatal(err)
		}
	}
}

func TestPanicReleases(t *testing.T) {
	leases, conn := open(t, Options{})
	func() {
		defer func() {
			if recover() != "oops" {
				t.Error("the panic was lost")
			}
		}()
		leases.Hold(context.Background(), "panic", long, func(ctx context.Context, lease *Lease) error {
			return lease.Transaction(ctx, func(context.Context, pgx.Tx) error { panic("oops") })
		})
	}()
	if isHeld(t, conn, "panic") {
		t.Error("still held")
	}
}

func TestTransactionOnConnectionsOfTheProgram(t *testing.T) {
	ctx := context.Background()
	pool, err := pgxpool.Connect(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	leases, conn := open(t, Options{})
	if _, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS entry (id int)"); err != nil {
		t.Fatal(err)
	}
	lease, err := leases.Acquire(ctx, "entry", long)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.End()
	insert := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO entry VALUES ($1)", 1)
		return err
	}
	for n, on := range []Beginner{conn, pool} {
		if err := lease.TransactionOn(ctx, on, insert); err != nil {
			t.Error(err)
		}
		err := lease.TransactionOn(ctx, on, func(ctx context.Context, tx pgx.Tx) error {
			insert(ctx, tx)
			return errOfWork
		})
		if err != errOfWork || !ask(t, conn, fmt.Sprintf("SELECT count(*) = %d FROM entry", n+1)) {
			t.Error(err)
		}
	}
	ask(t, conn, "SELECT lease_break('entry')")
	var lost *LeaseLost
	if err := lease.TransactionOn(ctx, pool, insert); !errors.As(err, &lost) {
		t.Error(err)
	}
}

func TestElectAndOnceReturnTheErrorOfTheirFunction(t *testing.T) {
	leases, conn := open(t, Options{})
	fails := func(context.Context, *Lease) error { return errOfWork }
	if err := leases.Elect(context.Background(), "leader", long, fails); err != errOfWork {
		t.Error(err)
	}
	if ran, err := leases.Once(context.Background(), "job", long, long, fails); !ran || err != errOfWork {
		t.Error(ran, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ask(t, conn, "SELECT lease_acquire('leader', '1 hour', 'other')")
	time.AfterFunc(100*time.Millisecond, cancel)
	if err := leases.Elect(ctx, "leader", long, fails); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestCloseLeavesNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	leases, err := New("", Options{})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 5; n++ {
		if _, err := leases.Acquire(context.Background(), fmt.Sprint("close:", n), long); err != nil {
			t.Fatal(err)
		}
	}
	if left := leases.Close(context.Background()); len(left) > 0 {
		t.Error("left", left)
	}
	for end := time.Now().Add(long); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			buffer := make([]byte, 1<<16)
			t.Fatalf("%s", buffer[:runtime.Stack(buffer, true)])
		}
	}
}

func TestALogThatNobodyReadsHoldsUpNothing(t *testing.T) {
	logged, read := make(chan struct{}, 1000), make(chan struct{})
	_, conn := open(t, Options{})
	leases, err := New("", Options{Logf: func(string, ...interface{}) {
		logged <- struct{}{}
		<-read
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer close(read)
	ctx := context.Background()
	lease, err := leases.Acquire(ctx, "log", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := conn.Begin(ctx)
	if err == nil {
		_, err = tx.Exec(ctx, "SELECT FROM lease_lock WHERE resource = 'log' FOR UPDATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	<-logged // a renewal has failed
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	for !ask(t, conn, "SELECT expires_at > clock_timestamp() + interval '9 s' FROM lease_status WHERE resource = 'log'") {
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if left := leases.Close(ctx); len(left) > 0 {
		t.Error("left", left)
	}
}

func TestCloseNamesARequestWithoutAnAnswer(t *testing.T) {
	leases, conn := open(t, Options{})
	ctx := context.Background()
	tx, err := conn.Begin(ctx)
	if err == nil {
		_, err = tx.Exec(ctx, "LOCK TABLE lease_lock IN ACCESS EXCLUSIVE MODE")
	}
	if err != nil {
		t.Fatal(err)
	}
	go leases.Acquire(ctx, "unanswered", long, IfOwn("count"))
	for waits := false; !waits; {
		waits = ask(t, conn, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'lease_lock'::regclass AND NOT granted)")
	}
	over, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if left := leases.Close(over); len(left) != 1 || left[0] != "unanswered" {
		t.Error("left", left)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Error(err)
	}
	if left := leases.Close(ctx); len(left) > 0 || isHeld(t, conn, "unanswered") {
		t.Error("left", left)
	}
}

func TestOptionsOfTheCallerAreNotWrittenTo(t *testing.T) {
	leases, _ := open(t, Options{})
	ctx, room := context.Background(), make([]Option, 4)
	leases.TryHold(ctx, "x", 0, nil, room[:0]...)
	leases.Once(ctx, "x", long, 0, nil, room[:0]...)
	leases.Elect(ctx, "x", 0, nil, room[:0]...)
	for _, option := range room {
		if option != nil {
			t.Error("a call wrote into them")
		}
	}
}

func TestAHoldOfACountedLeaseEndsAfterTheOthers(t *testing.T) {
	leases, conn := open(t, Options{})
	ctx := context.Background()
	outer, err := leases.Acquire(ctx, "counted", long, IfOwn("count"))
	if err != nil {
		t.Fatal(err)
	}
	inner, err := leases.Acquire(ctx, "counted", time.Second, IfOwn("count"), NoRenewal(), StopBefore(900*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	<-inner.Lost()
	if released, err := outer.Release(ctx); !released {
		t.Error(err)
	}
	for ending := 1; ending > 0; time.Sleep(time.Millisecond) {
		_, ending, _ = leases.Counts()
	}
	if isHeld(t, conn, "counted") {
		t.Error("still held")
	}
}

func TestAllCopiesOfADoubtfulRequestAreLookedFor(t *testing.T) {
	leases, _ := open(t, Options{})
	r, err := leases.newRequest("copies", long, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := newCall(leases, r)
	c.unanswered, c.doubtfulUntil = 3, now().after(lookAfter)
	granted, token, waited := "t", "1", "0"
	lease, _, err := c.answered(context.Background(), answer{rows: [][]*string{{&granted, &token, &waited}}, sent: now()})
	if err != nil {
		t.Fatal(err)
	}
	leases.mutex.Lock()
	defer leases.mutex.Unlock()
	lease.decide(Released)
	leases.keeper.finish(leases.keeper.end(lease), true, nil)
	if left := leases.keeper.endings; len(left) != 1 || left[0].copies != 3 {
		t.Error(left)
	}
}

func TestEachCallLooksForAnExtensionThatMoved(t *testing.T) {
	leases, _ := open(t, Options{})
	r, err := leases.newRequest("moved", long, nil)
	if err != nil {
		t.Fatal(err)
	}
	moved := answer{err: &pgconn.PgError{Code: "42883"}}
	leases.schema = "before"
	for n := 0; n < 2; n++ {
		c := newCall(leases, r)
		if c.failed(context.Background(), moved) || leases.schema != "" {
			t.Error("it does not look")
		}
		if !c.failed(context.Background(), moved) {
			t.Error("it looks again and again")
		}
	}
}

func TestLeasesOfAnExtensionThatMovedAreRenewedTogether(t *testing.T) {
	leases, _ := open(t, Options{})
	var group []*Lease
	for n := 0; n < 2; n++ {
		r, err := leases.newRequest(fmt.Sprint("together:", n), long, nil)
		if err != nil {
			t.Fatal(err)
		}
		group = append(group, newLease(leases, r, 1, now()))
	}
	leases.keeper.renewalFailed(group, answer{err: &pgconn.PgError{Code: "42883"}})
	if group[0].alone || group[1].alone || len(leases.keeper.groups) > 0 {
		t.Error("each in a statement of its own")
	}
}

func TestAPoolDoesNotKeepAConnectionToAReadOnlyServer(t *testing.T) {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig("pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	leases, conn := open(t, Options{Pool: pool})
	lease, err := leases.Acquire(ctx, "moves", long)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.End()
	nothing := func(context.Context, pgx.Tx) error { return nil }
	const becomeReadOnly = "SET default_transaction_read_only = on"
	if _, err := pool.Exec(ctx, becomeReadOnly); err != nil {
		t.Fatal(err)
	}
	if err := lease.Transaction(ctx, nothing); err != nil {
		t.Error(err)
	}
	if _, err := conn.Exec(ctx, becomeReadOnly); err != nil {
		t.Fatal(err)
	}
	if err := lease.TransactionOn(ctx, conn, nothing); stateOf(err) != readOnly || conn.IsClosed() {
		t.Error("a connection of the program was closed", err)
	}
}

func TestMistakesAreErrorsAtOnce(t *testing.T) {
	leases, _ := open(t, Options{})
	for _, option := range []Option{StopBefore(long), StopBefore(-1), Payload(func() {}), Owner("zero\x00byte"), Wait(-1)} {
		if _, err := leases.Acquire(context.Background(), "x", long, WaitForever(), option); err == nil {
			t.Error("no error")
		}
	}
	// It would end the statement, and with it that of releases that are sent together with it.
	var mistake *UsageError
	if _, err := leases.Acquire(context.Background(), "zero\x00byte", long); !errors.As(err, &mistake) {
		t.Errorf("%v", err)
	}
	if _, err := leases.Acquire(context.Background(), "x", 0); err == nil {
		t.Error("no error")
	}
	if _, err := New("port=none", Options{}); err == nil {
		t.Error("no error")
	}
}

func TestTextsOfTheProgramAreQuoted(t *testing.T) {
	leases, conn := open(t, Options{})
	for _, resource := range []string{`it's \' "{owner}"`, "{schema}", "\\"} {
		lease, err := leases.Acquire(context.Background(), resource, long, Payload(resource))
		if err != nil {
			t.Fatal(err)
		}
		var found string
		if err := conn.QueryRow(context.Background(), "SELECT payload #>> '{}' FROM lease_status WHERE resource = $1", resource).Scan(&found); err != nil || found != resource {
			t.Error(resource, found, err)
		}
		if err := lease.End(); err != nil {
			t.Error(err)
		}
	}
}

func TestTheClockIsTheOneThatGoesOnInSuspend(t *testing.T) {
	before := now()
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Skip(err)
	}
	var uptime float64
	fmt.Sscan(strings.Fields(string(text))[0], &uptime)
	if at := moment(uptime * 1e9); at < before-moment(tick) || at > now()+moment(tick) {
		t.Error(before, at, now())
	}
}

func TestTheErrorsAreSortedByTheSharedTable(t *testing.T) {
	text, err := os.ReadFile("../conformance/errors.tsv")
	if err != nil {
		t.Skip(err)
	}
	if string(text) != errorsTable {
		t.Error("errors.tsv differs from ../conformance/errors.tsv")
	}
}

func TestEachHostHasItsShare(t *testing.T) {
	config, err := pgx.ParseConfig("host=a,b port=1,2 sslmode=prefer user=u")
	if err != nil {
		t.Fatal(err)
	}
	hosts := hostsOf(config)
	for n, name := range []string{"a", "b"} {
		host := hosts[n]
		if host.Host != name || int(host.Port) != n+1 || host.TLSConfig == nil || host.ValidateConnect == nil ||
			len(host.Fallbacks) != 1 || host.Fallbacks[0].Host != name || host.Fallbacks[0].TLSConfig != nil {
			t.Error(host.Host, host.Port, host.Fallbacks)
		}
	}
	if len(hosts) != 2 {
		t.Error(len(hosts))
	}
}

// ofTwoAddresses returns parameters of a host with the addresses 192.0.2.1 and 192.0.2.2.
// One is broken; the other one leads to the server.
func ofTwoAddresses(t *testing.T, text, broken string, dialBroken func(context.Context) error) *pgx.ConnConfig {
	known, err := pgx.ParseConfig("")
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig("host=two sslmode=disable " + text)
	if err != nil {
		t.Fatal(err)
	}
	config.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"192.0.2.1", "192.0.2.2"}, nil }
	config.DialFunc = func(ctx context.Context, _, address string) (net.Conn, error) {
		if strings.HasPrefix(address, broken+":") {
			return nil, dialBroken(ctx)
		}
		network, place := pgconn.NetworkAddress(known.Host, known.Port)
		return known.DialFunc(ctx, network, place)
	}
	return config
}

func connectBy(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	s := &source{config: func(context.Context) (*pgx.ConnConfig, error) { return config, nil }}
	return s.connect(ctx, nil)
}

func TestEachAddressHasItsShare(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	config := ofTwoAddresses(t, "", "192.0.2.1", func(ctx context.Context) error {
		if deadline, _ := ctx.Deadline(); time.Until(deadline) > long/2 {
			t.Error("the first address may use up all of the time")
		}
		return errOfWork
	})
	conn, err := connectBy(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close(ctx)
}

func TestWhatAServerSaidIsNotHiddenByAnotherAddress(t *testing.T) {
	config := ofTwoAddresses(t, "database=none", "192.0.2.2", func(context.Context) error { return errOfWork })
	if _, err := connectBy(context.Background(), config); stateOf(err) != "3D000" {
		t.Error(err)
	}
}

func TestAServerThatMayTakeTheClientLaterIsNotHiddenByOneThatRefuses(t *testing.T) {
	refuses, starts := &pgconn.PgError{Code: "28000"}, &pgconn.PgError{Code: "57P03"}
	for _, said := range [][]error{{refuses, starts}, {starts, refuses}} {
		n := -1
		_, err := inTurn(context.Background(), make([]*pgx.ConnConfig, 2), func(context.Context, *pgx.ConnConfig) (*pgx.Conn, error) {
			n++
			return nil, said[n]
		})
		if err != starts {
			t.Error(said, err)
		}
	}
}

func TestAHookMakesTransactionsWritableAtOneOfTwoAddresses(t *testing.T) {
	ctx := context.Background()
	config := ofTwoAddresses(t, "", "192.0.2.1", func(context.Context) error { return errOfWork })
	config.RuntimeParams["default_transaction_read_only"] = "on"
	s := &source{config: func(context.Context) (*pgx.ConnConfig, error) { return config, nil }}
	s.after = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SET default_transaction_read_only = off")
		return err
	}
	conn, err := s.connect(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close(ctx)
}

func TestEachAddressKeepsWhatItsHostHas(t *testing.T) {
	config, err := pgx.ParseConfig("host=name sslmode=verify-full user=u")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	config.LookupFunc = func(context.Context, string) ([]string, error) { return found, nil }
	for _, found = range [][]string{{"192.0.2.1"}, {"192.0.2.1", "192.0.2.2"}} {
		addresses, _ := addressesOf(context.Background(), config)
		if len(addresses) != len(found) {
			t.Error(len(addresses))
		}
		for n, one := range addresses {
			only, _ := one.LookupFunc(context.Background(), one.Host)
			if len(only) != 1 || only[0] != found[n] || one.TLSConfig.ServerName != "name" || (one.ValidateConnect != nil) != (len(found) > 1) {
				t.Error(only, one.TLSConfig.ServerName, one.ValidateConnect != nil)
			}
		}
	}
	found = nil
	if conn, err := connectBy(context.Background(), config); conn != nil || err == nil {
		t.Error("a host without an address")
	}
}

func TestAConnectionThatCouldNotBeSetUpIsNotKept(t *testing.T) {
	leases, _ := open(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	var made *pgx.Conn
	leases.source.after = func(_ context.Context, conn *pgx.Conn) error {
		made = conn
		cancel()
		return errOfWork
	}
	if conn, err := leases.source.connect(ctx, nil); conn != nil || err != errOfWork || !made.IsClosed() {
		t.Error("it is kept", err)
	}
}
