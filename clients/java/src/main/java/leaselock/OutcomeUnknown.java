package leaselock;

/** The request was sent, and no answer came: it may have been carried out. */
public class OutcomeUnknown extends LeaseException {
    private static final long serialVersionUID = 1;

    OutcomeUnknown(String text, String resource, Throwable cause) {
        super(text, resource, cause);
    }
}
