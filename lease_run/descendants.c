/*-------------------------------------------------------------------------
 *
 * descendants.c
 *		The processes that descend from this one.
 *
 * A process can leave the group of its parent, and outlive it. Linux lets this
 * process adopt it then. So all of them are found by following the parents, as
 * /proc shows them. Elsewhere only a process group is known.
 *
 *-------------------------------------------------------------------------
 */
#include "lease_run.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* From now on, descendants whose parents have ended are children of this process. */
void
descendants_adopt(void)
{
#ifdef __linux__
	prctl(PR_SET_CHILD_SUBREAPER, 1);
#endif
}

/*
 * Read a process that has not ended from /proc. Its name may contain anything, so what follows is
 * behind the last ")": the state, then numbers.
 */
static bool
read_process(const char *pid, Process *process)
{
	char		path[64];
	char		line[512];
	char	   *rest;
	ssize_t		size;
	int			fd;

	snprintf(path, sizeof(path), "/proc/%s/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	size = read(fd, line, sizeof(line) - 1);
	close(fd);
	line[Max(size, 0)] = '\0';
	rest = strrchr(line, ')');
	if (rest == NULL || strlen(rest) < 4 || rest[2] == 'Z' || rest[2] == 'X')
		return false;
	process->pid = (pid_t) strtol(pid, NULL, 10);
	process->parent = (pid_t) strtol(rest + 3, &rest, 10);
	process->group = (pid_t) strtol(rest, &rest, 10);
	process->session = (pid_t) strtol(rest, &rest, 10);
	return true;
}

/* All processes that can be seen. The list is malloc'd. */
static Process *
read_processes(int *n)
{
	DIR		   *folder = FINDS_DESCENDANTS ? opendir("/proc") : NULL;
	struct dirent *entry;
	Process    *list = NULL;
	int			size = 0;

	*n = 0;
	while (folder != NULL && (entry = readdir(folder)) != NULL)
	{
		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		if (*n == size)
		{
			Process    *larger = realloc(list, (size + 256) * sizeof(Process));

			if (larger == NULL)
				break;
			list = larger;
			size += 256;
		}
		if (read_process(entry->d_name, &list[*n]))
			(*n)++;
	}
	if (folder != NULL)
		closedir(folder);
	return list;
}

/* Move those of this parent behind the descendants found so far. Returns how many these are. */
static int
move_children(Process *list, int n, int found, pid_t parent, pid_t parent_group)
{
	for (int i = found; i < n; i++)
	{
		Process		this = list[i];

		if (this.parent != parent)
			continue;
		this.parent_group = parent_group;
		list[i] = list[found];
		list[found++] = this;
	}
	return found;
}

/*
 * The descendants of this process, parents first. Daemons, which are in a session of their own,
 * only if the caller wants them. The list is malloc'd.
 */
Process *
descendants_find(bool even_daemons, int *n)
{
	int			n_all;
	Process    *list = read_processes(&n_all);
	int			found = move_children(list, n_all, 0, getpid(), 0);

	for (int i = 0; i < found; i++)
		found = move_children(list, n_all, found, list[i].pid, list[i].group);

	*n = 0;
	for (int i = 0; i < found; i++)
	{
		if (even_daemons || list[i].session == getsid(0))
			list[(*n)++] = list[i];
	}
	return list;
}

/*
 * SIGKILL to the group and to all descendants. Returns whether there were any. One that is just
 * being created may be missed: the caller calls again until none is left.
 */
bool
descendants_kill(pid_t group, bool even_daemons)
{
	bool		any = group > 0 && kill(-group, SIGKILL) == 0;
	int			n;
	Process    *list = descendants_find(even_daemons, &n);

	for (int i = 0; i < n; i++)
		kill(list[i].pid, SIGKILL);
	free(list);
	return any || n > 0;
}
