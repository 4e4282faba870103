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

#include "model/invisible.h"
#include "model/text.h"
#include "model/types.h"

/* Control characters, line ends, and what changes the writing direction or is not shown at all. */
static bool
is_invisible(pg_wchar character)
{
	for (int i = 0; i < (int) lengthof(invisible) && invisible[i].first <= character; i++)
		if (character <= invisible[i].last)
			return true;
	return false;
}

/* The same for a byte of any encoding: what is invisible beyond these depends on it. */
static bool
is_control(unsigned char byte)
{
	return byte < 0x20 || (byte >= 0x7F && byte < 0xA0);
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
		(!is_control(*character) &&
		 !(IS_HIGHBIT_SET(*character) && GetDatabaseEncoding() == PG_SQL_ASCII));
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
 * special ASCII characters, which should include the backslash. Of a text that
 * is longer than a name may be, the rest is left out.
 */
void
append_printable(StringInfo text, const char *name, int length, const char *special)
{
	int			shown = length > MAX_NAME_LENGTH ? pg_mbcliplen(name, length, MAX_NAME_LENGTH) :
		length;
	const char *end = name + shown;

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
	if (shown < length)
		appendStringInfoString(text, "...");
}

/* A text for a message that puts it in quotes. No character in it can end the quotes. */
char *
printable_string(const char *string)
{
	StringInfoData text;

	initStringInfo(&text);
	append_printable(&text, string, strlen(string), "\"\\");
	return text.data;
}

char *
printable(const text *string)
{
	return printable_string(text_to_cstring(string));
}
