/* Runs the program of the same name and records the CPU time that wait4(2) reports of it.
 *
 * The benchmark links this program under the names of the commands that a suite runs, in a folder
 * that comes first on PATH. `real/NAME` beside the link is the program itself. The file named by
 * HARNESS_BENCH_CPU_US receives a line for each call: the name, and user and system time in
 * microseconds. It counts from the start of the child process, so the fork of the shell that
 * started this program is not part of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int fail(const char *what)
{
	fprintf(stderr, "wait4_shim: %s: %s\n", what, strerror(errno));
	return 126;
}

static long microseconds(struct timeval time)
{
	return time.tv_sec * 1000000L + time.tv_usec;
}

int main(int argc, char **argv)
{
	const char *slash = strrchr(argv[0], '/');
	const char *name = slash ? slash + 1 : argv[0];
	const char *folder = getenv("HARNESS_BENCH_SHIMS");
	const char *output = getenv("HARNESS_BENCH_CPU_US");
	char program[4096], line[512];
	struct rusage used;
	int status, length, file;
	pid_t child;

	(void)argc;
	if (!folder || !output)
		return fail("HARNESS_BENCH_SHIMS and HARNESS_BENCH_CPU_US have to be set");
	snprintf(program, sizeof program, "%s/real/%s", folder, name);
	errno = posix_spawn(&child, program, NULL, NULL, argv, environ);
	if (errno)
		return fail(program);
	while (wait4(child, &status, 0, &used) < 0)
		if (errno != EINTR)
			return fail("wait4");
	file = open(output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (file < 0)
		return fail(output);
	length = snprintf(line, sizeof line, "%s %ld\n", name,
			  microseconds(used.ru_utime) + microseconds(used.ru_stime));
	if (write(file, line, (size_t)length) != length)
		return fail(output);
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	return WEXITSTATUS(status);
}
