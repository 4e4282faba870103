/*-------------------------------------------------------------------------
 *
 * shared_memory.h
 *		Areas of shared memory that exist when the library is preloaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_SHARED_MEMORY_H
#define LEASE_LOCK_SHARED_MEMORY_H

typedef struct SharedArea
{
	const char *name;
	Size		(*size) (void);
	void		(*attach) (void *memory, bool is_new);	/* also fills it when it is new */
} SharedArea;

/* To be called at load time; the area must be a constant. */
extern void request_shared_area(const SharedArea *area);

#endif							/* LEASE_LOCK_SHARED_MEMORY_H */
