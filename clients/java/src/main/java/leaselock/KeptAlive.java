package leaselock;

import java.io.IOException;
import java.net.InetAddress;
import java.net.Socket;
import java.net.SocketOption;
import java.util.Map;
import javax.net.SocketFactory;
import jdk.net.ExtendedSocketOptions;

/** Sockets on which a wait without limit notices within seconds that the server is gone. The driver makes it, by its name. */
public final class KeptAlive extends SocketFactory {
    private static final Map<SocketOption<Integer>, Integer> SECONDS = Map.of(ExtendedSocketOptions.TCP_KEEPIDLE, 5,
        ExtendedSocketOptions.TCP_KEEPINTERVAL, 2, ExtendedSocketOptions.TCP_KEEPCOUNT, 3);

    @Override
    public Socket createSocket() throws IOException {
        Socket socket = new Socket();
        for (Map.Entry<SocketOption<Integer>, Integer> option : SECONDS.entrySet()) {
            if (socket.supportedOptions().contains(option.getKey())) {
                socket.setOption(option.getKey(), option.getValue());
            }
        }
        return socket;
    }

    @Override
    public Socket createSocket(String host, int port) {
        throw new UnsupportedOperationException();
    }

    @Override
    public Socket createSocket(String host, int port, InetAddress from, int fromPort) {
        throw new UnsupportedOperationException();
    }

    @Override
    public Socket createSocket(InetAddress host, int port) {
        throw new UnsupportedOperationException();
    }

    @Override
    public Socket createSocket(InetAddress host, int port, InetAddress from, int fromPort) {
        throw new UnsupportedOperationException();
    }
}
