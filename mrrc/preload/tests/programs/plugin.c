/* A plug-in that is linked with libibverbs, of a program that is not: only it has libibverbs in its order of loading.
 * With PROGRAM defined it is that program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef PROGRAM
int main(int count, char **arguments) {
    for (int round = 0; round < 2; round++) {
        void *plugin = dlopen(arguments[count - 1], RTLD_NOW | RTLD_LOCAL);
        int (*run)(void) = plugin ? (int (*)(void))dlsym(plugin, "run") : NULL;
        if (!run) {
            fprintf(stderr, "%s\n", dlerror());
            return 3;
        }
        printf("%d\n", run());
        printf("closed %d\n", dlclose(plugin));
    }
    return 0;
}
#else
int run(void);
int run(void) {
    static char memory[1 << 16] __attribute__((aligned(4096))) = {1};
    char *heap = aligned_alloc(4096, 1 << 16);
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    int failed = 0;
    for (int i = 0; i < 20; i++) {
        struct ibv_mr *mr = ibv_reg_mr(pd, i % 2 ? heap : memory, 1 << 16, IBV_ACCESS_LOCAL_WRITE);
        failed += !mr || ibv_dereg_mr(mr);
    }
    failed += ibv_dealloc_pd(pd) || ibv_close_device(context);
    ibv_free_device_list(list);
    free(heap);
    return failed;
}
#endif
