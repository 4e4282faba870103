/*-------------------------------------------------------------------------
 *
 * guard.c
 *		The trigger that lets only the holder of a row's lease write the row.
 *
 * The owner comes from the setting lease_lock.owner. So a program that knows
 * nothing of leases is refused, and a program that does sets the owner once in
 * a transaction. SET LOCAL works through a pooler in transaction mode.
 *
 * The trigger checks the privileges of the current role, or of the role that
 * the session acts as. In a cascade of a foreign key the current role is the
 * owner of the table, which nobody chose. There the trigger checks the role
 * that set lease_lock.owner, because that role claims the lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/rel.h"

#include "guard/guard.h"
#include "hold/hold.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(lease_guard);

/* What the trigger keeps for the rows of one statement. */
typedef struct Guard
{
	Template   *template;
	bool		hides_name;		/* errors must not show the name */

	/* What the row before asserted: one lease often covers many rows. See is_covered(). */
	const Lease *asserted;
	uint64		version;		/* of the assertions */
} Guard;

/* The settings, as strings and parsed. The empty string stands for none. */
static char *owner_setting;
static char *token_setting;
static int64 session_token;
static union
{
	int32		length;			/* for its alignment */
	text		name;
	char		space[VARHDRSZ + MAX_NAME_LENGTH];
}			session_owner;

/* What the server knows of lease_lock.owner. */
static const struct config_generic *owner_config;

static bool
check_owner(char **newval, void **extra, GucSource source)
{
	if (strlen(*newval) <= MAX_NAME_LENGTH)
		return true;
	GUC_check_errdetail("The owner of a lease must not be longer than %d bytes.", MAX_NAME_LENGTH);
	return false;
}

static void
assign_owner(const char *newval, void *extra)
{
	size_t		length = strlen(newval);

	SET_VARSIZE(&session_owner, VARHDRSZ + length);
	memcpy(session_owner.space + VARHDRSZ, newval, length);
	assertions_version++;
}

static bool
check_token(char **newval, void **extra, GucSource source)
{
	char	   *end;

	errno = 0;
	(void) strtoi64(*newval, &end, 10);
	if ((*newval)[0] == '\0' || (errno == 0 && *end == '\0'))
		return true;
	GUC_check_errdetail("The token of a lease is a whole number of type bigint.");
	return false;
}

static void
assign_token(const char *newval, void *extra)
{
	session_token = strtoi64(newval, NULL, 10);
	assertions_version++;
}

void
guard_init(void)
{
	DefineCustomStringVariable("lease_lock.owner",
							   "Owner of the leases under which protected tables are written.",
							   "Set it with SET LOCAL, in the transaction that writes.",
							   &owner_setting,
							   "",
							   PGC_USERSET,
							   0,
							   check_owner, assign_owner, NULL);
	owner_config = find_option("lease_lock.owner", false, true, LOG);

	DefineCustomStringVariable("lease_lock.token",
							   "Token of the leases under which protected tables are written.",
							   "If it is empty, any token will do.",
							   &token_setting,
							   "",
							   PGC_USERSET,
							   0,
							   check_token, assign_token, NULL);
}

/*
 * Refuse a call that is not made by a trigger, or a trigger that was defined
 * in a form that does not work.
 */
void
refuse_trigger(FunctionCallInfo fcinfo, const char *function, const char *requirement,
			   const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
			 CALLED_AS_TRIGGER(fcinfo) ?
			 errmsg("trigger \"%s\" with %s must %s",
					((TriggerData *) fcinfo->context)->tg_trigger->tgname, function, requirement) :
			 errmsg("%s can only be called as a trigger", function),
			 errhint("%s", hint)));
}

/* Get the state of the trigger for this statement, and create it at the first row. */
static Guard *
get_guard(FunctionCallInfo fcinfo)
{
	TriggerData *call = (TriggerData *) fcinfo->context;
	Guard	   *guard = fcinfo->flinfo->fn_extra;
	MemoryContext context;
	bool		fires_well;

	if (guard != NULL)
		return guard;

	fires_well = CALLED_AS_TRIGGER(fcinfo) && TRIGGER_FIRED_BEFORE(call->tg_event) &&
		(TRIGGER_FIRED_FOR_ROW(call->tg_event) || TRIGGER_FIRED_BY_TRUNCATE(call->tg_event));
	if (!fires_well || (call->tg_trigger->tgnargs != 1 &&
						(call->tg_trigger->tgnargs != 2 ||
						 strcmp(call->tg_trigger->tgargs[1], "exclusive") != 0)))
		refuse_trigger(fcinfo, "lease_guard()",
					   fires_well ? "have as arguments a template and, if wanted, 'exclusive'" :
					   "be BEFORE ... FOR EACH ROW, or BEFORE TRUNCATE",
					   "Call lease_protect() to protect a table.");

	context = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	guard = palloc0(sizeof(Guard));
	guard->template = template_for_table(call->tg_trigger->tgargs[0], call->tg_relation);
	guard->hides_name = !template_is_visible(guard->template);
	MemoryContextSwitchTo(context);

	fcinfo->flinfo->fn_extra = guard;
	return guard;
}

/*
 * Refuse TRUNCATE of a table whose rows are guarded. A partition that was
 * detached from a protected table has lost its row trigger.
 */
static void
guard_truncate(const TriggerData *call)
{
	if (triggers_of(RelationGetRelid(call->tg_relation), call->tg_trigger->tgfoid, true) == NIL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot truncate protected table \"%s\"",
					RelationGetRelationName(call->tg_relation)),
			 errdetail("It would remove rows without regard to their leases."),
			 errhint("Delete the rows, or call lease_unprotect() first.")));
}

/* Error context callback: name the table. */
static void
describe_table(void *arg)
{
	errcontext("write to protected table \"%s\"", RelationGetRelationName((Relation) arg));
}

/* The role that set the owner; invalid if the session was started with the value. */
static Oid
owner_set_by(void)
{
	return owner_config->source == PGC_S_SESSION ? owner_config->srole : InvalidOid;
}

/*
 * The role that the session acts as, if it claims the lease; else invalid. Who
 * logged in may have set the owner before SET ROLE. Code of another role that runs
 * in the session, and sets the owner itself, does not have its privileges. Nor has
 * code of a table's owner that the server runs, as ANALYZE runs index expressions:
 * that session may be one of autovacuum.
 */
static Oid
session_role(void)
{
	Oid			role = GetOuterUserId();
	Oid			set_by = owner_set_by();

	if (InSecurityRestrictedOperation())
		return InvalidOid;
	if (OidIsValid(set_by) && set_by != GetSessionUserId() && !has_privs_of_role(set_by, role))
		return InvalidOid;
	return role;
}

/*
 * The role whose privileges count. Only the server's own statements for a
 * foreign key run without enforced row security.
 */
static Oid
writing_role(void)
{
	if (!InNoForceRLSOperation())
		return GetUserId();
	return OidIsValid(owner_set_by()) && !InSecurityRestrictedOperation() ? owner_set_by() :
		session_role();
}

/*
 * Has the row before, of the same statement, made this assertion? Then it still
 * holds: its subtransaction is active until the statement ends, and a write of
 * a lease would have changed the version. So would another owner or token.
 */
static bool
is_covered(const Guard *guard, const text *resource, const Asserter *asserter)
{
	return guard->asserted != NULL && guard->version == assertions_version &&
		same_text(guard->asserted->resource, resource) &&
		has_privs_of_role(asserter->role, guard->asserted->role);
}

static void
assert_for_row(Guard *guard, const TriggerData *call, const text *resource)
{
	Claim		claim = {.owner = &session_owner.name,
						 .token = token_setting[0] != '\0' ? &session_token : NULL};
	Asserter	asserter = {
		.role = writing_role(),
		.other_role = session_role(),
		.exclusive = call->tg_trigger->tgnargs == 2,
		.row_of = guard->hides_name ? RelationGetRelationName(call->tg_relation) : NULL
	};

	if (owner_setting[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lease_lock.owner is not set for the lease on %s",
						asserted_name(resource, &asserter)),
				 errhint("Acquire the lease, and in the transaction that writes, "
						 "set lease_lock.owner to its owner with SET LOCAL.")));

	if (is_covered(guard, resource, &asserter))
		return;
	assert_lease(resource, &claim, &asserter);
	guard->asserted = find_assertion(resource, &claim);
	guard->version = assertions_version;
}

/*
 * lease_guard('template' [, 'exclusive']) returns trigger
 *
 * An update that moves a row from one lease to another needs both leases.
 */
Datum
lease_guard(PG_FUNCTION_ARGS)
{
	Guard	   *guard = get_guard(fcinfo);
	TriggerData *call = (TriggerData *) fcinfo->context;
	ErrorContextCallback context = {
		.previous = error_context_stack,
		.callback = describe_table,
		.arg = call->tg_relation
	};

	if (TRIGGER_FIRED_BY_TRUNCATE(call->tg_event))
	{
		guard_truncate(call);
		PG_RETURN_POINTER(NULL);
	}
	PreventCommandIfReadOnly("a write to a protected table");

	error_context_stack = &context;
	assert_for_row(guard, call, template_fill(guard->template, call->tg_trigslot));
	if (TRIGGER_FIRED_BY_UPDATE(call->tg_event) &&
		!template_is_filled(guard->template, call->tg_newslot))
		assert_for_row(guard, call, template_fill(guard->template, call->tg_newslot));
	error_context_stack = context.previous;

	PG_RETURN_POINTER(TRIGGER_FIRED_BY_UPDATE(call->tg_event) ? call->tg_newtuple :
					  call->tg_trigtuple);
}
