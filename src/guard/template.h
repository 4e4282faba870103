/*-------------------------------------------------------------------------
 *
 * template.h
 *		Names of resources made from the columns of a row.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_TEMPLATE_H
#define LEASE_LOCK_TEMPLATE_H

#include "executor/tuptable.h"
#include "lib/stringinfo.h"
#include "utils/relcache.h"

#define TEMPLATE_HINT \
	"Name the resource like 'workitem:{id}', with names of columns in braces; {{ and }} stand for braces."

typedef struct Template Template;

extern Template *template_for_table(const char *text, Relation table);
extern text *template_fill(const Template *template, TupleTableSlot *row, StringInfo buffer);
extern bool template_is_visible(const Template *template);
extern bool template_unchanged(const Template *template, TupleTableSlot *old_row, TupleTableSlot *new_row);

#endif							/* LEASE_LOCK_TEMPLATE_H */
