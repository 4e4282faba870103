/*-------------------------------------------------------------------------
 *
 * message.h
 *		Messages about the lease, on standard error.
 *
 * Many jobs write to one log: each message names the resource.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MESSAGE_H
#define MESSAGE_H

#include "common/logging.h"

#define lease_error(format, ...) \
	pg_log_error("lease on \"%s\": " format, message_resource(), ##__VA_ARGS__)
#define lease_warning(format, ...) \
	pg_log_warning("lease on \"%s\": " format, message_resource(), ##__VA_ARGS__)
#define lease_fatal(status, format, ...) \
	do { \
		lease_error(format, ##__VA_ARGS__); \
		exit(status); \
	} while (0)

/* With --verbose: each step, and when it happened. */
#define lease_step(format, ...) \
	pg_log_info("lease on \"%s\": %.3f s: " format, message_resource(), message_seconds(), ##__VA_ARGS__)

extern void message_about(const char *resource);
extern const char *message_resource(void);
extern double message_seconds(void);
extern char *message_name(const char *name);
extern char *message_line(const char *message);

#endif							/* MESSAGE_H */
