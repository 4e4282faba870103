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
#include "postgres_fe.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "hosts.h"
#include "lib/stringinfo.h"
#include "options.h"

/* A helper ends by itself after this time, in seconds. */
#define HELPER_LIMIT	60

/*
 * Start a process for a call that waits. Without one left, pid is 0.
 */
Helper
helper_start(void (*work) (void *arg, int fd), void *arg)
{
	Helper		helper = {.pid = 0, .fd = -1};
	int			fds[2];
	sigset_t	mask;

	if (pipe(fds) < 0)
		return helper;
	fcntl(fds[0], F_SETFD, FD_CLOEXEC);
	fcntl(fds[1], F_SETFD, FD_CLOEXEC);
	(void) fflush(NULL);
	signals_block(&mask);
	helper.pid = fork();
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
	signals_restore(&mask);
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
 * The element of this number in a list "a,b,c". A single one is that of all hosts. The default if it is
 * empty. Allocated, or NULL.
 */
static char *
element(const char *list, int number, const char *if_empty)
{
	const char *end;

	if (list == NULL || list[0] == '\0')
		return NULL;
	for (int i = 0; i < number && strchr(list, ',') != NULL; i++)
		list = strchr(list, ',') + 1;
	end = strchr(list, ',');
	if (list[0] == '\0' || end == list)
		return if_empty ? pg_strdup(if_empty) : NULL;
	return end ? pnstrdup(list, end - list) : pg_strdup(list);
}

static int
list_length(const char *list)
{
	int			length = 1;

	for (; list != NULL && *list != '\0'; list++)
		length += *list == ',';
	return length;
}

/*
 * Is it a name that has to be looked up, and not a folder of sockets or an address?
 */
static bool
is_name(const Address *spec)
{
	char		binary[sizeof(struct in6_addr)];

	return spec->address == NULL && spec->host != NULL && spec->host[0] != '/' && spec->host[0] != '@' &&
		inet_pton(AF_INET, spec->host, binary) != 1 && inet_pton(AF_INET6, spec->host, binary) != 1;
}

/*
 * Body of the process that asks the name server: writes lines with the number of the host, and an address or "!" and an
 * error.
 */
static void
look_up(void *arg, int fd)
{
	const Hosts *specs = arg;

	for (int i = 0; i < specs->n; i++)
	{
		struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
		struct addrinfo *all = NULL;
		int			error;

		if (!is_name(&specs->list[i]))
			continue;
		error = getaddrinfo(specs->list[i].host, NULL, &hints, &all);
		if (error != 0)
			dprintf(fd, "%d !%s\n", i, gai_strerror(error));
		for (struct addrinfo *one = all; one != NULL; one = one->ai_next)
		{
			char		address[NI_MAXHOST];

			if (getnameinfo(one->ai_addr, one->ai_addrlen, address, sizeof(address), NULL, 0, NI_NUMERICHOST) == 0)
				dprintf(fd, "%d %s\n", i, address);
		}
	}
}

/*
 * What the name server says. The result is allocated.
 */
static WaitResult
ask_name_server(Hosts *specs, Time until, StopWaiting stop, char **lines)
{
	Helper		helper = helper_start(look_up, specs);
	StringInfoData text;
	char		buffer[4096];
	ssize_t		size = 1;
	WaitResult	result = WAIT_READY;

	initStringInfo(&text);
	while (helper.pid > 0 && size > 0 && result == WAIT_READY)
	{
		result = wait_for_one(helper.fd, POLLIN, until, stop);
		if (result == WAIT_READY && (size = read(helper.fd, buffer, sizeof(buffer))) > 0)
			appendBinaryStringInfo(&text, buffer, size);
	}
	helper_end(&helper);
	*lines = text.data;
	return result;
}

static bool
is_same(const char *a, const char *b)
{
	return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool
is_same_address(const Address *a, const Address *b)
{
	return is_same(a->host, b->host) && is_same(a->address, b->address) && is_same(a->port, b->port);
}

/*
 * Add an address, of the list that there was if it was in it.
 */
static void
add_address(Hosts *hosts, const Hosts *old, const Address *spec, const char *address)
{
	Address    *new;

	hosts->list = pg_realloc(hosts->list, (hosts->n + 1) * sizeof(Address));
	new = &hosts->list[hosts->n++];
	new->host = spec->host ? pg_strdup(spec->host) : NULL;
	new->address = address ? pg_strdup(address) : NULL;
	new->port = spec->port ? pg_strdup(spec->port) : NULL;
	new->silent = 0;
	for (int i = 0; i < old->n; i++)
	{
		if (is_same_address(&old->list[i], new))
			new->silent = old->list[i].silent;
	}
}

/*
 * Add the addresses of a name: those in the answer, or those of the last time.
 */
static void
add_name(Hosts *hosts, const Hosts *old, const Address *spec, int number, const char *lines)
{
	int			before = hosts->n;
	bool		no_answer;

	for (const char *line = lines; *line != '\0'; line = strchr(line, '\n') + 1)
	{
		char	   *rest;
		char	   *text;

		if (strchr(line, '\n') == NULL)
			break;
		if (strtol(line, &rest, 10) != number)
			continue;
		text = pnstrdup(rest + 1, strchr(line, '\n') - rest - 1);
		if (text[0] != '!')
			add_address(hosts, old, spec, text);
		else
		{
			free(hosts->error);
			hosts->error = psprintf("could not translate host name \"%s\" to address: %s", spec->host, text + 1);
		}
		free(text);
	}
	no_answer = hosts->n == before;
	for (int i = 0; no_answer && i < old->n; i++)
	{
		if (is_same(old->list[i].host, spec->host) && is_same(old->list[i].port, spec->port))
			add_address(hosts, old, spec, old->list[i].address);
	}
	if (hosts->n == before && hosts->error == NULL)
		hosts->error = psprintf("could not translate host name \"%s\" to address: the name server does not answer", spec->host);
}

static void
free_addresses(Hosts *hosts)
{
	for (int i = 0; i < hosts->n; i++)
	{
		free(hosts->list[i].host);
		free(hosts->list[i].address);
		free(hosts->list[i].port);
	}
	free(hosts->list);
}

/*
 * Those that were silent go to the end, the last one last. Otherwise the order stays.
 */
static void
sort_addresses(Hosts *hosts)
{
	for (int i = 1; i < hosts->n; i++)
	{
		Address		this = hosts->list[i];
		int			j = i;

		for (; j > 0 && hosts->list[j - 1].silent > this.silent; j--)
			hosts->list[j] = hosts->list[j - 1];
		hosts->list[j] = this;
	}
}

/*
 * Find the addresses of the hosts, which are given as in a connection string.
 */
WaitResult
hosts_find(Hosts *hosts, const char *host, const char *address, const char *port, Time until, StopWaiting stop)
{
	Hosts		specs = {0};
	Hosts		old = *hosts;
	char	   *lines = NULL;
	bool		any_name = false;
	WaitResult	result = WAIT_READY;

	for (int i = 0; i < list_length(address ? address : host); i++)
	{
		Address		spec = {
			.host = element(host, i, DEFAULT_PGSOCKET_DIR),
			.address = element(address, i, NULL),
			.port = element(port, i, DEF_PGPORT_STR)
		};

		add_address(&specs, &old, &spec, spec.address);
		any_name |= is_name(&spec);
		free(spec.host);
		free(spec.address);
		free(spec.port);
	}
	if (any_name)
		result = ask_name_server(&specs, until, stop, &lines);

	free(old.error);
	*hosts = (Hosts) {.silences = old.silences};
	for (int i = 0; i < specs.n; i++)
	{
		if (is_name(&specs.list[i]))
			add_name(hosts, &old, &specs.list[i], i, lines);
		else
			add_address(hosts, &old, &specs.list[i], specs.list[i].address);
	}
	sort_addresses(hosts);
	free_addresses(&specs);
	free_addresses(&old);
	free(lines);
	return result;
}

/*
 * This one was silent.
 */
void
hosts_silent(Hosts *hosts, const Address *address)
{
	hosts->silences++;
	for (int i = 0; i < hosts->n; i++)
	{
		if (is_same_address(&hosts->list[i], address))
			hosts->list[i].silent = hosts->silences;
	}
}
