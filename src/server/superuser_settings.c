/*-------------------------------------------------------------------------
 *
 * superuser_settings.c
 *		Settings that only a superuser may change.
 *
 * If the library is preloaded, the server protects these settings. If it is
 * not, they are undefined placeholders until the first call loads the library.
 * A value that a session without the privilege asked for when it connected is
 * then dropped. But that value had already replaced the one that ALTER ROLE or
 * ALTER DATABASE gave to the session, so that one is lost, too. The caller
 * must know when this has happened.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc.h"
#include "utils/guc_tables.h"

#include "server/server.h"

/* Which source gave the setting its value when the session began? */
static GucSource
first_source(const char *name)
{
	struct config_generic *setting = find_option(name, false, true, LOG);

	return setting != NULL ? setting->reset_source : PGC_S_DEFAULT;
}

/*
 * Define the settings of these names. Returns true if the connection asked for
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
	return hidden;
}
