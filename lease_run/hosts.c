/*-------------------------------------------------------------------------
 *
 * hosts.c
 *		The addresses to connect to, in order; processes for calls that wait.
 *
 * All hosts of the connection string, and all addresses of their names, are one
 * list. libpq gets one address at a time, so that each has a limit of its own,
 * and one that was silent goes to the end of the list. libpq would ask the name
 * server in a call that waits as long as that one likes. So a process of its own
 * asks it; if it does not answer in time, the addresses of the last time count.
 *
 *-------------------------------------------------------------------------
 */
#include "lease_run.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* A helper ends by itself after this time, in seconds. */
#define HELPER_LIMIT	60

/* What the process that asks the name server has found out. */
typedef struct Answer
{
	Address		address;
	char		error[128];		/* empty: there is an address */
} Answer;

/* Start a process for a call that waits. Without one left, pid is 0. */
Helper
helper_start(void (*work) (void *arg, int fd), void *arg)
{
	Helper		helper = {.pid = 0, .fd = -1};
	int			fds[2];

	if (pipe(fds) < 0)
		return helper;
	fcntl(fds[0], F_SETFD, FD_CLOEXEC);
	fcntl(fds[1], F_SETFD, FD_CLOEXEC);
	helper.pid = signals_fork();
	if (helper.pid == 0)
	{
		close(fds[0]);
#ifdef __linux__
		prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
		signals_as_found();
		(void) signal(SIGALRM, SIG_DFL);
		alarm(HELPER_LIMIT);
		work(arg, fds[1]);
		_exit(0);
	}
	close(fds[1]);
	helper.fd = fds[0];
	if (helper.pid < 0)
	{
		close(helper.fd);
		helper = (Helper) {.pid = 0, .fd = -1};
	}
	return helper;
}

void
helper_end(Helper *helper)
{
	if (helper->pid > 0)
	{
		kill(helper->pid, SIGKILL);
		while (waitpid(helper->pid, NULL, 0) < 0 && errno == EINTR)
			;
		close(helper->fd);
	}
	*helper = (Helper) {.pid = 0, .fd = -1};
}

/*
 * The element of this number in a list "a,b,c". A single one is that of all hosts. One that is
 * empty has the default.
 */
static void
copy_element(char *to, size_t size, const char *list, int number, const char *if_empty)
{
	size_t		length;

	to[0] = '\0';
	if (list == NULL || list[0] == '\0')
		return;
	for (int i = 0; i < number && strchr(list, ',') != NULL; i++)
		list = strchr(list, ',') + 1;
	length = strcspn(list, ",");
	if (length == 0)
		strlcpy(to, if_empty, size);
	else
		strlcpy(to, list, Min(length + 1, size));
}

static int
list_length(const char *list)
{
	int			length = 1;

	for (; list != NULL && *list != '\0'; list++)
		length += *list == ',';
	return length;
}

/* Is it a name that has to be looked up, and not a folder of sockets or an address? */
static bool
is_name(const Address *spec)
{
	char		binary[sizeof(struct in6_addr)];

	return !spec->address[0] && spec->host[0] && spec->host[0] != '/' && spec->host[0] != '@' &&
		inet_pton(AF_INET, spec->host, binary) != 1 && inet_pton(AF_INET6, spec->host, binary) != 1;
}

/* Body of the process that asks the name server: writes all addresses. */
static void
look_up(void *arg, int fd)
{
	const Hosts *specs = arg;

	for (int i = 0; i < specs->n; i++)
	{
		struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
		struct addrinfo *all = NULL;
		Answer		answer = {.address = specs->list[i]};
		int			error = 0;

		if (is_name(&answer.address))
			error = getaddrinfo(answer.address.host, NULL, &hints, &all);
		if (error != 0)
			strlcpy(answer.error, gai_strerror(error), sizeof(answer.error));
		if (all == NULL)
			(void) !write(fd, &answer, sizeof(answer));
		for (struct addrinfo *one = all; one != NULL; one = one->ai_next)
		{
			if (getnameinfo(one->ai_addr, one->ai_addrlen, answer.address.address,
							sizeof(answer.address.address), NULL, 0, NI_NUMERICHOST) == 0)
				(void) !write(fd, &answer, sizeof(answer));
		}
	}
}

static bool
is_same(const Address *a, const Address *b)
{
	return strcmp(a->host, b->host) == 0 && strcmp(a->address, b->address) == 0 &&
		strcmp(a->port, b->port) == 0;
}

/* Add an address, once, behind those that were silent before it was, if it ever was. */
static void
add_address(Hosts *hosts, const Hosts *old, Address new)
{
	int			at = hosts->n;

	for (int i = 0; i < old->n; i++)
	{
		if (is_same(&old->list[i], &new))
			new.silent = old->list[i].silent;
	}
	for (int i = 0; i < hosts->n; i++)
	{
		if (is_same(&hosts->list[i], &new))
			return;
	}
	hosts->list = pg_realloc(hosts->list, (hosts->n + 1) * sizeof(Address));
	for (; at > 0 && hosts->list[at - 1].silent > new.silent; at--)
		hosts->list[at] = hosts->list[at - 1];
	hosts->list[at] = new;
	hosts->n++;
}

/* Add the addresses of the last time for a host that has none now. */
static void
add_old(Hosts *hosts, const Hosts *old)
{
	int			n = hosts->n;

	for (int i = 0; i < old->n; i++)
	{
		bool		has_new = false;

		for (int j = 0; j < n && !has_new; j++)
			has_new = strcmp(hosts->list[j].host, old->list[i].host) == 0;
		if (!has_new)
			add_address(hosts, old, old->list[i]);
	}
}

/* Add what the name server says by that time. */
static Outcome
ask_name_server(Hosts *hosts, const Hosts *old, Hosts *specs, Time until, StopWaiting stop)
{
	Helper		helper = helper_start(look_up, specs);
	int			helper_errno = errno;
	Answer		answer;
	Outcome		outcome;

	while ((outcome = wait_for_one(helper.fd, POLLIN, helper.pid > 0 ? until : 0, stop)) == DONE &&
		   read(helper.fd, &answer, sizeof(answer)) == sizeof(answer))
	{
		if (answer.error[0] == '\0')
			add_address(hosts, old, answer.address);
		else
			snprintf(hosts->error, sizeof(hosts->error),
					 "could not translate host name \"%s\" to address: %s", answer.address.host,
					 answer.error);
	}
	if (helper.pid == 0)
		snprintf(hosts->error, sizeof(hosts->error), "could not start a process: %s",
				 strerror(helper_errno));
	else if (outcome != DONE || (hosts->n == 0 && hosts->error[0] == '\0'))
		strlcpy(hosts->error, "the name server does not answer", sizeof(hosts->error));
	helper_end(&helper);
	return outcome;
}

/* Find the addresses of the hosts, which are given as in a connection string. */
Outcome
hosts_find(Hosts *hosts, const char *host, const char *address, const char *port, Time until,
		   StopWaiting stop)
{
	const Hosts none = {0};
	Hosts		specs = {0};
	Hosts		old = *hosts;
	bool		any_name = false;
	Outcome		outcome = DONE;

	*hosts = (Hosts) {.silences = old.silences};
	for (int i = 0; i < list_length(address ? address : host); i++)
	{
		Address		spec = {.silent = 0};

		copy_element(spec.host, sizeof(spec.host), host, i, DEFAULT_PGSOCKET_DIR);
		copy_element(spec.address, sizeof(spec.address), address, i, "");
		copy_element(spec.port, sizeof(spec.port), port, i, DEF_PGPORT_STR);
		any_name |= is_name(&spec);
		add_address(&specs, &none, spec);
	}
	for (int i = 0; i < specs.n && !any_name; i++)
		add_address(hosts, &old, specs.list[i]);
	if (any_name)
		outcome = ask_name_server(hosts, &old, &specs, until, stop);
	add_old(hosts, &old);
	free(specs.list);
	free(old.list);
	return outcome;
}

/* This one was silent: it goes to the end, until the next one is. */
void
hosts_silent(Hosts *hosts, const Address *address)
{
	hosts->silences++;
	for (int i = 0; i < hosts->n; i++)
	{
		if (is_same(&hosts->list[i], address))
			hosts->list[i].silent = hosts->silences;
	}
}
