/* SPDX-License-Identifier: GPL-2.0 */
#ifndef NV_STAND_IN_H
#define NV_STAND_IN_H

/* What nvidia gives to the modules above it; using it makes them hold a reference to it. */
unsigned int nvidia_stand_in_gpus(void);

#endif
