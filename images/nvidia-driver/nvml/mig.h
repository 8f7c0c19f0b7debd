/* MIG modes, which a GPU keeps while its node is off. */
#ifndef MIG_H
#define MIG_H

#include "node.h"

struct mig_mode {
	unsigned int current, pending;
};

struct mig_mode mig_read(const struct gpu *gpu);

/* Lets a GPU have another mode from the next boot on; -1 where that cannot be kept. */
int mig_request(const struct gpu *gpu, unsigned int mode);

#endif
