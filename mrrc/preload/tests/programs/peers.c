/* A program that gives peers rights to its buffers, as transfer engines do: so many times one of 8 buffers of 4 pages is
 * registered to be read and written by peers, and deregistered.
 *
 *   peers TIMES [wait | clear | stay | again]
 *
 * `stay` ends the process with its domain open. `again` does it all in a second domain before that.
 * `wait`, against the libibverbs of the tests: until nothing is registered any more, for half a minute at most, which
 * is less than keys of peers stay by themselves.
 * `clear` is that, of a program that clears its environment first. */
#define _GNU_SOURCE
#include "carry.h"
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 4 * 4096, BUFFERS = 8 };

int main(int count, char **arguments) {
    NEED(count >= 2);
    if (count > 2 && !strcmp(arguments[2], "clear"))
        clearenv();
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    NEED(context && pd);
    char *memory = mmap(NULL, BUFFERS * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(memory != MAP_FAILED);
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    int again = count > 2 && !strcmp(arguments[2], "again");
    for (long i = 0, times = atol(arguments[1]); i < times << again; i++) {
        if (again && i == times)
            pd = ibv_alloc_pd(context);
        struct ibv_mr *mr = ibv_reg_mr(pd, memory + i % BUFFERS * SIZE, SIZE, rights);
        NEED(mr && mr->rkey);
        NEED(!ibv_dereg_mr(mr));
    }
    if (again || (count > 2 && !strcmp(arguments[2], "stay")))
        return 0;
#ifdef FAKE_VERBS
    if (count > 2) {
        for (int i = 0; i < 30000 && fake_live(); i++)
            usleep(1000);
        printf("%ld registered at the end\n", fake_live());
    }
#endif
    NEED(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
    ibv_free_device_list(list);
    return 0;
}
