//go:build unix

package leaselock

import (
	"syscall"

	"github.com/jackc/pgx/v4"
)

// isQuiet says whether an idle connection can be used. The server may have closed
// it: then a request would fail as if it had arrived. What is read here is of a
// connection that is not used any more.
func isQuiet(conn *pgx.Conn) bool {
	socket, ok := socketOf(conn).(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, err := syscall.Read(int(fd), one[:])
		quiet = err == syscall.EAGAIN
		return true
	})
	return err == nil && quiet
}
