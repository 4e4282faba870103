/*-------------------------------------------------------------------------
 *
 * message.c
 *		Messages about the lease, on standard error.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "clock.h"
#include "lib/stringinfo.h"
#include "message.h"

static const char *shown_resource = "";
static Time started;

/*
 * Name this resource in all messages, and count their times from now.
 */
void
message_about(const char *resource)
{
	shown_resource = message_name(resource);
	started = clock_now();
}

const char *
message_resource(void)
{
	return shown_resource;
}

double
message_seconds(void)
{
	return clock_seconds(clock_now() - started);
}

/*
 * A name on one line, and without bytes that control a terminal. Allocated.
 */
char *
message_name(const char *name)
{
	StringInfoData line;

	initStringInfo(&line);
	for (const char *byte = name; *byte != '\0'; byte++)
	{
		if ((unsigned char) *byte < 0x20 || *byte == 0x7f)
			appendStringInfo(&line, "\\x%02x", (unsigned char) *byte);
		else
			appendStringInfoChar(&line, *byte);
	}
	return line.data;
}

/*
 * A message of libpq or the server on one line. Allocated.
 */
char *
message_line(const char *message)
{
	StringInfoData line;

	initStringInfo(&line);
	for (const char *byte = message; *byte != '\0'; byte++)
	{
		if ((unsigned char) *byte > 0x20)
			appendStringInfoChar(&line, *byte);
		else if (line.len > 0 && line.data[line.len - 1] != ' ')
			appendStringInfoChar(&line, ' ');
	}
	while (line.len > 0 && line.data[line.len - 1] == ' ')
		line.data[--line.len] = '\0';
	return line.data;
}
