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

typedef struct Template Template;

extern Template *template_for_table(const char *text, Relation table);
extern void init_resource_buffer(StringInfo buffer);
extern text *template_fill(const Template *template, TupleTableSlot *row, StringInfo buffer);

#endif							/* LEASE_LOCK_TEMPLATE_H */
