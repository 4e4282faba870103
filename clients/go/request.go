package leaselock

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v4"
)

// Each statement goes to the server in one message. So it can begin with settings
// that end with it, and it works behind a pooler that gives each transaction
// another connection. The settings make it independent of those of the role:
// names, timeouts, and whether a warning is sent. Times come back as whole
// milliseconds.

// A wait in the portable edition, and one for a transaction, does not notice
// otherwise that its client has gone.
const checkClientText = `SELECT set_config('client_connection_check_interval', '1s', true) WHERE strpos(version(), 'linux') > 0;
`

const requestText = `SELECT granted, token, floor(extract(epoch FROM waited) * 1000)::int8, reason, blocked_by,
	floor(extract(epoch FROM blocked_for) * 1000)::int8
FROM {schema}.lease_request({resource}::text, {ttl}, {owner}::text, wait => {wait}, mode => {mode}::text,
	permits => {permits}::int4, if_own => {if_own}::text, min_hold => {min_hold}, payload => {payload}::jsonb)`

// The last column: does another owner hold it now?
const renewText = `SELECT r.n, r.held, {schema}.lease_contended(r.resource), CASE WHEN r.held THEN false ELSE EXISTS (
	SELECT FROM {schema}.lease_status AS s
	WHERE s.resource = r.resource AND s.state = 'held' AND s.token > r.token) END
FROM (
	SELECT l.*, {schema}.lease_renew(l.resource, make_interval(secs => l.ttl), l.owner, l.token) AS held
	FROM unnest({resources}::text[], {owners}::text[], {tokens}::int8[], {ttls}::float8[])
		WITH ORDINALITY AS l(resource, owner, token, ttl, n)
	OFFSET 0) AS r
ORDER BY r.n`

// Without a token: a request whose answer was lost.
const releaseText = `SELECT l.n, CASE WHEN l.token IS NULL THEN {schema}.lease_release(l.resource, l.owner)
	ELSE {schema}.lease_release(l.resource, l.owner, l.token) END
FROM unnest({resources}::text[], {owners}::text[], {tokens}::int8[]) WITH ORDINALITY AS l(resource, owner, token, n)
ORDER BY l.n`

// The lease is not kept for its min_hold. NULL: that cannot be said now, since an
// open transaction is in the way, say. If the lease ends meanwhile, the request is
// granted anew, and that is released.
const giveBackText = `SELECT 1, CASE WHEN l.held = coalesce(l.token, l.held) THEN (
	SELECT CASE WHEN g.granted AND (g.reason IS NULL OR g.token = l.held)
		THEN {schema}.lease_release(l.resource, l.owner, g.token) AND g.token = l.held
		WHEN g.reason NOT IN ('open', 'failover') THEN false END
	FROM {schema}.lease_request(l.resource, {ttl}, l.owner, mode => {mode}::text, permits => {permits}::int4,
		if_own => 'renew', min_hold => '0') AS g) ELSE false END
FROM (SELECT l.*, {schema}.lease_token(l.resource, l.owner) AS held
	FROM unnest({resources}::text[], {owners}::text[], {tokens}::int8[]) AS l(resource, owner, token) OFFSET 0) AS l`

// In a transaction of the user's, whose settings stay as they are, but for one that
// would hide the warning of a COMMIT whose wait for a synchronous standby is
// cancelled.
const assertText = `SELECT {schema}.lease_assert({resource}, {owner}), pg_catalog.set_config('lease_lock.owner', {owner}, true),
	CASE WHEN pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.=) 'error'
		THEN pg_catalog.set_config('client_min_messages', 'warning', true) END`

// settings end with the transaction. The times are limits, forever for none.
func settings(conn *pgx.Conn, timeout, lockTimeout time.Duration) string {
	text := "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL client_min_messages = warning;\n" +
		fmt.Sprintf("SET LOCAL statement_timeout = %d; SET LOCAL lock_timeout = %d;\n", milliseconds(timeout), milliseconds(lockTimeout))
	if version, _ := strconv.Atoi(strings.FieldsFunc(conn.PgConn().ParameterStatus("server_version"), notDigit)[0]); version >= 17 {
		text += "SET LOCAL transaction_timeout = 0;\n"
	}
	return text
}

func notDigit(r rune) bool { return r < '0' || r > '9' }

// milliseconds of a limit; the server takes 0 as none.
func milliseconds(d time.Duration) int64 {
	if d == forever {
		return 0
	}
	return int64(longer(shorter((d+time.Millisecond-1)/time.Millisecond, 1<<31-1), 1))
}

// interval of a time.
func interval(d time.Duration) string {
	return fmt.Sprintf("make_interval(secs => %v::float8)", d.Seconds())
}

// An Option of Hold, TryHold, Acquire, Elect and Once.
type Option func(*request)

// Wait waits for the lease, and for the server, for at most d. Without it, or
// with 0, the lease is not waited for, and the server for at most 5 seconds.
func Wait(d time.Duration) Option { return func(r *request) { r.wait = d } }

// WaitForever waits until the context is over.
func WaitForever() Option { return Wait(forever) }

// Mode is exclusive (the default), shared, or permit: see lease_request.
func Mode(mode string) Option { return func(r *request) { r.values["mode"] = quote(mode) } }

// Permits is how many leases of the mode permit there may be at the same time.
func Permits(n int) Option {
	return func(r *request) { r.values["permits"] = strconv.Itoa(n) }
}

// MinHold keeps a lease that is released in time for so long, counted from its
// grant. It may be longer than the ttl.
func MinHold(d time.Duration) Option {
	return func(r *request) { r.values["min_hold"] = interval(d) }
}

// Payload is kept with the lease, as jsonb.
func Payload(value interface{}) Option { return func(r *request) { r.payload = value } }

// IfOwn says what to do if the owner has the lease: refuse (the default), renew
// or count. All leases of a Leases that are counted have one owner.
func IfOwn(what string) Option { return func(r *request) { r.ifOwn = what } }

// Owner is the owner's name, instead of one that nobody else has. If an answer
// gets lost, the error is OutcomeUnknown.
func Owner(name string) Option { return func(r *request) { r.owner = name } }

// StopBefore is how long before the end of the lease the holder must have
// stopped; a sixth of the ttl by default.
func StopBefore(d time.Duration) Option { return func(r *request) { r.stopBefore = d } }

// NoRenewal makes it a lease of a fixed life: it is lost when its time is over.
func NoRenewal() Option { return func(r *request) { r.renews = false } }

// OnLost is called with the lease, in a goroutine of its own, when it is lost,
// before another owner can have it. Close does not call it.
func OnLost(tell func(*Lease)) Option { return func(r *request) { r.onLost = tell } }

// RetryFailed lets another host retry a job of Once that returned an error, at once.
func RetryFailed() Option { return func(r *request) { r.retryFailed = true } }

// with does not write into the array of the options: the caller may use it for several
// calls at the same time.
func with(options []Option, more Option) []Option {
	return append(options[:len(options):len(options)], more)
}

// A request is what one Acquire asks for.
type request struct {
	claim
	ttl, wait, stopBefore time.Duration
	ifOwn                 string
	payload               interface{}
	renews, retryFailed   bool
	onLost                func(*Lease)
	values                map[string]string // of the statement
	ownOwner              bool              // nobody else uses the owner, so the request can be repeated
	schema                string            // where the functions are: known when it was sent
}

func (l *Leases) newRequest(resource string, ttl time.Duration, options []Option) (*request, error) {
	r := &request{claim: claim{resource: resource}, ttl: ttl, stopBefore: ttl / 6, ifOwn: "refuse", renews: true,
		values: map[string]string{"mode": quote("exclusive"), "permits": "NULL", "min_hold": "NULL", "payload": "NULL"}}
	for _, option := range options {
		option(r)
	}
	if ttl <= 0 {
		return nil, &UsageError{fmt.Sprintf("ttl must be more than zero, not %v", ttl)}
	}
	if r.wait < 0 {
		return nil, &UsageError{fmt.Sprintf("Wait must not be negative, but %v is", r.wait)}
	}
	for _, text := range []string{resource, r.owner, r.ifOwn, r.values["mode"]} {
		if strings.IndexByte(text, 0) >= 0 {
			return nil, &UsageError{fmt.Sprintf("%q has a zero byte", text)} // it would end the statement
		}
	}
	if r.stopBefore < 0 || r.stopBefore >= ttl {
		return nil, &UsageError{"StopBefore must be less than the ttl"}
	}
	r.ownOwner = r.owner == "" && r.ifOwn != "count"
	if r.ownOwner {
		r.owner = newOwner()
	} else if r.owner == "" {
		r.owner = l.owner
	}
	if r.payload != nil {
		text, err := json.Marshal(r.payload)
		if err != nil {
			return nil, err
		}
		r.values["payload"] = quote(string(text))
	}
	return r, nil
}

// keeps says whether its release may leave the lease kept for its min_hold. A hold
// of several does not.
func (r *request) keeps() bool { return r.values["min_hold"] != "NULL" && r.ifOwn != "count" }

func newOwner() string {
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		panic(err)
	}
	host, _ := os.Hostname()
	return fmt.Sprintf("%s:%d:%x", host, os.Getpid(), random)
}

// statement is called just before it is sent. until is when the wait at the server
// ends, 0 for a try; repeated: an earlier answer was lost.
func (r *request) statement(schema string, conn *pgx.Conn, until moment, repeated bool) string {
	r.schema = schema
	wait, limit := "NULL", forever
	if until != never {
		wait, limit = interval(until.left()), until.left()+patience
	}
	values := map[string]string{"schema": schema, "resource": quote(r.resource), "owner": quote(r.owner),
		"ttl": interval(r.ttl), "wait": wait, "if_own": quote(r.ifOwn)}
	if repeated {
		values["if_own"] = quote("renew")
	}
	for name, value := range r.values {
		values[name] = value
	}
	text := settings(conn, limit, forever)
	if until > 0 {
		text += checkClientText
	}
	return text + fill(requestText, values)
}
