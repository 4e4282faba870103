package leaselock;

/** Base class of the exceptions of this package. All others are those of the driver, and of the language for a wrong argument. */
public class LeaseException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final String resource;

    LeaseException(String text, String resource, Throwable cause) {
        super(text, cause);
        this.resource = resource;
    }

    /** @return the resource of the lease, or null */
    public String resource() {
        return resource;
    }
}
