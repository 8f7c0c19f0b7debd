#define _GNU_SOURCE
#include "mig.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER NODE_ROOT "/var/lib/gpu-node"
#define BOOT_ID NODE_ROOT "/proc/sys/kernel/random/boot_id"

/* `<mode in this boot> <mode from the next boot on> <boot in which that mode was requested>` */
#define LINE "%u %u %63s"

static void read_boot(char *boot, size_t size)
{
	if (node_read_text(BOOT_ID, boot, size))
		*boot = '\0';
	boot[strcspn(boot, "\n")] = '\0';
}

static void path_of(const struct gpu *gpu, const char *suffix, char *path, size_t size)
{
	snprintf(path, size, FOLDER "/mig-%s%s", gpu->address, suffix);
}

struct mig_mode mig_read(const struct gpu *gpu)
{
	struct mig_mode mode = { 0, 0 };
	char path[256], text[128], boot[64], asked[64];

	path_of(gpu, "", path, sizeof(path));
	if (node_read_text(path, text, sizeof(text)) ||
	    sscanf(text, LINE, &mode.current, &mode.pending, asked) != 3)
		return (struct mig_mode){ 0, 0 };
	read_boot(boot, sizeof(boot));
	if (strcmp(asked, boot))
		mode.current = mode.pending;
	return mode;
}

int mig_request(const struct gpu *gpu, unsigned int mode)
{
	struct mig_mode now = mig_read(gpu);
	char path[256], beside[256], boot[64];
	FILE *file;
	int is_written;

	path_of(gpu, "", path, sizeof(path));
	path_of(gpu, ".new", beside, sizeof(beside));
	read_boot(boot, sizeof(boot));
	mkdir(FOLDER, 0755);
	file = fopen(beside, "we");
	if (!file)
		return -1;
	is_written = fprintf(file, "%u %u %s\n", now.current, mode, boot) > 0;
	return fclose(file) || !is_written || rename(beside, path) ? -1 : 0;
}
