/*-------------------------------------------------------------------------
 *
 * guard.h
 *		Triggers that protect tables.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_GUARD_H
#define LEASE_LOCK_GUARD_H

#include "server/server.h"

/* guard.c: lets only the holder of a lease write a row */
extern void guard_init(void);
pg_noreturn extern void refuse_trigger(FunctionCallInfo fcinfo, const char *function,
									   const char *requirement,
									   const char *hint);

/* protect.c: which triggers a table has */
extern List *triggers_of(Oid relid, Oid function, bool for_rows);

/* template.c: names of resources made from the columns of a row */
#define TEMPLATE_HINT \
	"Name the resource like 'workitem:{id}', with names of columns in braces; " \
	"{{ and }} stand for braces."

typedef struct Template Template;

extern Template *template_for_table(const char *text, Relation table);
extern text *template_fill(Template *template, TupleTableSlot *row);
extern bool template_is_filled(const Template *template, TupleTableSlot *row);
extern bool template_is_visible(const Template *template);

#endif							/* LEASE_LOCK_GUARD_H */
