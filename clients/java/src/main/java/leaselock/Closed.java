package leaselock;

/** The {@link Leases} were closed, before the call or during it. */
public class Closed extends LeaseException {
    private static final long serialVersionUID = 1;

    Closed(String resource) {
        super("leases are closed", resource, null);
    }
}
