package leaselock;

/** The lease is not held any longer. */
public class LeaseLost extends LeaseException {
    private static final long serialVersionUID = 1;

    /** Why a lease is not held any longer. */
    public enum Reason {
        EXPIRED("it was not renewed in time"),
        BROKEN("the server says that it is not held"),
        TAKEN_OVER("another owner has it"),
        CLOSED("leases were closed"),
        RELEASED("it was released");

        private final String text;

        Reason(String text) {
            this.text = text;
        }
    }

    private final Reason reason;

    LeaseLost(String resource, Reason reason, Throwable cause) {
        super("lease on \"" + resource + "\" is lost: " + reason.text, resource, cause);
        this.reason = reason;
    }

    /** @return why it is not held */
    public Reason reason() {
        return reason;
    }
}
