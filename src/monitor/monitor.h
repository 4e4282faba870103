/*-------------------------------------------------------------------------
 *
 * monitor.h
 *		What is drawn for an operator.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_MONITOR_H
#define LEASE_LOCK_MONITOR_H

/* graph.c: who waits for whom, in the DOT language */
extern char *draw_wait_graph(void);

#endif							/* LEASE_LOCK_MONITOR_H */
