/* A program that a cache cannot help, at least at first.
 *
 *   stream FRESH HOT   registers so many buffers one after the other, each once, and then 8 others so many times in all
 *   stream held TIMES  registers 40 buffers and keeps them, and then 8 others so many times in all
 *   stream named TIMES registers 8 buffers so many times in all, in memory of a file, whose changes go unnoticed
 *
 * Buffers have 16 pages. Prints how often libibverbs registered for the 8 buffers, by the keys that it gave: each is new. Against
 * the libibverbs of the tests it waits until no more is registered than those: a cache has a thread that sees to
 * it, unless MRRC_BACKGROUND says otherwise. */
#define _GNU_SOURCE
#include "carry.h"
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 16 * 4096, BUFFERS = 8, HELD = 40 };

int main(int count, char **arguments) {
    NEED(count == 3);
    int named = !strcmp(arguments[1], "named"), held = !strcmp(arguments[1], "held");
    long fresh = held ? 2 + HELD : atol(arguments[1]), hot = atol(arguments[2]);
    struct ibv_mr *kept[HELD];
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    NEED(context && pd);
    size_t bytes = (size_t)SIZE * (BUFFERS + fresh);
    int file = named ? memfd_create("stream", 0) : -1;
    NEED(!named || (file >= 0 && !ftruncate(file, bytes)));
    int flags = named ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    NEED(memory != MAP_FAILED);
    uint32_t last[BUFFERS] = {0};
    long anew = 0;
    for (long i = 0; i < fresh + hot; i++) {
        long buffer = i < fresh ? BUFFERS + i : (i - fresh) % BUFFERS;
        struct ibv_mr *mr = ibv_reg_mr(pd, memory + buffer * SIZE, SIZE, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr);
        if (buffer < BUFFERS) {
            anew += mr->lkey != last[buffer];
            last[buffer] = mr->lkey;
        }
        if (held && i >= 2 && i < fresh)
            kept[i - 2] = mr;
        else
            NEED(!ibv_dereg_mr(mr));
    }
    for (long i = 0; held && i < HELD; i++)
        NEED(!ibv_dereg_mr(kept[i]));
    printf("%ld of %ld anew\n", anew, hot);
#ifdef FAKE_VERBS
    for (int i = 0; i < 10000 && !getenv("MRRC_BACKGROUND") && fake_live() > (hot ? BUFFERS : 0); i++)
        usleep(1000);
    printf("%ld registered at the end\n", fake_live());
#endif
    NEED(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
    ibv_free_device_list(list);
    return 0;
}
