/*-------------------------------------------------------------------------
 *
 * template.c
 *		Names of resources made from the columns of a row.
 *
 * 'workitem:{id}' is a template: {id} stands for the value of a column, {{ and
 * }} for braces. Columns go by their names, which survive a dump, and not by
 * their numbers, which do not.
 *
 * Everybody has to come to the same name, whatever the settings of the session.
 * So a value is written as in value::text, but numbers without trailing zeros,
 * dates and times as in ISO 8601 and in UTC; types whose text depends on
 * settings are refused.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/datetime.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/numeric.h"
#include "utils/rel.h"

#include "compat.h"
#include "lease_lock.h"
#include "template.h"

/* Some text, and the column behind it. */
typedef struct TemplatePart
{
	char	   *literal;
	int			literal_length;
	AttrNumber	column;			/* 0: none, the template ends here */
	Oid			type;			/* of the column; ANYENUMOID for any enum */
	bool		byval;
	int16		typlen;
	Datum		last;			/* value of the row that is remembered */
} TemplatePart;

struct Template
{
	Relation	table;
	bool		remembers;		/* a row, by its values */
	int			nparts;
	TemplatePart parts[FLEXIBLE_ARRAY_MEMBER];
};

static void
refuse_syntax(const char *text, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("lease template \"%s\" is not valid: %s", text, problem),
			 errhint("Name the resource like 'workitem:{id}', with names of columns in braces; "
					 "{{ and }} stand for braces.")));
}

/* Which of the types below is it? Invalid: none of them. */
static Oid
printable_type(Oid type)
{
	type = getBaseType(type);

	switch (type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case OIDOID:
		case NUMERICOID:
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case NAMEOID:
		case BOOLOID:
		case UUIDOID:
		case DATEOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			return type;
		default:
			return type_is_enum(type) ? ANYENUMOID : InvalidOid;
	}
}

static void
append_value(StringInfo buffer, Datum value, Oid type)
{
	static const int utc = 0;
	char		digits[MAXDATELEN + 1];

	switch (type)
	{
		case INT2OID:
			pg_itoa(DatumGetInt16(value), digits);
			appendStringInfoString(buffer, digits);
			break;
		case INT4OID:
			pg_ltoa(DatumGetInt32(value), digits);
			appendStringInfoString(buffer, digits);
			break;
		case INT8OID:
			pg_lltoa(DatumGetInt64(value), digits);
			appendStringInfoString(buffer, digits);
			break;
		case OIDOID:
			appendStringInfo(buffer, "%u", DatumGetObjectId(value));
			break;
		case NUMERICOID:
			appendStringInfoString(buffer, numeric_normalize(DatumGetNumeric(value)));
			break;
		case TEXTOID:
		case VARCHAROID:
			{
				text	   *string = DatumGetTextPP(value);

				appendBinaryStringInfo(buffer, VARDATA_ANY(string), VARSIZE_ANY_EXHDR(string));
			}
			break;
		case BPCHAROID:
			{
				BpChar	   *string = DatumGetBpCharPP(value);

				appendBinaryStringInfo(buffer, VARDATA_ANY(string),
									   bpchartruelen(VARDATA_ANY(string), VARSIZE_ANY_EXHDR(string)));
			}
			break;
		case NAMEOID:
			appendStringInfoString(buffer, NameStr(*DatumGetName(value)));
			break;
		case BOOLOID:
			appendStringInfoString(buffer, DatumGetBool(value) ? "true" : "false");
			break;
		case UUIDOID:
			appendStringInfoString(buffer, OidOutputFunctionCall(F_UUID_OUT, value));
			break;
		case ANYENUMOID:
			appendStringInfoString(buffer, OidOutputFunctionCall(F_ENUM_OUT, value));
			break;
		default:
			appendStringInfoString(buffer, JsonEncodeDateTime(digits, value, type, &utc));
	}
}

/* Find a column that a part of a template names. */
static void
resolve_column(const char *text, Relation table, const char *name, TemplatePart *part)
{
	TupleDesc	desc = RelationGetDescr(table);
	AttrNumber	number = get_attnum(RelationGetRelid(table), name);
	Form_pg_attribute column;

	if (number == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of lease template \"%s\" does not exist in table \"%s\"",
						name, text, RelationGetRelationName(table)),
				 errhint("Write the column's name as it is stored, without quotes. "
						 "After a column was renamed, call lease_unprotect() and lease_protect().")));
	if (number < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_COLUMN_REFERENCE),
				 errmsg("column \"%s\" of lease template \"%s\" is a system column", name, text),
				 errhint("Use columns that identify the row.")));

	column = TupleDescAttr(desc, number - 1);
	if (column->attgenerated != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_COLUMN_REFERENCE),
				 errmsg("column \"%s\" of lease template \"%s\" is a generated column", name, text),
				 errdetail("It is computed after the lease is looked at."),
				 errhint("Use the columns that it is computed from.")));

	part->column = number;
	part->byval = column->attbyval;
	part->typlen = column->attlen;
	part->type = printable_type(column->atttypid);
	if (!OidIsValid(part->type))
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of lease template \"%s\" has type %s, which cannot name a resource",
						name, text, format_type_be(column->atttypid)),
				 errdetail("Its text could depend on settings of the session."),
				 errhint("Use columns of an integer, text, uuid, numeric, boolean, date, timestamp or enum type.")));
}

/*
 * Parse a template for a table, in the current memory context. The table has
 * to remain open as long as the result is used.
 */
Template *
template_for_table(const char *text, Relation table)
{
	/* Every part but the last has two braces. */
	Template   *template = palloc0(offsetof(Template, parts) +
								   (strlen(text) / 2 + 1) * sizeof(TemplatePart));
	StringInfoData literal;

	if (text[0] == '\0')
		refuse_syntax(text, "it is empty");

	template->table = table;
	initStringInfo(&literal);

	for (const char *c = text;; c++)
	{
		TemplatePart *part = &template->parts[template->nparts];
		const char *end;

		if (*c == '\0' || (*c == '{' && c[1] != '{'))
		{
			part->literal = pstrdup(literal.data);
			part->literal_length = literal.len;
			resetStringInfo(&literal);
			template->nparts++;
			if (*c == '\0')
				break;

			end = c + 1 + strcspn(c + 1, "{}");
			if (*end != '}')
				refuse_syntax(text, "a brace is not closed");
			if (end == c + 1)
				refuse_syntax(text, "no column is named between braces");
			resolve_column(text, table, pnstrdup(c + 1, end - c - 1), part);
			c = end;
			continue;
		}
		if (*c == '}' && c[1] != '}')
			refuse_syntax(text, "a brace is closed that was not opened");
		if (*c == '{' || *c == '}')
			c++;
		appendStringInfoChar(&literal, *c);
	}

	pfree(literal.data);
	return template;
}

/*
 * Make the name of the resource that a row belongs to. The result is in the
 * buffer, and good until that is used again.
 */
text *
template_fill(const Template *template, TupleTableSlot *row, StringInfo buffer)
{
	static const char header[VARHDRSZ] = {0};
	int			length;

	resetStringInfo(buffer);
	appendBinaryStringInfo(buffer, header, VARHDRSZ);

	for (int i = 0; i < template->nparts; i++)
	{
		const TemplatePart *part = &template->parts[i];
		Datum		value;
		bool		isnull;

		appendBinaryStringInfo(buffer, part->literal, part->literal_length);
		if (part->column == 0)
			break;

		value = slot_getattr(row, part->column, &isnull);
		if (isnull)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("column \"%s\" of protected table \"%s\" must not be null",
							NameStr(TupleDescAttr(RelationGetDescr(template->table), part->column - 1)->attname),
							RelationGetRelationName(template->table)),
					 errdetail("It is part of the name of the row's lease.")));
		append_value(buffer, value, part->type);
	}

	length = buffer->len - VARHDRSZ;
	if (length == 0 || length > MAX_NAME_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("name of the lease for a row of protected table \"%s\" has %d bytes",
						RelationGetRelationName(template->table), length),
				 errdetail("The resource of a lease has 1 to %d bytes.", MAX_NAME_LENGTH),
				 errhint("Use a template with shorter columns.")));

	SET_VARSIZE(buffer->data, buffer->len);
	return (text *) buffer->data;
}

/* Is the name the same for both, judged by the values that it is made of? */
bool
template_unchanged(const Template *template, TupleTableSlot *old_row, TupleTableSlot *new_row)
{
	for (int i = 0; i < template->nparts && template->parts[i].column != 0; i++)
	{
		const TemplatePart *part = &template->parts[i];
		bool		old_isnull;
		bool		new_isnull;
		Datum		old_value = slot_getattr(old_row, part->column, &old_isnull);
		Datum		new_value = slot_getattr(new_row, part->column, &new_isnull);

		if (old_isnull || new_isnull ||
			!datum_image_eq(old_value, new_value, part->byval, part->typlen))
			return false;
	}
	return true;
}

/*
 * Remember the values of a row, to know one of the same name sooner than by
 * making the name. Only of templates whose values need no memory.
 */
void
template_remember(Template *template, TupleTableSlot *row)
{
	template->remembers = false;
	for (int i = 0; i < template->nparts && template->parts[i].column != 0; i++)
	{
		TemplatePart *part = &template->parts[i];
		bool		isnull;

		if (!part->byval)
			return;
		part->last = slot_getattr(row, part->column, &isnull);
	}
	template->remembers = true;
}

/* Has the row the values that are remembered? */
bool
template_is_remembered(const Template *template, TupleTableSlot *row)
{
	if (!template->remembers)
		return false;

	for (int i = 0; i < template->nparts && template->parts[i].column != 0; i++)
	{
		const TemplatePart *part = &template->parts[i];
		bool		isnull;

		if (slot_getattr(row, part->column, &isnull) != part->last || isnull)
			return false;
	}
	return true;
}
