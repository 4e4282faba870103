package leaselock

import (
	"net"
	"time"

	"github.com/jackc/pgx/v4"
)

// keepAlivePeriod is how often the system asks a silent peer. After some questions
// without an answer the connection ends. The driver's own period is five minutes:
// a wait without limit would not notice for long that the server is gone.
const keepAlivePeriod = 2 * time.Second

// socketOf returns what is below TLS.
func socketOf(conn *pgx.Conn) net.Conn {
	socket := conn.PgConn().Conn()
	if encrypted, ok := socket.(interface{ NetConn() net.Conn }); ok {
		return encrypted.NetConn()
	}
	return socket
}

func keepAlive(conn *pgx.Conn) {
	if socket, ok := socketOf(conn).(*net.TCPConn); ok {
		socket.SetKeepAlive(true)
		socket.SetKeepAlivePeriod(keepAlivePeriod)
		limitUnacknowledged(socket)
	}
}
