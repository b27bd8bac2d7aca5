/* Imports a monitor of its own, by fi_open: `importer LIBRARY [OTHER]`. With OTHER, libmrrc_fabric.so, that one is asked to import then.
 * Prints what each answers. */
#define _GNU_SOURCE
#include "fabric.h"
#include <dlfcn.h>
#include <stdio.h>

static int start(struct fid_mem_monitor *monitor) { return (void)monitor, 0; }
static void stop(struct fid_mem_monitor *monitor) { (void)monitor; }
static int subscribe(struct fid_mem_monitor *monitor, const void *at, size_t n) { return (void)monitor, (void)at, (void)n, 0; }
static void unsubscribe(struct fid_mem_monitor *monitor, const void *at, size_t n) { (void)monitor, (void)at, (void)n; }
static bool valid(struct fid_mem_monitor *monitor, const void *at, size_t n) { return (void)monitor, (void)at, (void)n, true; }

static struct fi_ops_mem_monitor ops = {sizeof ops, start, stop, subscribe, unsubscribe, valid};
static struct fid_mem_monitor own = {.fid = {.fclass = FI_CLASS_MEM_MONITOR}, .export_ops = &ops};

int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    __typeof__(fi_open) *open = library ? (__typeof__(fi_open) *)dlsym(library, "fi_open") : NULL;
    if (!open) return 77;
    struct fid *cache;
    int code = open(1 << 16 | 13, "mr_cache", NULL, 0, 0, &cache, NULL);
    if (code) return 77;
    printf("own: %d\n", cache->ops->bind(cache, &own.fid, 0));
    cache->ops->close(cache);
    if (argc > 2) {
        void *other = dlopen(argv[2], RTLD_NOW);
        int (*import)(void) = other ? (int (*)(void))dlsym(other, "mrrc_fabric_import") : NULL;
        if (!import) return 1;
        printf("mrrc: %d\n", import());
    }
    return 0;
}
