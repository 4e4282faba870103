/*-------------------------------------------------------------------------
 *
 * load.c
 *		Puts load on a lock service, and prints calls per second and latencies.
 *
 * usage: load SERVICE WORKLOAD CLIENTS SECONDS
 *
 * Prints one line: rate, 50th and 99th percentile of the latency in
 * microseconds. What the rate counts depends on the workload:
 *
 *		noop		calls that do nothing
 *		pair		acquire, then release, of a resource that nobody else uses
 *		refused		tries on a resource that somebody else holds
 *		batch		acquire, then release, of 100 resources; counts resources
 *		renew		renewal of 100 resources; counts resources
 *		handoff		grants of one resource for which all clients wait, each to
 *					another client than before; the latency is from before the
 *					release is sent until the grant has arrived
 *
 *-------------------------------------------------------------------------
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "service.h"

/* Resources of each client in the workload "pair": 64 clients use 1,024. */
#define RESOURCES_PER_CLIENT	16

/* Latencies are counted in buckets: 64 for each power of two, from 1 microsecond. */
#define BUCKETS_PER_OCTAVE		64
#define OCTAVES					26

typedef struct Client
{
	pthread_t	thread;
	int			number;
	void	   *conn;
	unsigned	random;
	char		batch[BATCH][NAME_LENGTH];
	uint64_t	count;			/* what the rate is of */
	uint64_t	histogram[OCTAVES * BUCKETS_PER_OCTAVE];
} Client;

/* One step of a workload; returns the number of nanoseconds to count, or 0 for none. */
typedef int64_t (*Step) (Client *client);

typedef struct Workload
{
	const char *name;
	Step		step;
	int			weight;			/* what one step adds to the rate */
} Workload;

static const Service *const services[] = {
	&postgres_lease, &postgres_lease_all, &postgres_advisory, &postgres_row,
	&redis_polled, &redis_blpop, &etcd, &zookeeper
};

static const Service *service;
static const Workload *workload;
static pthread_barrier_t start;
static atomic_bool counting;
static atomic_bool stopped;
static atomic_llong released_at;
static atomic_int last_holder = -1;

void
fail(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	fprintf(stderr, "load: %s: ", service ? service->name : "");
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

static int64_t
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

static int
bucket_of(int64_t nanoseconds)
{
	double		usecs = nanoseconds / 1000.0;
	int			octave = 0;
	int			place;

	while (usecs >= 2 && octave < OCTAVES - 1)
	{
		usecs /= 2;
		octave++;
	}
	place = (int) ((usecs - 1) * BUCKETS_PER_OCTAVE);
	place = place < 0 ? 0 : place >= BUCKETS_PER_OCTAVE ? BUCKETS_PER_OCTAVE - 1 : place;
	return octave * BUCKETS_PER_OCTAVE + place;
}

/* The latency in microseconds that this share of the counted steps did not exceed. */
static double
percentile(const uint64_t *histogram, uint64_t total, double share)
{
	uint64_t	seen = 0;

	for (int i = 0; i < OCTAVES * BUCKETS_PER_OCTAVE; i++)
	{
		seen += histogram[i];
		if (seen > 0 && seen >= share * total)
			return (double) (1ULL << (i / BUCKETS_PER_OCTAVE)) *
				(1 + (i % BUCKETS_PER_OCTAVE + 1.0) / BUCKETS_PER_OCTAVE);
	}
	return 0;
}

static int64_t
noop(Client *client)
{
	int64_t		begun = now();

	service->noop(client->conn);
	return now() - begun;
}

static int64_t
pair(Client *client)
{
	char		resource[NAME_LENGTH];
	int64_t		begun;

	snprintf(resource, NAME_LENGTH, "bench-%d",
			 client->number * RESOURCES_PER_CLIENT + rand_r(&client->random) % RESOURCES_PER_CLIENT);
	begun = now();
	if (!service->acquire(client->conn, resource))
		fail("\"%s\" was refused, although nobody else uses it", resource);
	service->release(client->conn, resource);
	return now() - begun;
}

static int64_t
refused(Client *client)
{
	int64_t		begun = now();

	if (service->acquire(client->conn, "bench-held"))
		fail("a try was granted, although the resource is held");
	return now() - begun;
}

static int64_t
batch(Client *client)
{
	int64_t		begun = now();

	service->acquire_batch(client->conn, client->batch);
	service->release_batch(client->conn, client->batch);
	return now() - begun;
}

static int64_t
renew(Client *client)
{
	int64_t		begun = now();

	service->renew_batch(client->conn, client->batch);
	return now() - begun;
}

static int64_t
handoff(Client *client)
{
	int64_t		latency = 0;

	service->wait(client->conn, "bench-handoff");
	if (atomic_exchange(&last_holder, client->number) != client->number)
		latency = now() - atomic_load(&released_at);
	atomic_store(&released_at, now());
	service->release(client->conn, "bench-handoff");
	return latency;
}

static const Workload workloads[] = {
	{"noop", noop, 1}, {"pair", pair, 1}, {"refused", refused, 1},
	{"batch", batch, BATCH}, {"renew", renew, BATCH}, {"handoff", handoff, 1}
};

static void *
run_client(void *arg)
{
	Client	   *client = arg;

	if (workload->step == renew)
		service->acquire_batch(client->conn, client->batch);
	pthread_barrier_wait(&start);
	while (!atomic_load(&stopped))
	{
		int64_t		latency = workload->step(client);

		if (latency > 0 && atomic_load(&counting) && !atomic_load(&stopped))
		{
			client->histogram[bucket_of(latency)]++;
			client->count += workload->weight;
		}
	}
	return NULL;
}

static void
open_clients(Client *clients, int count)
{
	for (int i = 0; i < count; i++)
	{
		Client	   *client = &clients[i];

		client->number = i;
		client->random = i + 1;
		client->conn = service->open(i);
		for (int j = 0; j < BATCH; j++)
			snprintf(client->batch[j], NAME_LENGTH, "batch-%d-%d", i, j);
	}
}

/* Let all clients run, count for so many seconds, and return the seconds that passed. */
static double
measure(Client *clients, int count, double seconds)
{
	struct timespec warm_up = {.tv_nsec = 300000000};
	struct timespec length = {.tv_sec = (time_t) seconds, .tv_nsec = (long) ((seconds - (time_t) seconds) * 1e9)};
	int64_t		begun;
	int64_t		ended;

	pthread_barrier_init(&start, NULL, count + 1);
	atomic_store(&released_at, now());
	for (int i = 0; i < count; i++)
		if (pthread_create(&clients[i].thread, NULL, run_client, &clients[i]) != 0)
			fail("no thread");
	pthread_barrier_wait(&start);
	nanosleep(&warm_up, NULL);
	begun = now();
	atomic_store(&counting, true);
	nanosleep(&length, NULL);
	ended = now();
	atomic_store(&stopped, true);
	for (int i = 0; i < count; i++)
		pthread_join(clients[i].thread, NULL);
	return (ended - begun) / 1e9;
}

static void
report(const Client *clients, int count, double seconds)
{
	static uint64_t histogram[OCTAVES * BUCKETS_PER_OCTAVE];
	uint64_t	steps = 0;
	uint64_t	counted = 0;

	for (int i = 0; i < count; i++)
	{
		counted += clients[i].count;
		for (int j = 0; j < OCTAVES * BUCKETS_PER_OCTAVE; j++)
		{
			histogram[j] += clients[i].histogram[j];
			steps += clients[i].histogram[j];
		}
	}
	printf("%.1f %.0f %.0f\n", counted / seconds, percentile(histogram, steps, 0.5), percentile(histogram, steps, 0.99));
}

static void
parse_arguments(char **argv)
{
	for (size_t i = 0; i < sizeof(services) / sizeof(services[0]); i++)
		if (strcmp(argv[1], services[i]->name) == 0)
			service = services[i];
	for (size_t i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++)
		if (strcmp(argv[2], workloads[i].name) == 0)
			workload = &workloads[i];
	if (!service || !workload)
		fail("no such service or workload: %s %s", argv[1], argv[2]);
}

int
main(int argc, char **argv)
{
	Client	   *clients;
	void	   *holder = NULL;
	int			count;

	if (argc != 5)
		fail("usage: load SERVICE WORKLOAD CLIENTS SECONDS");
	parse_arguments(argv);
	count = atoi(argv[3]);
	clients = calloc(count, sizeof(Client));
	if (workload->step == refused)
	{
		holder = service->open(count);
		if (!service->acquire(holder, "bench-held"))
			fail("the resource of the workload \"refused\" is held by somebody else");
	}
	open_clients(clients, count);
	report(clients, count, measure(clients, count, atof(argv[4])));
	if (workload->step == renew)
		for (int i = 0; i < count; i++)
			service->release_batch(clients[i].conn, clients[i].batch);
	for (int i = 0; i < count; i++)
		service->close(clients[i].conn);
	if (holder)
	{
		service->release(holder, "bench-held");
		service->close(holder);
	}
	return 0;
}
