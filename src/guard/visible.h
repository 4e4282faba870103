/*-------------------------------------------------------------------------
 *
 * visible.h
 *		Which values of a row errors may show.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_VISIBLE_H
#define LEASE_LOCK_VISIBLE_H

#include "access/attnum.h"
#include "utils/relcache.h"

extern bool column_is_visible(Relation table, AttrNumber column);

#endif							/* LEASE_LOCK_VISIBLE_H */
