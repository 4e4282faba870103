/*-------------------------------------------------------------------------
 *
 * clock.c
 *		The clock that leases are dated by.
 *
 * Leases are dated by lease time, which is read at the moment when it matters.
 * now() would be the start of the transaction, which may be long ago.
 *
 * Lease time is CLOCK_BOOTTIME plus an offset. That clock cannot be set, it
 * continues while the machine is suspended, and NTP adjusts its rate together
 * with that of the wall clock. So the two clocks agree until the wall clock is
 * stepped, and then only the wall clock moves.
 *
 * The postmaster fixes the offset when it preloads the library, and all its
 * children inherit it, also after a crash restart. A file in the data
 * directory keeps the offset, so that a restart of the server does not shift
 * leases either. CLOCK_BOOTTIME starts at zero when the machine boots, so the
 * file is valid for one boot of one machine, and names that boot. Without a
 * valid file, lease time starts from the wall clock.
 *
 * If the library is not preloaded, no process fixes an offset for all
 * sessions. Then lease time is the wall clock. The same is true on platforms
 * without CLOCK_BOOTTIME.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "miscadmin.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "utils/guc.h"
#include "utils/datetime.h"
#include "utils/timestamp.h"

#include "server/server.h"

#define CLOCK_FILE		"lease_lock.clock"
#define BOOT_ID_FILE	"/proc/sys/kernel/random/boot_id"
#define BOOT_ID_LENGTH	36
#define MAX_LINE		128

#ifndef CLOCK_BOOTTIME
#define CLOCK_BOOTTIME	((clockid_t) -1)	/* no system has this clock */
#endif

/* Smaller differences can come from reading two clocks one after the other. */
#define CLOCK_JITTER	INT64CONST(1000)

typedef enum ClockSource
{
	SOURCE_STEADY,
	SOURCE_WALL
} ClockSource;

static const struct config_enum_entry clock_sources[] = {
	{"steady", SOURCE_STEADY, false},
	{"wall", SOURCE_WALL, false},
	{NULL, 0, false}
};

static int	clock_source = SOURCE_WALL;
static int64 clock_offset;		/* lease time minus CLOCK_BOOTTIME; for SOURCE_STEADY */

/* Read a clock, in microseconds; -1 if the system does not have it. */
static int64
read_clock(clockid_t id)
{
	struct timespec now;

	if (clock_gettime(id, &now) != 0)
		return -1;
	return now.tv_sec * USECS_PER_SEC + now.tv_nsec / 1000;
}

TimestampTz
clock_now(void)
{
	return clock_source == SOURCE_STEADY ? read_clock(CLOCK_BOOTTIME) + clock_offset :
		GetCurrentTimestamp();
}

MonotonicTime
clock_monotonic(void)
{
	return (MonotonicTime) {read_clock(CLOCK_MONOTONIC)};
}

int64
clock_used(void)
{
	return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

static bool
is_jitter(int64 difference)
{
	return difference > -CLOCK_JITTER && difference < CLOCK_JITTER;
}

/*
 * How far is the wall clock ahead of CLOCK_BOOTTIME? Reads again if the
 * process was interrupted between the clocks.
 */
static int64
wall_ahead_of_steady(void)
{
	int64		difference = 0;
	int64		read_time = CLOCK_JITTER;

	for (int i = 0; i < 10 && read_time >= CLOCK_JITTER; i++)
	{
		int64		before = read_clock(CLOCK_BOOTTIME);

		difference = GetCurrentTimestamp() - before;
		read_time = read_clock(CLOCK_BOOTTIME) - before;
	}
	return difference;
}

/*
 * How far is the wall clock ahead of lease time? The answer stays the same, to
 * the microsecond, until the wall clock is stepped, so that the time that a
 * view shows for a lease does not change between two reads.
 */
int64
clock_difference(void)
{
	static int64 known = 0;
	int64		difference;

	if (clock_source == SOURCE_WALL)
		return 0;

	difference = wall_ahead_of_steady() - clock_offset;
	if (is_jitter(difference))
		known = 0;
	else if (!is_jitter(difference - known))
		known = difference;
	return known;
}

/*
 * Turn a lease time into what the wall clock says, or will say, at that moment.
 * From the year 10000 on that is infinity: many clients cannot read such a year.
 */
TimestampTz
clock_wall_time(TimestampTz lease_time)
{
	TimestampTz wall = TIMESTAMP_NOT_FINITE(lease_time) ? lease_time :
		lease_time + clock_difference();

	return wall >= (date2j(10000, 1, 1) - POSTGRES_EPOCH_JDATE) * USECS_PER_DAY ? DT_NOEND : wall;
}

/* Log a step of the wall clock. Only the purge launcher calls this. */
void
clock_report_step(void)
{
	static int64 reported = 0;
	int64		difference = clock_difference();

	if (difference - reported < USECS_PER_SEC && reported - difference < USECS_PER_SEC)
		return;
	reported = difference;
	if (is_jitter(difference))
		ereport(LOG,
				(errmsg("wall clock agrees with lease time again")));
	else
		ereport(LOG,
				(errmsg("wall clock is %.3f seconds %s lease time",
						(difference < 0 ? -difference : difference) / (double) USECS_PER_SEC,
						difference < 0 ? "behind" : "ahead of"),
				 errdetail("Somebody stepped the wall clock. Leases end when they would have ended "
						   "without the step."),
				 errhint("After a restart of the machine or a failover, the leases that are held "
						 "at that time end %s by that much.",
						 difference < 0 ? "later" : "earlier")));
}

/* Read a file that has one line; false if there is none. */
static bool
read_line(const char *path, char *line)
{
	FILE	   *file = AllocateFile(path, "r");

	if (file == NULL)
	{
		if (errno != ENOENT)
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not open file \"%s\": %m", path)));
		return false;
	}
	line[fread(line, 1, MAX_LINE - 1, file)] = '\0';
	FreeFile(file);
	return true;
}

/* Build the line that the file consists of. It ends with a checksum of the rest. */
static void
form_line(char *line, const char *boot_id, int64 offset)
{
	int			length = snprintf(line, MAX_LINE, "%s " INT64_FORMAT, boot_id, offset);
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, line, length);
	FIN_CRC32C(crc);
	snprintf(line + length, MAX_LINE - length, " %08X\n", crc);
}

/* Load the offset from the file; false unless the file is valid for this boot. */
static bool
load_offset(const char *boot_id)
{
	char		line[MAX_LINE];
	char		good_line[MAX_LINE];
	bool		this_boot;

	if (!read_line(CLOCK_FILE, line))
		return false;
	this_boot = strncmp(line, boot_id, BOOT_ID_LENGTH) == 0;
	clock_offset = this_boot ? strtoi64(line + BOOT_ID_LENGTH, NULL, 10) : 0;
	form_line(good_line, boot_id, clock_offset);
	if (strcmp(line, good_line) == 0)
		return true;

	ereport(LOG,
			(this_boot || strlen(line) < BOOT_ID_LENGTH ?
			 (errcode(ERRCODE_DATA_CORRUPTED), errmsg("file \"%s\" is damaged", CLOCK_FILE)) :
			 errmsg("file \"%s\" was written on another machine, or before the last boot of this "
					"one", CLOCK_FILE),
			 errdetail("Lease time starts from the wall clock.")));
	return false;
}

/* Save the offset. A failure is logged; then a restart of the server may shift leases. */
static void
save_offset(const char *boot_id)
{
	char		line[MAX_LINE];
	FILE	   *file = AllocateFile(CLOCK_FILE ".tmp", PG_BINARY_W);
	bool		written;

	form_line(line, boot_id, clock_offset);
	written = file != NULL && fputs(line, file) >= 0;
	if ((file != NULL && FreeFile(file) != 0) || !written)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", CLOCK_FILE ".tmp")));
	else
		durable_rename(CLOCK_FILE ".tmp", CLOCK_FILE, LOG);
}

/* Make all processes of this server use the steady clock, if there is one. */
static void
start_steady_clock(void)
{
	char		boot_id[MAX_LINE];
	bool		has_boot_id;

	if (read_clock(CLOCK_BOOTTIME) < 0)
		return;
	clock_source = SOURCE_STEADY;
	has_boot_id = read_line(BOOT_ID_FILE, boot_id) &&
		strspn(boot_id, "0123456789abcdef-") == BOOT_ID_LENGTH;
	boot_id[BOOT_ID_LENGTH] = '\0';
	if (has_boot_id && load_offset(boot_id))
		return;
	clock_offset = wall_ahead_of_steady();
	if (has_boot_id)
		save_offset(boot_id);
}

void
clock_init(void)
{
	if (process_shared_preload_libraries_in_progress)
		start_steady_clock();

	DefineCustomEnumVariable("lease_lock.clock",
							 "Shows the clock that leases are dated by: \"steady\", which cannot "
							 "be stepped, or \"wall\".",
							 NULL,
							 &clock_source,
							 clock_source,
							 clock_sources,
							 PGC_INTERNAL,
							 GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							 NULL, NULL, NULL);
}
