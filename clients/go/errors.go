package leaselock

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgconn"
)

// A LeaseError is an error of this package. All others are those of pgx, of a
// context, a UsageError for a mistake of the program, or a plain error: no
// connection in time.
type LeaseError interface {
	error
	// Resource is that of the lease.
	Resource() string
}

type ofResource struct{ resource string }

func (e ofResource) Resource() string { return e.resource }

// LeaseTaken means that another owner has the lease.
type LeaseTaken struct {
	ofResource
	Reason     string         // of lease_request: held, open, queue, own or failover
	BlockedBy  string         // the owner that has it; empty if the role may not see it
	BlockedFor *time.Duration // how long until it may be free; nil if that is not known
}

func (e *LeaseTaken) Error() string {
	by := ""
	if e.BlockedBy != "" {
		by = " by " + e.BlockedBy
	}
	return fmt.Sprintf("lease on %q is taken (%s%s)", e.resource, e.Reason, by)
}

// A Reason says why a lease is not held any longer.
type Reason string

// The reasons.
const (
	Expired   Reason = "expired"    // it was not renewed in time
	Broken    Reason = "broken"     // the server says that it is not held
	TakenOver Reason = "taken_over" // another owner has it
	WasClosed Reason = "closed"     // the Leases were closed
	Released  Reason = "released"   // the program released it
)

var reasonTexts = map[Reason]string{
	Expired: "it was not renewed in time", Broken: "the server says that it is not held",
	TakenOver: "another owner has it", WasClosed: "leases were closed", Released: "it was released",
}

// LeaseLost means that the lease is not held any longer.
type LeaseLost struct {
	ofResource
	Reason Reason
}

func (e *LeaseLost) Error() string {
	return fmt.Sprintf("lease on %q is lost: %s", e.resource, reasonTexts[e.Reason])
}

// OutcomeUnknown means that the request was sent, and that no answer came: it
// may have been carried out.
type OutcomeUnknown struct {
	ofResource
	what  string
	cause error
}

func (e *OutcomeUnknown) Error() string { return "no answer to " + e.what }

// Unwrap returns the error of the driver; it may be nil.
func (e *OutcomeUnknown) Unwrap() error { return e.cause }

// Closed means that Close was called before the call, or during it.
type Closed struct{ ofResource }

func (e *Closed) Error() string { return "leases are closed" }

// UsageError means a mistake of the program: a wrong argument; a database that
// does not have the extension, or the schema that is named; or a schema that is
// named beside the extension. It is no LeaseError, since it is of no lease.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

// An action says what to do after an error. The table, which all clients share,
// sorts them.
type action string

const (
	again    action = "again"
	notAgain action = "not again"
	unknown  action = "unknown"
)

//go:embed errors.tsv
var errorsTable string

var actions = func() map[string]action {
	table := map[string]action{}
	for _, line := range strings.Split(errorsTable, "\n") {
		if fields := strings.Split(line, "\t"); len(fields) > 1 {
			table[fields[0]] = action(fields[1])
		}
	}
	return table
}()

// notHeld is the SQLSTATE of an assertion that fails.
const notHeld = "55000"

// readOnly is the SQLSTATE of a server that takes no writes. Its name may move to another
// server, which only a new connection finds.
const readOnly = "25006"

// stateOf returns the SQLSTATE of an error of the server; empty for all others.
func stateOf(err error) string {
	var failure *pgconn.PgError
	if errors.As(err, &failure) {
		return failure.Code
	}
	return ""
}

// isMoved says that the functions are not where they were.
func isMoved(err error) bool {
	state := stateOf(err)
	return state == "42883" || state == "3F000"
}

// isOfServer says that an error is one of the server as a whole, rather than of one lease.
func isOfServer(err error) bool {
	state := stateOf(err)
	return state == "" || isMoved(err) || strings.Contains(" 08 57 25 53 ", " "+state[:2]+" ")
}

// sortError says what to do after an error; sent is whether the statement was sent.
func sortError(err error, sent bool) action {
	var mistake *UsageError
	state := stateOf(err)
	what := actions["any other"]
	switch {
	case errors.As(err, &mistake):
	case state == "" && pgconn.SafeToRetry(err):
		what = actions["not connected"]
	case state == "":
		what = actions["no answer"]
	default:
		for n := 2; n <= len(state); n++ {
			if found, ok := actions[state[:n]]; ok {
				what = found
			}
		}
	}
	if what == unknown && !sent {
		return actions["not connected"]
	}
	return what
}
