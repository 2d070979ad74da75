/* The simulated machine, and the first steps of every NVML call. */
#ifndef FAKE_MACHINE_H
#define FAKE_MACHINE_H

#include "json.h"
#include "nvml.h"

enum { MAX_GPUS = 64 };

struct nvmlDevice_st {
    unsigned int position; /* NVML index */
};

/* State of one call. A machine that was read is never freed, because another thread may still use
 * it: files change a few times in a process's life. */
struct view {
    const struct json *machine;
    const struct json *override; /* NULL: there is none */
    const struct json *gpu; /* entry of the GPU; NULL for calls without one */
    int minor;              /* number N of /dev/nvidiaN; -1 for calls without a GPU */
};

extern struct nvmlDevice_st fake_devices[MAX_GPUS];

/* Read the files if they changed, then apply faults for `call` (its __func__). Returns what the
 * call must return at once, or NVML_SUCCESS with `view` filled. `device` may be NULL. */
nvmlReturn_t fake_enter(struct view *view, const char *call, nvmlDevice_t device);

/* GPU by NVML index or by minor number; NULL if there is none. */
const struct json *fake_gpu_at(const struct json *machine, unsigned int position);
int fake_position_of_minor(const struct json *machine, int minor);
int fake_minor(const struct json *gpu);

/* A key of the GPU's entry, or, without one, of the machine. */
const struct json *fake_key(const struct view *view, const char *key);
double fake_number(const struct view *view, const char *key, double otherwise);
const char *fake_text(const struct view *view, const char *key, const char *otherwise);

/* Folder of the state files. */
const char *fake_state_dir(void);

/* NVML's numeric code of an error name ("NO_PERMISSION") or number; NVML_ERROR_UNKNOWN if strange. */
nvmlReturn_t fake_code(const struct json *error);

#define ENTER(name, device)                                              \
    struct view name;                                                    \
    do {                                                                 \
        nvmlReturn_t entered_ = fake_enter(&(name), __func__, device);   \
        if (entered_ != NVML_SUCCESS)                                    \
            return entered_;                                             \
    } while (0)

#define NEED(condition)                        \
    do {                                       \
        if (!(condition))                      \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

#endif
