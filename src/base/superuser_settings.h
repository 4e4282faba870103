/*-------------------------------------------------------------------------
 *
 * superuser_settings.h
 *		Settings that only a superuser may change.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASE_LOCK_SUPERUSER_SETTINGS_H
#define LEASE_LOCK_SUPERUSER_SETTINGS_H

extern bool define_superuser_settings(void (*define) (void), const char *const *names, int count);

#endif							/* LEASE_LOCK_SUPERUSER_SETTINGS_H */
