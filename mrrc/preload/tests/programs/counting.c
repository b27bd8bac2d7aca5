/* Another library that is preloaded, and counts what passes it: the usual kind, which asks for the next of its name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#undef ibv_reg_mr

static long registered, deregistered;

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    struct ibv_mr *(*next)(struct ibv_pd *, void *, size_t, int) = dlsym(RTLD_NEXT, "ibv_reg_mr");
    registered++;
    return next(pd, addr, length, access);
}

int ibv_dereg_mr(struct ibv_mr *mr) {
    int (*next)(struct ibv_mr *) = dlvsym(RTLD_NEXT, "ibv_dereg_mr", "IBVERBS_1.1");
    if (!next)
        next = dlsym(RTLD_NEXT, "ibv_dereg_mr");
    deregistered++;
    return next(mr);
}

__attribute__((destructor)) static void ends(void) {
    FILE *file = fopen(getenv("COUNTING"), "w");
    if (file) {
        fprintf(file, "%ld %ld\n", registered, deregistered);
        fclose(file);
    }
}
