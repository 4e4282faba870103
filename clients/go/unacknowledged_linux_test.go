package leaselock

import (
	"context"
	"syscall"
	"testing"
)

func TestARequestToAServerThatIsGoneFailsSoon(t *testing.T) {
	leases, err := New("host=127.0.0.1", Options{Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	used := &link{leases: leases}
	defer used.close()
	if _, err := used.ready(context.Background(), patience); err != nil {
		t.Fatal(err)
	}
	raw, err := socketOf(used.conn).(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		limit, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout)
		if err != nil || limit != 10_000 {
			t.Error(limit, err)
		}
	})
}
