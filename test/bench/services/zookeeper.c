/*-------------------------------------------------------------------------
 *
 * zookeeper.c
 *		ZooKeeper, by its C client: the lock recipe of its documentation.
 *
 * A client creates an ephemeral sequential node below the resource's node. It
 * has the lock if its node is the first. Otherwise a try deletes its node
 * again, and a waiter watches the node before its own.
 *
 * ZOOKEEPER_HOST names the server.
 *
 *-------------------------------------------------------------------------
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zookeeper/zookeeper.h>

#include "service.h"

typedef struct Connection
{
	zhandle_t  *handle;
	char		node[4 * NAME_LENGTH];
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	bool		fired;
} Connection;

static void
check(int code, const char *what)
{
	if (code != ZOK)
		fail("%s: %s", what, zerror(code));
}

static void *
zk_open(int client)
{
	Connection *self = calloc(1, sizeof(Connection));

	(void) client;
	zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
	pthread_mutex_init(&self->mutex, NULL);
	pthread_cond_init(&self->changed, NULL);
	self->handle = zookeeper_init(getenv("ZOOKEEPER_HOST"), NULL, 60000, NULL, self, 0);
	for (int i = 0; i < 1000 && self->handle && zoo_state(self->handle) != ZOO_CONNECTED_STATE; i++)
		usleep(10000);
	if (!self->handle || zoo_state(self->handle) != ZOO_CONNECTED_STATE)
		fail("no connection");
	return self;
}

static void
zk_close(void *conn)
{
	zookeeper_close(((Connection *) conn)->handle);
	free(conn);
}

static void
zk_noop(void *conn)
{
	check(zoo_exists(((Connection *) conn)->handle, "/", 0, NULL), "exists");
}

/* Create our node, and the node of the resource when it does not exist yet. */
static void
create_node(Connection *self, const char *resource)
{
	char		path[2 * NAME_LENGTH];
	int			code;

	snprintf(path, sizeof(path), "/%s/n-", resource);
	code = zoo_create(self->handle, path, NULL, -1, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL | ZOO_SEQUENCE,
					  self->node, sizeof(self->node));
	if (code == ZNONODE)
	{
		snprintf(path, sizeof(path), "/%s", resource);
		code = zoo_create(self->handle, path, NULL, -1, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
		if (code != ZOK && code != ZNODEEXISTS)
			check(code, "create");
		create_node(self, resource);
		return;
	}
	check(code, "create");
}

/* Find the node that comes right before ours; false if ours is the first. */
static bool
find_previous(Connection *self, const char *resource, char *previous, size_t size)
{
	struct String_vector children;
	const char *own = strrchr(self->node, '/') + 1;
	const char *best = NULL;
	char		path[2 * NAME_LENGTH];

	snprintf(path, sizeof(path), "/%s", resource);
	check(zoo_get_children(self->handle, path, 0, &children), "children");
	for (int i = 0; i < children.count; i++)
		if (strcmp(children.data[i], own) < 0 && (!best || strcmp(children.data[i], best) > 0))
			best = children.data[i];
	if (best)
		snprintf(previous, size, "/%s/%s", resource, best);
	deallocate_String_vector(&children);
	return best != NULL;
}

static void
zk_release(void *conn, const char *resource)
{
	Connection *self = conn;

	(void) resource;
	check(zoo_delete(self->handle, self->node, -1), "delete");
}

static bool
zk_try(void *conn, const char *resource)
{
	char		previous[4 * NAME_LENGTH];

	create_node(conn, resource);
	if (!find_previous(conn, resource, previous, sizeof(previous)))
		return true;
	zk_release(conn, resource);
	return false;
}

static void
note_change(zhandle_t *handle, int type, int state, const char *path, void *arg)
{
	Connection *self = arg;

	(void) handle;
	(void) type;
	(void) state;
	(void) path;
	pthread_mutex_lock(&self->mutex);
	self->fired = true;
	pthread_cond_signal(&self->changed);
	pthread_mutex_unlock(&self->mutex);
}

static void
zk_wait(void *conn, const char *resource)
{
	Connection *self = conn;
	char		previous[4 * NAME_LENGTH];

	create_node(self, resource);
	while (find_previous(self, resource, previous, sizeof(previous)))
	{
		int			code;

		self->fired = false;
		code = zoo_wexists(self->handle, previous, note_change, self, NULL);
		if (code == ZNONODE)
		{
			/* The watch stays, for a node that is never created again. */
			continue;
		}
		check(code, "watch");
		pthread_mutex_lock(&self->mutex);
		while (!self->fired)
			pthread_cond_wait(&self->changed, &self->mutex);
		pthread_mutex_unlock(&self->mutex);
	}
}

const Service zookeeper = {
	.name = "zookeeper", .open = zk_open, .close = zk_close, .noop = zk_noop,
	.acquire = zk_try, .wait = zk_wait, .release = zk_release
};
