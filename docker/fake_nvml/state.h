/* Small files with the settings of a GPU, shared by all processes of a node. */
#ifndef FAKE_STATE_H
#define FAKE_STATE_H

#include "machine.h"

/* Read up to `n` whole numbers of STATE/gpuMINOR.NAME; returns their number (0: no file). */
int state_read(int minor, const char *name, unsigned long long *values, int n);

/* Replace the file in one step (or remove it: text NULL) and append a line to STATE/history. */
nvmlReturn_t state_write(const struct view *view, const char *name, const char *text);

/* Load, 0..1: STATE/gpuN.load (percent), which the fake timing backend writes while it measures,
 * else the key of the machine file. */
double state_load(const struct view *view);

/* Power now. Units: W. The power grows with the cube of the
 * clock, as voltage falls with it. */
double state_power_w(const struct view *view);

/* Power limit now: the one that was set (STATE/gpuN.power_limit, mW), else that of the machine
 * file. Units: W. */
double state_limit_w(const struct view *view);

/* Energy since boot. Units: J. Kept right over clock changes: each change stores the sum so far. */
double state_energy_j(const struct view *view);

/* SM clock now. Units: MHz. Locked, or application, or default clock; lower if the power limit asks
 * for it. */
unsigned int state_sm_clock(const struct view *view);
int state_is_capped(const struct view *view);
unsigned int state_max_clock(const struct view *view);
unsigned int state_default_clock(const struct view *view);

#endif
