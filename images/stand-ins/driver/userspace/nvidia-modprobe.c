/*
 * A stand-in for nvidia-modprobe. It is installed setuid root, so that an unprivileged process can
 * load the driver and make its device nodes. It has the options of the real tool: with -u, they
 * apply only to the unified-memory module, and -c0 makes that module's nodes, not a GPU's
 * (https://github.com/NVIDIA/nvidia-modprobe).
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
	      "Load the NVIDIA kernel module and make the device nodes asked for: /dev/nvidiaMINOR,\n"
	      "/dev/nvidiactl for 255; with -u load the module for unified memory and make its.\n", out);
}

static int load(const char *module)
{
	/* The program that runs as root gets nothing from the caller's environment. */
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

/* Make the node if it is missing, accessible to all users, as the real tool does. */
static int make_node(const char *path, unsigned int device_major, unsigned int device_minor)
{
	if (mknod(path, S_IFCHR | 0666, makedev(device_major, device_minor)) && errno != EEXIST) {
		fprintf(stderr, "nvidia-modprobe: cannot make '%s': %s\n", path, strerror(errno));
		return -1;
	}
	return chmod(path, 0666);
}

/* Return the major number that the kernel gave the unified-memory module, or -1. */
static int unified_major(void)
{
	char line[128], name[64];
	int number, found = -1;
	FILE *devices = fopen("/proc/devices", "r");

	if (!devices)
		return -1;
	while (fgets(line, sizeof(line), devices) && strcmp(line, "Block devices:\n"))
		if (sscanf(line, "%d %63s", &number, name) == 2 && !strcmp(name, "nvidia-uvm"))
			found = number;
	fclose(devices);
	return found;
}

static int make_unified_nodes(unsigned int device_minor)
{
	int device_major = unified_major();

	if (device_major < 0)
		return -1;
	return make_node("/dev/nvidia-uvm", device_major, device_minor) ||
	       make_node("/dev/nvidia-uvm-tools", device_major, device_minor + 1);
}

static int make_gpu_node(unsigned int device_minor)
{
	char path[32];

	if (device_minor == NV_CONTROL_MINOR)
		return make_node("/dev/nvidiactl", NV_MAJOR, NV_CONTROL_MINOR);
	snprintf(path, sizeof(path), "/dev/nvidia%u", device_minor);
	return make_node(path, NV_MAJOR, device_minor);
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
	if (load(unified ? "nvidia-uvm" : "nvidia"))
		return 1;
	for (device_minor = 0; device_minor <= NV_CONTROL_MINOR; device_minor++)
		if (wanted[device_minor] &&
		    (unified ? make_unified_nodes(device_minor) : make_gpu_node(device_minor)))
			return 1;
	return 0;
}
