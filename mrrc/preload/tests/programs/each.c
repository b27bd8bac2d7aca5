/* A verbs program that registers memory for each operation, as simple ones do: so many times one of so many buffers, each of
 * so many pages, is registered, a message sent from it, and deregistered. So that no cache can help, `walk` goes through memory and never
 * comes back, and `new` maps each buffer anew and unmaps it. Prints how often, and the time that it spent in ibv_reg_mr and ibv_dereg_mr.
 *
 * With `peer` the registrations give peers the right to read and to write.
 *
 *   each TIMES BUFFERS PAGES [send | walk | new] [peer] */
#define _GNU_SOURCE
#include "carry.h"
#include <sys/mman.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void *map(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(memory != MAP_FAILED);
    memset(memory, 1, size);
    return memory;
}

int main(int count, char **arguments) {
    NEED(count >= 4);
    long times = atol(arguments[1]), buffers = atol(arguments[2]);
    size_t size = atol(arguments[3]) * 4096;
    int sends = count > 4 && !strcmp(arguments[4], "send"), anew = count > 4 && !strcmp(arguments[4], "new"),
        walks = count > 4 && !strcmp(arguments[4], "walk");
    int rights = IBV_ACCESS_LOCAL_WRITE;
    if (!strcmp(arguments[count - 1], "peer"))
        rights |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_device **list = ibv_get_device_list(NULL);
    if (!list || !list[0]) {
        fprintf(stderr, "each: no RDMA device\n");
        return 3;
    }
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    NEED(context && pd);
    char **memory = calloc(buffers, sizeof *memory), *into = map(size);
    for (long i = 0; i < buffers; i++)
        memory[i] = map(size);
    char *all = walks ? map(times * size) : NULL;
    struct ibv_mr *to = ibv_reg_mr(pd, into, size, IBV_ACCESS_LOCAL_WRITE);
    NEED(to);
    struct wire wire;
    if (sends)
        wire_open(&wire, pd);
    double registering = 0, deregistering = 0;
    long wrong = 0;
    for (long i = 0; i < times; i++) {
        char *buffer = memory[i % buffers];
        if (anew)
            buffer = map(size);
        if (walks)
            buffer = all + i * size;
        double begun = now();
        struct ibv_mr *mr = ibv_reg_mr(pd, buffer, size, rights);
        registering += now() - begun;
        NEED(mr);
        if (sends) {
            memset(buffer, (char)i, size);
            wrong += carry(&wire, mr->lkey, buffer, to->lkey, into, size) || memcmp(buffer, into, size);
        }
        begun = now();
        NEED(!ibv_dereg_mr(mr));
        deregistering += now() - begun;
        if (anew)
            NEED(!munmap(buffer, size));
    }
    if (sends)
        wire_close(&wire);
    NEED(!ibv_dereg_mr(to));
    NEED(!ibv_dealloc_pd(pd));
    NEED(!ibv_close_device(context));
    ibv_free_device_list(list);
    printf("registered %ld times, %ld wrong, us: reg %.1f dereg %.1f\n", times, wrong, registering, deregistering);
    return wrong != 0;
}
