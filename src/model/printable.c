/*-------------------------------------------------------------------------
 *
 * printable.c
 *		Texts of users in messages, in the log and in graphs.
 *
 * Any role may acquire a lease on any text. A text that is shown must stay on
 * its line, must end where it seems to end, must not control the terminal, and
 * must not be long.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "model/text.h"
#include "model/types.h"

/* Control characters, line ends, and characters that change the writing direction. */
static bool
is_invisible(pg_wchar character)
{
	return character < 0x20 || (character >= 0x7F && character < 0xA0) ||
		character == 0x061C || (character >= 0x200B && character <= 0x200F) ||
		(character >= 0x2028 && character <= 0x202E) ||
		(character >= 0x2060 && character <= 0x206F) || character == 0xFEFF;
}

/*
 * Can this character, of the given length in bytes, be shown unchanged? In
 * SQL_ASCII, the meaning of a byte above ASCII is unknown. From 0x80 to 0x9F
 * most single-byte encodings have control characters. Some have letters there,
 * but the terminal that shows the log may not know the encoding.
 */
static bool
is_printable(const unsigned char *character, int length)
{
	if (GetDatabaseEncoding() == PG_UTF8)
		return !is_invisible(utf8_to_unicode(character));
	return length > 1 ||
		(!is_invisible(*character) && !(IS_HIGHBIT_SET(*character) && GetDatabaseEncoding() == PG_SQL_ASCII));
}

static void
append_escaped_byte(StringInfo text, unsigned char byte)
{
	if (byte == '\n' || byte == '\r' || byte == '\t')
		appendStringInfo(text, "\\%c", byte == '\n' ? 'n' : byte == '\r' ? 'r' : 't');
	else
		appendStringInfo(text, "\\x%02X", byte);
}

/*
 * Append a name. Characters that cannot be shown are escaped, and so are the
 * special ASCII characters, which should include the backslash.
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

/*
 * A text for a message that puts it in quotes. No character in it can end the
 * quotes. Of a text that is longer than a name may be, the rest is left out.
 */
char *
printable_string(const char *string)
{
	int			length = strlen(string);
	int			shown = length > MAX_NAME_LENGTH ? pg_mbcliplen(string, length, MAX_NAME_LENGTH) : length;
	StringInfoData text;

	initStringInfo(&text);
	append_printable(&text, string, shown, "\"\\");
	if (shown < length)
		appendStringInfoString(&text, "...");
	return text.data;
}

char *
printable(const text *string)
{
	return printable_string(text_to_cstring(string));
}
