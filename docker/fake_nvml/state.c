#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void path_of(char *out, size_t size, int minor, const char *name)
{
    snprintf(out, size, "%s/gpu%d.%s", fake_state_dir(), minor, name);
}

int state_read(int minor, const char *name, unsigned long long *values, int n)
{
    char path[600];
    path_of(path, sizeof path, minor, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    int got = 0;
    while (got < n && fscanf(file, "%llu", &values[got]) == 1)
        got++;
    fclose(file);
    return got;
}

static nvmlReturn_t of_errno(void)
{
    return errno == EACCES || errno == EPERM || errno == EROFS ? NVML_ERROR_NO_PERMISSION
                                                                : NVML_ERROR_OPERATING_SYSTEM;
}

/* Write beside the file, then rename: a reader sees either the old or the new text. */
static int replace(const char *path, const char *text)
{
    char temporary[640];
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0)
        return -1;
    size_t length = strlen(text);
    int bad = write(file, text, length) != (ssize_t)length;
    bad |= close(file) != 0;
    if (bad || rename(temporary, path) != 0) {
        unlink(temporary);
        return -1;
    }
    return 0;
}

static double seconds_since_boot(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void history(int minor, const char *name, const char *text)
{
    char path[600], line[256];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(path, sizeof path, "%s/history", fake_state_dir());
    int n = snprintf(line, sizeof line, "%lld.%03ld gpu%d %s %s%s", (long long)now.tv_sec,
                     now.tv_nsec / 1000000, minor, name, text ? text : "reset\n",
                     text && text[strlen(text) - 1] == '\n' ? "" : (text ? "\n" : ""));
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file >= 0) {
        if (write(file, line, (size_t)n) != n)
            fprintf(stderr, "fake NVML: %s: %s\n", path, strerror(errno));
        close(file);
    }
}

static void keep_energy(const struct view *view)
{
    char path[600], text[64];
    path_of(path, sizeof path, view->minor, "energy");
    snprintf(text, sizeof text, "%.0f %.0f\n", state_energy_j(view) * 1e3,
             seconds_since_boot() * 1e3);
    (void)replace(path, text); /* lost energy is no reason to refuse a clock */
}

nvmlReturn_t state_write(const struct view *view, const char *name, const char *text)
{
    char path[600];
    /* The driver lets only root change clocks. */
    if (geteuid() != 0 && !fake_number(view, "unprivileged_clocks", 0))
        return NVML_ERROR_NO_PERMISSION;
    if (mkdir(fake_state_dir(), 0755) != 0 && errno != EEXIST)
        return of_errno();
    snprintf(path, sizeof path, "%s/.lock", fake_state_dir());
    int guard = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (guard < 0)
        return of_errno();
    nvmlReturn_t code = NVML_SUCCESS;
    (void)flock(guard, LOCK_EX); /* several processes may change clocks at once */
    keep_energy(view);
    path_of(path, sizeof path, view->minor, name);
    if (text ? replace(path, text) != 0 : unlink(path) != 0 && errno != ENOENT)
        code = of_errno();
    else
        history(view->minor, name, text);
    close(guard);
    return code;
}

static unsigned int first_clock(const struct view *view)
{
    const struct json *clocks = json_get(fake_key(view, "clocks"), "graphics_mhz");
    return clocks && clocks->child ? (unsigned)clocks->child->number : 0;
}

unsigned int state_max_clock(const struct view *view)
{
    return first_clock(view);
}

unsigned int state_default_clock(const struct view *view)
{
    return (unsigned)json_number(fake_key(view, "clocks"), "default_mhz", first_clock(view));
}

static unsigned int set_clock(const struct view *view)
{
    unsigned long long set[2];
    if (state_read(view->minor, "locked_clocks", set, 2) == 2)
        return (unsigned)set[1];
    if (state_read(view->minor, "applications_clocks", set, 2) == 2)
        return (unsigned)set[1];
    return state_default_clock(view);
}

double state_load(const struct view *view)
{
    unsigned long long percent;
    if (state_read(view->minor, "load", &percent, 1) == 1)
        return (double)percent / 100;
    return fake_number(view, "load", 0);
}

double state_limit_w(const struct view *view)
{
    unsigned long long mw;
    if (state_read(view->minor, "power_limit", &mw, 1) == 1)
        return (double)mw / 1e3;
    return fake_number(view, "power_limit_w", 300);
}

static double power_at(const struct view *view, unsigned int mhz)
{
    double idle = fake_number(view, "power_idle_w", 40);
    double most = fake_number(view, "power_limit_w", 300);
    double ratio = state_max_clock(view) ? (double)mhz / state_max_clock(view) : 1;
    return idle + state_load(view) * (most - idle) * ratio * ratio * ratio;
}

/* The highest supported clock, at most the one that is set, whose power is within the limit; the
 * lowest one where none is. */
unsigned int state_sm_clock(const struct view *view)
{
    unsigned int found = set_clock(view);
    double limit = state_limit_w(view) + 1e-6;
    if (power_at(view, found) <= limit)
        return found;
    const struct json *list = json_get(fake_key(view, "clocks"), "graphics_mhz");
    for (const struct json *c = list ? list->child : NULL; c; c = c->next)
        if (c->number < found && power_at(view, found = (unsigned)c->number) <= limit)
            break;
    return found;
}

int state_is_capped(const struct view *view)
{
    return state_sm_clock(view) < set_clock(view);
}

double state_power_w(const struct view *view)
{
    return power_at(view, state_sm_clock(view));
}

double state_energy_j(const struct view *view)
{
    unsigned long long kept[2] = {0, 0}; /* mJ, ms since boot */
    if (state_read(view->minor, "energy", kept, 2) != 2)
        kept[0] = kept[1] = 0;
    double since = seconds_since_boot() - (double)kept[1] / 1e3;
    if (since > -1 && since < 0) /* the time kept was rounded up to its millisecond */
        since = 0;
    if (since < 0) { /* the host was started again: the counter begins anew */
        kept[0] = 0;
        since = seconds_since_boot();
    }
    return (double)kept[0] / 1e3 + state_power_w(view) * since;
}
