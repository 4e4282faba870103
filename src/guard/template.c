/*-------------------------------------------------------------------------
 *
 * template.c
 *		Names of resources made from the columns of a row.
 *
 * In the template 'workitem:{id}', {id} stands for the value of a column. {{
 * and }} stand for braces. Columns are named, because names survive a dump and
 * column numbers do not.
 *
 * All sessions must build the same name, whatever their settings. So a value
 * is written as in value::text, but numbers without trailing zeros, and dates
 * and times as in ISO 8601 and in UTC. Types whose text depends on settings
 * are refused.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/numeric.h"
#include "utils/rel.h"

#include "guard/guard.h"

/* Maximum length of a template, in bytes: far more than a name has that is made from it. */
#define MAX_TEMPLATE_LENGTH	(10 * MAX_NAME_LENGTH)

/* Some text, and the column behind it. */
typedef struct TemplatePart
{
	int			literal;		/* offset in the template's text */
	int			literal_length;
	AttrNumber	column;			/* 0: none */
	Oid			type;			/* of the column; ANYENUMOID for any enum */
	Datum		value;			/* in the row whose name was built last */
} TemplatePart;

struct Template
{
	const char *text;
	Relation	table;
	StringInfoData name;		/* that was built last */
	bool		by_value;		/* the values of all columns can be kept and compared as they are */
	int			nparts;
	TemplatePart parts[FLEXIBLE_ARRAY_MEMBER];
};

pg_noreturn static void
refuse_syntax(const char *text, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("lease template \"%s\" is not valid: %s", printable_string(text), problem),
			 errhint("%s", TEMPLATE_HINT)));
}

/* The type by which append_value() writes a value; InvalidOid for an unsupported type. */
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
	Oid			output;
	bool		is_varlena;
	text	   *string;
	int			length;

	switch (type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
			/* Not by the output function: keys are integers, and this runs for each row. */
			enlargeStringInfo(buffer, MAXINT8LEN + 1);
			buffer->len += pg_lltoa(type == INT8OID ? DatumGetInt64(value) :
									type == INT4OID ? DatumGetInt32(value) : DatumGetInt16(value),
									buffer->data + buffer->len);
			break;
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
			string = DatumGetTextPP(value);
			length = VARSIZE_ANY_EXHDR(string);
			appendBinaryStringInfo(buffer, VARDATA_ANY(string),
								   type == BPCHAROID ? bpchartruelen(VARDATA_ANY(string), length) :
								   length);
			break;
		case NUMERICOID:
			appendStringInfoString(buffer, numeric_normalize(DatumGetNumeric(value)));
			break;
		case BOOLOID:
			appendStringInfoString(buffer, DatumGetBool(value) ? "true" : "false");
			break;
		case DATEOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			appendStringInfoString(buffer, JsonEncodeDateTime(digits, value, type, &utc));
			break;
		default:
			getTypeOutputInfo(type, &output, &is_varlena);
			appendStringInfoString(buffer, OidOutputFunctionCall(output, value));
	}
}

/* Find a column that a part of a template names. */
static void
resolve_column(Template *template, const char *name, TemplatePart *part)
{
	const char *text = template->text;
	Relation	table = template->table;
	AttrNumber	number = get_attnum(RelationGetRelid(table), name);
	Form_pg_attribute column;

	if (number == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of lease template \"%s\" does not exist in table \"%s\"",
						printable_string(name), printable_string(text),
						RelationGetRelationName(table)),
				 errhint("Write the column's name as it is stored, without quotes. "
						 "After a column was renamed, call lease_unprotect() and "
						 "lease_protect().")));
	if (number < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_COLUMN_REFERENCE),
				 errmsg("column \"%s\" of lease template \"%s\" is a system column", name,
						printable_string(text)),
				 errhint("Use columns that identify the row.")));

	column = TupleDescAttr(RelationGetDescr(table), number - 1);
	if (column->attgenerated != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_COLUMN_REFERENCE),
				 errmsg("column \"%s\" of lease template \"%s\" is a generated column", name,
						printable_string(text)),
				 errdetail("Its value is computed after the trigger has checked the lease."),
				 errhint("Use the columns that it is computed from.")));

	part->column = number;
	part->type = printable_type(column->atttypid);
	template->by_value &= column->attbyval && part->type != ANYENUMOID; /* a label can be renamed */
	if (!OidIsValid(part->type))
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of lease template \"%s\" has type %s, which cannot name a "
						"resource",
						name, printable_string(text), format_type_be(column->atttypid)),
				 errdetail("Its text could depend on settings of the session."),
				 errhint("Use columns of an integer, text, uuid, numeric, boolean, date, timestamp "
						 "or enum type.")));
}

/*
 * Parse a template for a table, in the current memory context. The text and
 * the table must last as long as the result is used.
 */
Template *
template_for_table(const char *text, Relation table)
{
	Template   *template;
	TemplatePart *part;
	size_t		length = strlen(text);

	if (length == 0)
		refuse_syntax(text, "it is empty");
	if (length > (size_t) MAX_TEMPLATE_LENGTH)
		refuse_syntax(text, psprintf("it has more than %d bytes", MAX_TEMPLATE_LENGTH));

	/* Every part but the last has two braces. */
	template = palloc0(offsetof(Template, parts) + (length / 2 + 1) * sizeof(TemplatePart));
	part = template->parts;
	template->text = text;
	template->table = table;
	template->by_value = true;
	initStringInfo(&template->name);
	for (const char *c = text; *c != '\0'; part++)
	{
		part->literal = c - text;
		part->literal_length = strcspn(c, "{}");
		c += part->literal_length;
		if (*c == '\0')
			continue;

		if (*c == c[1])
		{
			/* A doubled brace: the first is text, the second is skipped. */
			part->literal_length++;
			c += 2;
		}
		else if (*c == '}')
			refuse_syntax(text, "closing brace without an opening brace");
		else
		{
			int			name_length = strcspn(c + 1, "{}");

			if (c[1 + name_length] != '}')
				refuse_syntax(text, "opening brace without a closing brace");
			if (name_length == 0)
				refuse_syntax(text, "no column between braces");
			resolve_column(template, pnstrdup(c + 1, name_length), part);
			c += name_length + 2;
		}
	}

	template->nparts = part - template->parts;
	return template;
}

/* May errors show the name that is built from a row's values? */
bool
template_is_visible(const Template *template)
{
	for (int i = 0; i < template->nparts; i++)
		if (template->parts[i].column != 0 &&
			!column_is_visible(template->table, template->parts[i].column))
			return false;
	return true;
}

/* Is the name that was built last known to be that of this row, too? */
bool
template_is_filled(const Template *template, TupleTableSlot *row)
{
	if (!template->by_value || template->name.len == 0)
		return false;
	for (int i = 0; i < template->nparts; i++)
	{
		bool		isnull;

		if (template->parts[i].column != 0 &&
			(slot_getattr(row, template->parts[i].column, &isnull) != template->parts[i].value ||
			 isnull))
			return false;
	}
	return true;
}

/* Get the name of the resource that a row belongs to. It is valid until the next call. */
text *
template_fill(Template *template, TupleTableSlot *row)
{
	StringInfo	name = &template->name;
	int			length;

	if (template_is_filled(template, row))
		return (text *) name->data;

	resetStringInfo(name);
	name->len = VARHDRSZ;
	for (int i = 0; i < template->nparts; i++)
	{
		TemplatePart *part = &template->parts[i];
		bool		isnull;

		appendBinaryStringInfo(name, template->text + part->literal, part->literal_length);
		if (part->column == 0)
			continue;

		part->value = slot_getattr(row, part->column, &isnull);
		if (isnull)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("column \"%s\" of protected table \"%s\" must not be null",
							NameStr(TupleDescAttr(RelationGetDescr(template->table),
												  part->column - 1)->attname),
							RelationGetRelationName(template->table)),
					 errdetail("It is part of the name of the row's lease."),
					 errhint("Give the column a value.")));
		append_value(name, part->value, part->type);
	}

	length = name->len - VARHDRSZ;
	if (length == 0 || length > MAX_NAME_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 template_is_visible(template) ?
				 errmsg("name of the lease for a row of protected table \"%s\" has %d bytes",
						RelationGetRelationName(template->table), length) :
				 errmsg("name of the lease for a row of protected table \"%s\" is too short or too "
						"long",
						RelationGetRelationName(template->table)),
				 errdetail("The resource of a lease has 1 to %d bytes.", MAX_NAME_LENGTH),
				 errhint("Use a template with shorter columns.")));

	SET_VARSIZE(name->data, name->len);
	return (text *) name->data;
}
