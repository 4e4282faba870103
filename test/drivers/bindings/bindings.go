// The calls of the table of drivers in docs/drivers.md, by pgx 4. Prints what was
// sent and what came back, as Go writes them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func say(fields ...string) {
	fmt.Println(strings.Join(fields, "\t"))
}

func main() {
	connection, err := pgx.Connect(context.Background(), "")
	check(err)
	call := func(sql string, values ...interface{}) ([]interface{}, error) {
		rows, err := connection.Query(context.Background(), sql, values...)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		if !rows.Next() {
			return nil, rows.Err()
		}
		return rows.Values()
	}
	must := func(sql string, values ...interface{}) []interface{} {
		row, err := call(sql, values...)
		check(err)
		return row
	}

	say(os.Args[1])
	names := []string{"a", "b"}
	say("list", fmt.Sprintf("%#v", names), fmt.Sprintf("%#v", must("SELECT lease_renew_several($1, $2, $3)", names, "1 hour", "o")[0]))
	token := must("SELECT lease_token($1, $2)", "a", "o")[0]
	say("token", fmt.Sprintf("%T %v", token, token), fmt.Sprintf("%v", must("SELECT lease_assert_token($1, $2)", "a", token)[0]))
	wait := "CALL lease_wait($1, $2, $3, $4)"
	say("wait", wait, fmt.Sprintf("%v", must(wait, "w", "1 minute", "o", "10 s")))
	for _, failing := range [][]string{{"lost", "SELECT lease_assert($1, $2)", "free"}, {"timeout", "SELECT lease_release($1, $2)", "busy"}} {
		_, err := call(failing[1], failing[2], "o")
		var failure *pgconn.PgError
		if errors.As(err, &failure) {
			say(failing[0], failing[1], fmt.Sprintf("%T %s", failure, failure.Code))
		} else {
			say(failing[0], failing[1], fmt.Sprint(err))
		}
	}
	check(connection.Close(context.Background()))
}
