/*-------------------------------------------------------------------------
 *
 * redis.c
 *		Redis, by hiredis: the lock that its documentation describes.
 *
 * A lock is a key that SET ... NX PX creates with a value of its owner. Lua
 * scripts compare the value before they delete or extend the key. A waiter
 * tries again every 10 ms. With BLPOP, a waiter takes the only element of a
 * list, and a release pushes it back: such a lock has no ttl.
 *
 * REDIS_SOCKET names the server's socket.
 *
 *-------------------------------------------------------------------------
 */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "service.h"

#define RELEASE_SCRIPT "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"
#define RENEW_SCRIPT "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],60000) else return 0 end"

typedef struct Connection
{
	redisContext *context;
	char		owner[NAME_LENGTH];
	char		release[NAME_LENGTH];	/* digests of the scripts */
	char		renew[NAME_LENGTH];
} Connection;

static redisReply *
check(Connection *self, void *answer)
{
	redisReply *reply = answer;

	if (!reply || reply->type == REDIS_REPLY_ERROR)
		fail("%s", reply ? reply->str : self->context->errstr);
	return reply;
}

static void
load_script(Connection *self, const char *script, char *digest)
{
	redisReply *reply = check(self, redisCommand(self->context, "SCRIPT LOAD %s", script));

	snprintf(digest, NAME_LENGTH, "%s", reply->str);
	freeReplyObject(reply);
}

static void *
redis_open(int client)
{
	Connection *self = calloc(1, sizeof(Connection));

	self->context = redisConnectUnix(getenv("REDIS_SOCKET"));
	if (!self->context || self->context->err)
		fail("no connection");
	snprintf(self->owner, NAME_LENGTH, "client-%d", client);
	load_script(self, RELEASE_SCRIPT, self->release);
	load_script(self, RENEW_SCRIPT, self->renew);
	return self;
}

static void
redis_close(void *conn)
{
	redisFree(((Connection *) conn)->context);
	free(conn);
}

static void
redis_noop(void *conn)
{
	Connection *self = conn;

	freeReplyObject(check(self, redisCommand(self->context, "PING")));
}

static bool
redis_try(void *conn, const char *resource)
{
	Connection *self = conn;
	redisReply *reply = check(self, redisCommand(self->context, "SET %s %s NX PX 60000", resource, self->owner));
	bool		granted = reply->type == REDIS_REPLY_STATUS;

	freeReplyObject(reply);
	return granted;
}

static void
redis_release(void *conn, const char *resource)
{
	Connection *self = conn;
	redisReply *reply = check(self, redisCommand(self->context, "EVALSHA %s 1 %s %s", self->release, resource, self->owner));

	if (reply->integer != 1)
		fail("a release was refused");
	freeReplyObject(reply);
}

static void
redis_wait(void *conn, const char *resource)
{
	struct timespec pause = {.tv_nsec = 10000000};

	while (!redis_try(conn, resource))
		nanosleep(&pause, NULL);
}

/* Read the replies of a pipeline. */
static void
read_batch(Connection *self, bool counts)
{
	for (int i = 0; i < BATCH; i++)
	{
		void	   *answer = NULL;
		redisReply *reply;

		redisGetReply(self->context, &answer);
		reply = check(self, answer);
		if (counts ? reply->integer != 1 : reply->type != REDIS_REPLY_STATUS)
			fail("a call of the pipeline was refused");
		freeReplyObject(reply);
	}
}

static void
redis_acquire_batch(void *conn, char (*resources)[NAME_LENGTH])
{
	Connection *self = conn;

	for (int i = 0; i < BATCH; i++)
		redisAppendCommand(self->context, "SET %s %s NX PX 60000", resources[i], self->owner);
	read_batch(self, false);
}

static void
scripted_batch(Connection *self, const char *digest, char (*resources)[NAME_LENGTH])
{
	for (int i = 0; i < BATCH; i++)
		redisAppendCommand(self->context, "EVALSHA %s 1 %s %s", digest, resources[i], self->owner);
	read_batch(self, true);
}

static void
redis_renew_batch(void *conn, char (*resources)[NAME_LENGTH])
{
	scripted_batch(conn, ((Connection *) conn)->renew, resources);
}

static void
redis_release_batch(void *conn, char (*resources)[NAME_LENGTH])
{
	scripted_batch(conn, ((Connection *) conn)->release, resources);
}

static void
blpop_wait(void *conn, const char *resource)
{
	Connection *self = conn;
	redisReply *reply = check(self, redisCommand(self->context, "BLPOP list-%s 60", resource));

	if (reply->type != REDIS_REPLY_ARRAY)
		fail("a wait was refused");
	freeReplyObject(reply);
}

static void
blpop_release(void *conn, const char *resource)
{
	Connection *self = conn;

	freeReplyObject(check(self, redisCommand(self->context, "LPUSH list-%s free", resource)));
}

/* The first client puts the element into the list. */
static void *
blpop_open(int client)
{
	Connection *self = redis_open(client);

	if (client == 0)
	{
		freeReplyObject(check(self, redisCommand(self->context, "DEL list-bench-handoff")));
		blpop_release(self, "bench-handoff");
	}
	return self;
}

const Service redis_polled = {
	"redis", redis_open, redis_close, redis_noop, redis_try, redis_wait, redis_release,
	redis_acquire_batch, redis_renew_batch, redis_release_batch
};

const Service redis_blpop = {
	.name = "redis_blpop", .open = blpop_open, .close = redis_close, .noop = redis_noop,
	.wait = blpop_wait, .release = blpop_release
};
