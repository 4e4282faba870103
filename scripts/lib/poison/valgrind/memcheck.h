/*
 * memcheck.h
 *		What the server tells Valgrind about its memory, told to AddressSanitizer.
 *
 * The sanitizer knows of malloc(), not of palloc(), nor of the buffers whose
 * pages may be read only while they are pinned. A server that is built with
 * USE_VALGRIND says when such memory may be touched and when not. Included in
 * the place of Valgrind's header of the same name, this lets the sanitizer hear
 * it. Whether memory was ever written to is beyond it.
 */
#ifndef LEASE_LOCK_POISON_H
#define LEASE_LOCK_POISON_H

#include <sanitizer/asan_interface.h>

#define VALGRIND_MAKE_MEM_NOACCESS(addr, size)	__asan_poison_memory_region((addr), (size))
#define VALGRIND_MAKE_MEM_UNDEFINED(addr, size) __asan_unpoison_memory_region((addr), (size))
#define VALGRIND_MAKE_MEM_DEFINED(addr, size)	__asan_unpoison_memory_region((addr), (size))

#define VALGRIND_MEMPOOL_ALLOC(pool, addr, size)	__asan_unpoison_memory_region((addr), (size))
#define VALGRIND_MEMPOOL_CHANGE(pool, from, to, size) __asan_unpoison_memory_region((to), (size))

/* With assertions enabled, what is freed is wiped, and closed to access then. */
#define VALGRIND_MEMPOOL_FREE(pool, addr)		do {} while (0)
#define VALGRIND_CREATE_MEMPOOL(pool, redzone, zeroed)	do {} while (0)
#define VALGRIND_DESTROY_MEMPOOL(pool)			do {} while (0)
#define VALGRIND_CHECK_MEM_IS_DEFINED(addr, size)	do {} while (0)

#endif
