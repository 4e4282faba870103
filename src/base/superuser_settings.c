/*-------------------------------------------------------------------------
 *
 * superuser_settings.c
 *		Settings that only a superuser may change.
 *
 * Where the library is preloaded the server protects them. Where it is not,
 * they are nobody's until the first call loads it. A session that asked for a
 * value when it connected then loses that value, since it may not set it; but
 * the value that ALTER ROLE or ALTER DATABASE gave to the session was replaced
 * by it, and is lost, too. Whoever defines the settings has to know that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc.h"
#include "utils/guc_tables.h"

#include "base/compat.h"
#include "base/superuser_settings.h"

/* What decided on the value that a setting had when the session began? */
static GucSource
first_source(const char *name)
{
	struct config_generic *setting = find_option(name, false, true, LOG);

	return setting != NULL ? setting->reset_source : PGC_S_DEFAULT;
}

/*
 * Define the settings of these names. Returns whether the connection asked for
 * one of them without the privilege, and so hid the superuser's value.
 */
bool
define_superuser_settings(void (*define) (void), const char *const *names, int count)
{
	GucSource  *before = palloc(count * sizeof(GucSource));
	bool		hidden = false;

	for (int i = 0; i < count; i++)
		before[i] = first_source(names[i]);
	define();
	for (int i = 0; i < count; i++)
		if (before[i] == PGC_S_CLIENT && first_source(names[i]) == PGC_S_DEFAULT)
			hidden = true;

	pfree(before);
	return hidden;
}
