/*-------------------------------------------------------------------------
 *
 * etcd.c
 *		etcd, by its HTTP gateway and libcurl.
 *
 * A lock is a key that a transaction creates if it does not exist, bound to a
 * lease that is granted before. A release revokes the lease, which deletes the
 * key. A wait uses etcd's own lock service. The gateway translates each call
 * to gRPC within the server; a client that speaks gRPC saves that.
 *
 * ETCD_URL names the server.
 *
 *-------------------------------------------------------------------------
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "service.h"

typedef struct Connection
{
	CURL	   *curl;
	struct curl_slist *headers;
	char		lease[NAME_LENGTH];
	char		key[4 * NAME_LENGTH];	/* of a lock that was waited for */
	char		answer[4096];
	size_t		length;
} Connection;

static size_t
keep_answer(char *data, size_t size, size_t count, void *arg)
{
	Connection *self = arg;
	size_t		added = size * count;

	if (self->length + added >= sizeof(self->answer))
		fail("an answer is too long");
	memcpy(self->answer + self->length, data, added);
	self->length += added;
	self->answer[self->length] = '\0';
	return added;
}

static const char *
call(Connection *self, const char *path, const char *body)
{
	char		url[256];
	CURLcode	code;
	long		status = 0;

	snprintf(url, sizeof(url), "%s%s", getenv("ETCD_URL"), path);
	self->length = 0;
	curl_easy_setopt(self->curl, CURLOPT_URL, url);
	curl_easy_setopt(self->curl, CURLOPT_POSTFIELDS, body);
	code = curl_easy_perform(self->curl);
	curl_easy_getinfo(self->curl, CURLINFO_RESPONSE_CODE, &status);
	if (code != CURLE_OK || status != 200)
		fail("%s: %s, status %ld: %s", path, curl_easy_strerror(code), status, self->answer);
	return self->answer;
}

/* Copy the string value of a field of the answer. */
static void
get_field(const char *answer, const char *field, char *value, size_t size)
{
	char		start[NAME_LENGTH];
	const char *at;

	snprintf(start, sizeof(start), "\"%s\":\"", field);
	at = strstr(answer, start);
	if (!at)
		fail("no %s in %s", field, answer);
	at += strlen(start);
	snprintf(value, size, "%.*s", (int) strcspn(at, "\""), at);
}

static void
to_base64(const char *name, char *encoded)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	size_t		length = strlen(name);

	for (size_t i = 0; i < length; i += 3)
	{
		unsigned	bits = (unsigned char) name[i] << 16;

		bits |= i + 1 < length ? (unsigned char) name[i + 1] << 8 : 0;
		bits |= i + 2 < length ? (unsigned char) name[i + 2] : 0;
		*encoded++ = digits[bits >> 18];
		*encoded++ = digits[bits >> 12 & 63];
		*encoded++ = i + 1 < length ? digits[bits >> 6 & 63] : '=';
		*encoded++ = i + 2 < length ? digits[bits & 63] : '=';
	}
	*encoded = '\0';
}

static void *
etcd_open(int client)
{
	Connection *self = calloc(1, sizeof(Connection));

	(void) client;
	self->curl = curl_easy_init();
	self->headers = curl_slist_append(NULL, "Content-Type: application/json");
	self->headers = curl_slist_append(self->headers, "Expect:");
	curl_easy_setopt(self->curl, CURLOPT_HTTPHEADER, self->headers);
	curl_easy_setopt(self->curl, CURLOPT_WRITEFUNCTION, keep_answer);
	curl_easy_setopt(self->curl, CURLOPT_WRITEDATA, self);
	curl_easy_setopt(self->curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(self->curl, CURLOPT_TCP_NODELAY, 1L);
	return self;
}

static void
etcd_close(void *conn)
{
	Connection *self = conn;

	curl_easy_cleanup(self->curl);
	curl_slist_free_all(self->headers);
	free(self);
}

static void
etcd_noop(void *conn)
{
	call(conn, "/v3/kv/range", "{\"key\":\"bm9uZQ==\",\"serializable\":true}");
}

static void
grant_lease(Connection *self)
{
	get_field(call(self, "/v3/lease/grant", "{\"TTL\":60}"), "ID", self->lease, NAME_LENGTH);
}

static void
revoke_lease(Connection *self)
{
	char		body[256];

	snprintf(body, sizeof(body), "{\"ID\":\"%s\"}", self->lease);
	call(self, "/v3/lease/revoke", body);
}

static bool
etcd_try(void *conn, const char *resource)
{
	Connection *self = conn;
	char		key[2 * NAME_LENGTH];
	char		body[1024];

	to_base64(resource, key);
	grant_lease(self);
	snprintf(body, sizeof(body),
			 "{\"compare\":[{\"key\":\"%s\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"}],"
			 "\"success\":[{\"request_put\":{\"key\":\"%s\",\"value\":\"eA==\",\"lease\":\"%s\"}}]}",
			 key, key, self->lease);
	if (strstr(call(self, "/v3/kv/txn", body), "\"succeeded\":true"))
		return true;
	revoke_lease(self);
	return false;
}

static void
etcd_release(void *conn, const char *resource)
{
	Connection *self = conn;
	char		body[512];

	(void) resource;
	if (self->key[0])
	{
		snprintf(body, sizeof(body), "{\"key\":\"%s\"}", self->key);
		call(self, "/v3/lock/unlock", body);
		self->key[0] = '\0';
	}
	else
		revoke_lease(self);
}

static void
etcd_wait(void *conn, const char *resource)
{
	Connection *self = conn;
	char		name[2 * NAME_LENGTH];
	char		body[512];

	if (!self->lease[0])
		grant_lease(self);
	to_base64(resource, name);
	snprintf(body, sizeof(body), "{\"name\":\"%s\",\"lease\":\"%s\"}", name, self->lease);
	get_field(call(self, "/v3/lock/lock", body), "key", self->key, sizeof(self->key));
}

const Service etcd = {
	.name = "etcd", .open = etcd_open, .close = etcd_close, .noop = etcd_noop,
	.acquire = etcd_try, .wait = etcd_wait, .release = etcd_release
};
