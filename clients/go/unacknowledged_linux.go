package leaselock

import (
	"net"
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall does not have everywhere.
const tcpUserTimeout = 18

// unacknowledged is how long sent data may be without an acknowledgement. Meanwhile
// keepalive does not run, and the system's own limit is a quarter of an hour.
const unacknowledged = 10 * time.Second

func limitUnacknowledged(socket *net.TCPConn) {
	if raw, err := socket.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(unacknowledged.Milliseconds()))
		})
	}
}
