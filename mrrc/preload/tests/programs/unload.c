/* A verbs program that opens libibverbs by itself, asks it for its functions, uses it and closes it again, twice over.
 *
 *   unload [PLUGIN]   the same through a plug-in that is linked with libibverbs, which no other library can see */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#undef ibv_reg_mr

#define NEED(condition)                                                                                                   \
    do {                                                                                                                  \
        if (!(condition)) {                                                                                               \
            fprintf(stderr, "unload: not %s: %s\n", #condition, dlerror());                                              \
            exit(3);                                                                                                      \
        }                                                                                                                 \
    } while (0)

static void *library;

static void *ask(const char *name, int versioned) {
    void *found = versioned ? dlvsym(library, name, "IBVERBS_1.1") : dlsym(library, name);
    NEED(found);
    return found;
}

int main(void) {
    for (int round = 0; round < 4; round++) {
        NEED(library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL));
        int versioned = round % 2;
        struct ibv_device **(*list_of)(int *) = ask("ibv_get_device_list", versioned);
        struct ibv_context *(*open_device)(struct ibv_device *) = ask("ibv_open_device", versioned);
        struct ibv_pd *(*alloc_pd)(struct ibv_context *) = ask("ibv_alloc_pd", versioned);
        struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int) = ask("ibv_reg_mr", versioned);
        int (*dereg_mr)(struct ibv_mr *) = ask("ibv_dereg_mr", versioned);
        int (*dealloc_pd)(struct ibv_pd *) = ask("ibv_dealloc_pd", versioned);
        int (*close_device)(struct ibv_context *) = ask("ibv_close_device", versioned);
        struct ibv_device **list = list_of(NULL);
        NEED(list && list[0]);
        struct ibv_context *context = open_device(list[0]);
        struct ibv_pd *pd = alloc_pd(context);
        NEED(context && pd);
        void *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < 10; i++) {
            struct ibv_mr *mr = reg_mr(pd, memory, 65536, IBV_ACCESS_LOCAL_WRITE);
            NEED(mr && mr->addr == memory && mr->length == 65536);
            NEED(!dereg_mr(mr));
        }
        NEED(!dealloc_pd(pd));
        NEED(!close_device(context));
        NEED(!munmap(memory, 65536));
        printf("round %d: closed %d\n", round, dlclose(library));
    }
    return 0;
}
