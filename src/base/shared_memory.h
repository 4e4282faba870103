/*-------------------------------------------------------------------------
 *
 * shared_memory.h
 *		The area of shared memory that the processes of a server share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_SHARED_MEMORY_H
#define LEASE_LOCK_SHARED_MEMORY_H

/* What one module has in the area. */
typedef struct SharedPart
{
	const char *name;			/* its number changes with the layout, because two builds of the library may be in use */
	Size		(*size) (void);
	void		(*create) (void *memory, int tranche);	/* fills it once; tranche is for its locks */
	void	  **memory;			/* set in each process that attaches; NULL before */
} SharedPart;

/* To be called at load time; the part must be a constant. */
extern void add_shared_part(const SharedPart *part);

/* Attach this process; false if the server has no such area. */
extern bool attach_shared_area(void);

#endif							/* LEASE_LOCK_SHARED_MEMORY_H */
