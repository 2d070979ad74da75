/* Finding, reading and re-reading the machine file; faults; start and end of NVML. */
#include "machine.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct source {
    struct stat seen;
    const struct json *content; /* NULL: missing or broken */
    int known;
};

struct nvmlDevice_st fake_devices[MAX_GPUS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct source machine_source, override_source;
static int users; /* nvmlInit without nvmlShutdown */

static const char *host(void)
{
    static char name[256];
    if (!name[0] && gethostname(name, sizeof name - 1) == 0)
        name[strcspn(name, ".")] = 0;
    return name;
}

static const char *machine_path(void)
{
    static char path[512];
    const char *named = getenv("FAKE_NVML_MACHINE");
    if (named && *named)
        return named;
    snprintf(path, sizeof path, "/etc/gpu-aware-fake/%s.json", host());
    return path;
}

const char *fake_state_dir(void)
{
    static char path[512];
    const char *named = getenv("FAKE_NVML_STATE");
    if (named && *named)
        return named;
    snprintf(path, sizeof path, "/shared/fakegpu/%s", host());
    return path;
}

static struct json *read_json(int file, off_t size)
{
    char *text = malloc((size_t)size + 1);
    struct json *made = NULL;
    ssize_t got = text ? read(file, text, (size_t)size) : -1;
    if (got == size) {
        text[size] = 0;
        made = json_parse(text);
    }
    free(text);
    return made;
}

/* Read again only what changed: another file under the name, or another time or size. */
static const struct json *refresh(struct source *source, const char *path)
{
    struct stat now;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &now) != 0 || now.st_size > 4 << 20) {
        if (file >= 0)
            close(file);
        source->known = 0;
        return source->content = NULL;
    }
    if (!source->known || now.st_ino != source->seen.st_ino || now.st_dev != source->seen.st_dev ||
        now.st_size != source->seen.st_size || now.st_mtim.tv_sec != source->seen.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != source->seen.st_mtim.tv_nsec) {
        source->content = read_json(file, now.st_size);
        source->seen = now;
        source->known = 1;
        if (!source->content)
            fprintf(stderr, "fake NVML: %s is not valid JSON\n", path);
    }
    close(file);
    return source->content;
}

const struct json *fake_gpu_at(const struct json *machine, unsigned int position)
{
    const struct json *gpus = json_get(machine, "gpus");
    const struct json *gpu = gpus ? gpus->child : NULL;
    while (gpu && position--)
        gpu = gpu->next;
    return gpu;
}

int fake_minor(const struct json *gpu)
{
    return (int)json_number(gpu, "minor", -1);
}

int fake_position_of_minor(const struct json *machine, int minor)
{
    int position = 0;
    const struct json *gpu;
    for (; (gpu = fake_gpu_at(machine, (unsigned)position)); position++)
        if (fake_minor(gpu) == minor)
            return position;
    return -1;
}

/* "facts" of the override: keys of a GPU, by its minor number. */
static const struct json *facts(const struct view *view)
{
    char minor[12];
    snprintf(minor, sizeof minor, "%d", view->minor);
    return json_get(json_get(view->override, "facts"), minor);
}

const struct json *fake_key(const struct view *view, const char *key)
{
    const struct json *changed = json_get(facts(view), key), *own = json_get(view->gpu, key);
    return changed ? changed : own ? own : json_get(view->machine, key);
}

double fake_number(const struct view *view, const char *key, double otherwise)
{
    otherwise = json_number(view->gpu, key, json_number(view->machine, key, otherwise));
    return json_number(facts(view), key, otherwise);
}

const char *fake_text(const struct view *view, const char *key, const char *otherwise)
{
    return json_text(view->gpu, key, json_text(view->machine, key, otherwise));
}

static const struct {
    const char *name;
    nvmlReturn_t code;
    const char *text;
} errors[] = {
    {"SUCCESS", 0, "The operation was successful"},
    {"UNINITIALIZED", 1, "Uninitialized"},
    {"INVALID_ARGUMENT", 2, "Invalid Argument"},
    {"NOT_SUPPORTED", 3, "Not Supported"},
    {"NO_PERMISSION", 4, "Insufficient Permissions"},
    {"ALREADY_INITIALIZED", 5, "Already Initialized"},
    {"NOT_FOUND", 6, "Not Found"},
    {"INSUFFICIENT_SIZE", 7, "Insufficient Size"},
    {"INSUFFICIENT_POWER", 8, "Insufficient External Power"},
    {"DRIVER_NOT_LOADED", 9, "Driver Not Loaded"},
    {"TIMEOUT", 10, "Timeout"},
    {"IRQ_ISSUE", 11, "Interrupt Request Issue"},
    {"LIBRARY_NOT_FOUND", 12, "NVML Shared Library Not Found"},
    {"FUNCTION_NOT_FOUND", 13, "Function Not Found"},
    {"CORRUPTED_INFOROM", 14, "Corrupted infoROM"},
    {"GPU_IS_LOST", 15, "GPU is lost"},
    {"RESET_REQUIRED", 16, "GPU requires restart"},
    {"OPERATING_SYSTEM", 17, "The operating system has blocked the request."},
    {"LIB_RM_VERSION_MISMATCH", 18, "RM has detected an NVML/RM version mismatch."},
    {"IN_USE", 19, "In use by another client"},
    {"MEMORY", 20, "Insufficient Memory"},
    {"NO_DATA", 21, "No data"},
    {"INSUFFICIENT_RESOURCES", 23, "Insufficient Resources"},
    {"FREQ_NOT_SUPPORTED", 24, "Frequency not supported"},
    {"ARGUMENT_VERSION_MISMATCH", 25, "Argument version mismatch"},
    {"UNKNOWN", 999, "Unknown Error"},
};
enum { N_ERRORS = sizeof errors / sizeof errors[0] };

nvmlReturn_t fake_code(const struct json *error)
{
    for (int i = 0; error && i < N_ERRORS; i++)
        if (error->kind == JSON_STRING ? strcmp(error->text, errors[i].name) == 0
                                       : error->number == errors[i].code)
            return errors[i].code;
    return NVML_ERROR_UNKNOWN;
}

API const char *nvmlErrorString(nvmlReturn_t code)
{
    for (int i = 0; i < N_ERRORS; i++)
        if (errors[i].code == code)
            return errors[i].text;
    return "Unknown Error";
}

/* "nvmlDeviceGetPciInfo" stands for its versions (_v2, _v3) too, "*" for every call. */
static int names(const char *pattern, const char *call)
{
    size_t n = strlen(pattern);
    return strcmp(pattern, "*") == 0 ||
           (strncmp(pattern, call, n) == 0 && (!call[n] || strncmp(call + n, "_v", 2) == 0));
}

static void hang(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0)
        ;
}

static nvmlReturn_t faults(const struct json *file, const char *call, int minor)
{
    const struct json *lost = json_get(file, "lost");
    for (const struct json *l = lost ? lost->child : NULL; l && minor >= 0; l = l->next)
        if (l->kind == JSON_NUMBER && (int)l->number == minor)
            return NVML_ERROR_GPU_IS_LOST;
    const struct json *list = json_get(file, "faults");
    for (const struct json *f = list ? list->child : NULL; f; f = f->next) {
        const struct json *gpu = json_get(f, "gpu");
        if (!names(json_text(f, "call", ""), call))
            continue;
        if (gpu && gpu->kind == JSON_NUMBER && (int)gpu->number != minor)
            continue;
        hang(json_number(f, "hang_s", 0));
        if (json_get(f, "error"))
            return fake_code(json_get(f, "error"));
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t apply_faults(const struct view *view, const char *call)
{
    nvmlReturn_t code = faults(view->override, call, view->minor);
    return code != NVML_SUCCESS ? code : faults(view->machine, call, view->minor);
}

static void read_files(struct view *view)
{
    char path[600];
    snprintf(path, sizeof path, "%s/override.json", fake_state_dir());
    view->machine = refresh(&machine_source, machine_path());
    view->override = refresh(&override_source, path);
}

nvmlReturn_t fake_enter(struct view *view, const char *call, nvmlDevice_t device)
{
    pthread_mutex_lock(&lock);
    int started = users;
    read_files(view);
    pthread_mutex_unlock(&lock);
    view->gpu = NULL;
    view->minor = -1;
    if (!started)
        return NVML_ERROR_UNINITIALIZED;
    if (!view->machine)
        return NVML_ERROR_UNKNOWN;
    if (device) {
        if (device < fake_devices || device >= fake_devices + MAX_GPUS)
            return NVML_ERROR_INVALID_ARGUMENT;
        view->gpu = fake_gpu_at(view->machine, device->position);
        if (!view->gpu)
            return NVML_ERROR_INVALID_ARGUMENT;
        view->minor = fake_minor(view->gpu);
    }
    return apply_faults(view, call);
}

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    struct view view = {.minor = -1};
    (void)flags;
    pthread_mutex_lock(&lock);
    read_files(&view);
    pthread_mutex_unlock(&lock);
    if (!view.machine)
        return access(machine_path(), F_OK) != 0 ? NVML_ERROR_DRIVER_NOT_LOADED
                                                 : NVML_ERROR_UNKNOWN;
    nvmlReturn_t code = apply_faults(&view, "nvmlInit");
    if (code != NVML_SUCCESS)
        return code;
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < MAX_GPUS; i++)
        fake_devices[i].position = i;
    users++;
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t code = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    users -= users > 0;
    pthread_mutex_unlock(&lock);
    return code;
}
