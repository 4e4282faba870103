package leaselock;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketAddress;
import java.net.SocketOption;
import java.util.Map;
import java.util.Properties;
import javax.net.SocketFactory;
import jdk.net.ExtendedSocketOptions;

/** Sockets on which a wait without limit notices within seconds that the server is gone. The driver makes it, by its name. */
public final class KeptAlive extends SocketFactory {
    private static final Map<SocketOption<Integer>, Integer> SECONDS = Map.of(ExtendedSocketOptions.TCP_KEEPIDLE, 5,
        ExtendedSocketOptions.TCP_KEEPINTERVAL, 2, ExtendedSocketOptions.TCP_KEEPCOUNT, 3);

    /** A property: which address of the host it is that sockets connect to. The driver would take the first one alone. */
    static final String ADDRESS = "leaselock.address";

    private final int number;

    /** @param properties of the connection */
    public KeptAlive(Properties properties) {
        number = Integer.parseInt(properties.getProperty(ADDRESS, "0"));
    }

    @Override
    public Socket createSocket() throws IOException {
        Socket socket = new Socket() {
            @Override
            public void connect(SocketAddress host, int timeout) throws IOException {
                super.connect(address((InetSocketAddress) host), timeout);
            }
        };
        for (Map.Entry<SocketOption<Integer>, Integer> option : SECONDS.entrySet()) {
            if (socket.supportedOptions().contains(option.getKey())) {
                socket.setOption(option.getKey(), option.getValue());
            }
        }
        return socket;
    }

    private InetSocketAddress address(InetSocketAddress host) throws IOException {
        if (host.isUnresolved()) {
            return host; // a proxy knows it
        }
        InetAddress[] all = InetAddress.getAllByName(host.getHostString());
        return new InetSocketAddress(all[number % all.length], host.getPort());
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
