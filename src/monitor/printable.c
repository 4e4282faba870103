/*-------------------------------------------------------------------------
 *
 * printable.c
 *		Names for the eyes of an operator, in the log and in pictures.
 *
 * Anybody may take a lease on any text. What is shown must stay on its line,
 * end where it seems to end, and do nothing to the terminal that shows it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "monitor/printable.h"

/* Control characters, line ends, and what turns the direction of writing. */
static bool
is_invisible(pg_wchar character)
{
	return character < 0x20 || (character >= 0x7F && character < 0xA0) ||
		character == 0x061C || (character >= 0x200B && character <= 0x200F) ||
		(character >= 0x2028 && character <= 0x202E) ||
		(character >= 0x2060 && character <= 0x206F) || character == 0xFEFF;
}

/*
 * Can the character of so many bytes be shown as it is? In a database without
 * an encoding nobody knows what a byte above ASCII stands for. From 0x80 to
 * 0x9F most encodings of one byte have control characters. In some they are
 * letters, but the terminal that shows the log may not know about that.
 */
static bool
is_printable(const unsigned char *character, int length)
{
	if (GetDatabaseEncoding() == PG_UTF8)
		return !is_invisible(utf8_to_unicode(character));
	if (length > 1)
		return true;
	return *character >= 0x20 && !(*character >= 0x7F && *character < 0xA0) &&
		!(IS_HIGHBIT_SET(*character) && GetDatabaseEncoding() == PG_SQL_ASCII);
}

static void
append_escaped_byte(StringInfo text, unsigned char byte)
{
	switch (byte)
	{
		case '\n':
			appendStringInfoString(text, "\\n");
			break;
		case '\r':
			appendStringInfoString(text, "\\r");
			break;
		case '\t':
			appendStringInfoString(text, "\\t");
			break;
		default:
			appendStringInfo(text, "\\x%02X", byte);
	}
}

/*
 * Append a name with everything escaped that cannot be shown, and the special
 * (ASCII) characters; the backslash should be one of them.
 */
void
append_printable(StringInfo text, const char *name, int length, const char *special)
{
	const char *end = name + length;

	while (name < end)
	{
		int			bytes = Min(pg_encoding_mblen(GetDatabaseEncoding(), name), (int) (end - name));

		if (!is_printable((const unsigned char *) name, bytes))
		{
			for (int i = 0; i < bytes; i++)
				append_escaped_byte(text, name[i]);
		}
		else
		{
			if (bytes == 1 && strchr(special, *name) != NULL)
				appendStringInfoChar(text, '\\');
			appendBinaryStringInfo(text, name, bytes);
		}
		name += bytes;
	}
}

/* A name in quotes that nothing in it can end. */
char *
quote_name(const text *name)
{
	StringInfoData quoted;

	initStringInfo(&quoted);
	appendStringInfoChar(&quoted, '"');
	append_printable(&quoted, VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name), "\"\\");
	appendStringInfoChar(&quoted, '"');
	return quoted.data;
}

/* The name of a role, as the view lease_status shows it when it was dropped. */
char *
role_name(Oid role)
{
	char	   *name = GetUserNameFromId(role, true);

	return name != NULL ? name : psprintf("unknown (OID=%u)", role);
}
