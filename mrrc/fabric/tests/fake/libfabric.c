/* A libfabric that has nothing but a cache with an imported monitor. It calls the monitor as libfabric 1.17 does: `valid` and
 * `subscribe` under the lock that `notify` takes, and `subscribe` after the registration. */
#include "fabric.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 1024 };
struct entry {
    char *address;
    size_t length;
    uint64_t value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry entries[ENTRIES];
static int count;
static uint64_t registered;
static struct fid_mem_monitor *monitor;
static bool running;

/* Removes each entry that overlaps. */
static void uncache(char *address, size_t length) {
    for (int at = 0; at < count;) {
        if (entries[at].address < address + length && address < entries[at].address + entries[at].length)
            entries[at] = entries[--count];
        else
            at++;
    }
}

static void notify(struct fid_mem_monitor *from, const void *address, size_t length) {
    if (from != monitor) abort();
    pthread_mutex_lock(&lock);
    uncache((char *)address, length);
    pthread_mutex_unlock(&lock);
}

static int close_monitor(struct fid *fid) {
    (void)fid;
    monitor = NULL;
    return 0;
}

static int close_cache(struct fid *fid) {
    free(fid);
    return 0;
}

static int import(struct fid *cache, struct fid *fid, uint64_t flags) {
    static struct fi_ops_mem_notify ops = {sizeof ops, notify};
    static struct fi_ops fid_ops = {.size = sizeof fid_ops, .close = close_monitor};
    if (cache->fclass != FI_CLASS_MR_CACHE || flags || fid->fclass != FI_CLASS_MEM_MONITOR) return -EINVAL;
    if (monitor) return -EBUSY;
    struct fid_mem_monitor *imported = (struct fid_mem_monitor *)fid;
    if (imported->export_ops->size < sizeof *imported->export_ops) return -EINVAL;
    imported->import_ops = &ops;
    imported->fid.ops = &fid_ops;
    monitor = imported;
    return 0;
}

int fi_open(uint32_t version, const char *name, void *attr, size_t length, uint64_t flags, struct fid **fid, void *context) {
    static struct fi_ops ops = {.size = sizeof ops, .close = close_cache, .bind = import};
    (void)attr;
    if (strcmp(name, "mr_cache")) return -ENOSYS;
    if (version < (1 << 16 | 13) || length || flags) return -EINVAL;
    *fid = calloc(1, sizeof **fid);
    if (!*fid) return -ENOMEM;
    (*fid)->fclass = FI_CLASS_MR_CACHE;
    (*fid)->context = context;
    (*fid)->ops = &ops;
    return 0;
}

int fake_begin(void) {
    if (!monitor) return -ENOSYS;
    int code = monitor->export_ops->start(monitor);
    running = code == 0;
    return code;
}

void fake_end(void) {
    if (running) monitor->export_ops->stop(monitor);
    running = false;
    count = 0;
}

uint64_t fake_registered(void) { return registered; }

uint64_t fake_search(void *address, size_t length, uint64_t (*read)(void *)) {
    pthread_mutex_lock(&lock);
    for (int at = 0; at < count; at++) {
        struct entry entry = entries[at];
        if (entry.address == address && entry.length == length && monitor->export_ops->valid(monitor, address, length)) {
            pthread_mutex_unlock(&lock);
            return entry.value;
        }
    }
    uncache(address, length);
    pthread_mutex_unlock(&lock);
    registered++;
    struct entry made = {address, length, read(address)};
    pthread_mutex_lock(&lock);
    if (running && count < ENTRIES) {
        entries[count++] = made;
        if (monitor->export_ops->subscribe(monitor, address, length)) uncache(address, length);
    }
    pthread_mutex_unlock(&lock);
    return made.value;
}
