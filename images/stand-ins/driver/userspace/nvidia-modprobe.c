/*
 * A stand-in for nvidia-modprobe: installed setuid root, so that an unprivileged process can have
 * the driver loaded and its device nodes made. Options are the real tool's.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define NV_MAJOR 195
#define NV_CONTROL_MINOR 255

static void usage(FILE *out)
{
	fputs("usage: nvidia-modprobe [-u|--unified-memory] [-c MINOR|--create-nvidia-device-file=MINOR]...\n"
	      "Load the NVIDIA kernel module and make its device nodes.\n", out);
}

static int load(const char *module)
{
	/* Nothing of the caller's environment reaches a program that runs as root. */
	static char *const environment[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL };
	char *const argv[] = { "modprobe", (char *)module, NULL };
	int status;
	pid_t child = fork();

	if (child < 0)
		return -1;
	if (child == 0) {
		if (setgid(0) || setuid(0))
			_exit(126);
		execve("/sbin/modprobe", argv, environment);
		_exit(127);
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* Make the node where there is none, and let everybody use it, as the real tool does. */
static int make_node(const char *path, unsigned int device_major, unsigned int device_minor)
{
	if (mknod(path, S_IFCHR | 0666, makedev(device_major, device_minor)) && errno != EEXIST) {
		fprintf(stderr, "nvidia-modprobe: cannot make '%s': %s\n", path, strerror(errno));
		return -1;
	}
	return chmod(path, 0666);
}

static int parse_minor(const char *text, unsigned int *device_minor)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || end == text || *end || value > NV_CONTROL_MINOR)
		return -1;
	*device_minor = value;
	return 0;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "unified-memory", no_argument, NULL, 'u' },
		{ "create-nvidia-device-file", required_argument, NULL, 'c' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	unsigned char wanted[NV_CONTROL_MINOR + 1] = { 0 };
	unsigned int device_minor;
	int unified = 0, option;
	char path[32];

	while ((option = getopt_long(argc, argv, "uc:h", options, NULL)) != -1) {
		switch (option) {
		case 'u':
			unified = 1;
			break;
		case 'c':
			if (parse_minor(optarg, &device_minor)) {
				fprintf(stderr, "nvidia-modprobe: '%s' is not a minor number\n", optarg);
				return 1;
			}
			wanted[device_minor] = 1;
			break;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 1;
		}
	}
	if (load("nvidia") || (unified && load("nvidia-uvm")))
		return 1;
	if (make_node("/dev/nvidiactl", NV_MAJOR, NV_CONTROL_MINOR))
		return 1;
	for (device_minor = 0; device_minor < NV_CONTROL_MINOR; device_minor++) {
		if (!wanted[device_minor])
			continue;
		snprintf(path, sizeof(path), "/dev/nvidia%u", device_minor);
		if (make_node(path, NV_MAJOR, device_minor))
			return 1;
	}
	return 0;
}
