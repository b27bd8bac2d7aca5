/* Two protection domains of one program: which of them has the room.
 *
 *   domains idle   the first fills what may be cached and does nothing more; the other uses 8 buffers 2,000 times
 *   domains flood  one walks through memory and never comes back; the other uses 8 buffers, turn by turn
 *   domains churn  four threads open domains, use 40 buffers in each, and end them; children do so too
 *
 * Buffers have 16 pages. Prints how often libibverbs registered for the second domain, by the keys that it gave: each is new. */
#define _GNU_SOURCE
#include "carry.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 16 * 4096, BUFFERS = 8, TIMES = 2000 };

static void use(struct ibv_pd *pd, char *buffer, uint32_t *last, long *anew) {
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE);
    NEED(mr);
    if (last) {
        *anew += mr->lkey != *last;
        *last = mr->lkey;
    }
    NEED(!ibv_dereg_mr(mr));
}

struct churn {
    struct ibv_context *context;
    char *memory;
};

static void *churn(void *argument) {
    struct churn *churn = argument;
    for (int round = 0; round < 25; round++) {
        struct ibv_pd *pd = ibv_alloc_pd(churn->context);
        NEED(pd);
        for (long i = 0; i < 120; i++)
            use(pd, churn->memory + i % 40 * SIZE, NULL, NULL);
        NEED(!ibv_dealloc_pd(pd));
    }
    return NULL;
}

static int churn_all(struct ibv_context *context, char *memory) {
    enum { THREADS = 4 };
    struct churn of[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        of[i] = (struct churn){context, memory + (size_t)SIZE * 40 * i};
        NEED(!pthread_create(&threads[i], NULL, churn, &of[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        /* In the middle of it. */
        pid_t child = fork();
        if (!child) {
            churn(&of[i]);
            _exit(0);
        }
        int status;
        NEED(child > 0 && waitpid(child, &status, 0) == child && !status);
    }
    for (int i = 0; i < THREADS; i++)
        NEED(!pthread_join(threads[i], NULL));
    return 0;
}

int main(int count, char **arguments) {
    NEED(count == 2);
    int floods = !strcmp(arguments[1], "flood");
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_pd *first = ibv_alloc_pd(context), *second = ibv_alloc_pd(context);
    NEED(context && first && second);
    size_t bytes = (size_t)SIZE * (TIMES + 100);
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(memory != MAP_FAILED);
    char *own = memory + (size_t)SIZE * TIMES;
    if (!strcmp(arguments[1], "churn")) {
        NEED(!ibv_dealloc_pd(first) && !ibv_dealloc_pd(second) && !churn_all(context, memory));
        NEED(!ibv_close_device(context));
        ibv_free_device_list(list);
        printf("all served\n");
        return 0;
    }
    uint32_t last[BUFFERS] = {0};
    long anew = 0;
    if (!floods)
        for (long i = 0; i < 200; i++)
            use(first, memory + i * SIZE, NULL, NULL);
    for (long i = 0; i < TIMES; i++) {
        if (floods)
            use(first, memory + i * SIZE, NULL, NULL);
        use(second, own + i % BUFFERS * SIZE, &last[i % BUFFERS], &anew);
    }
    printf("%ld of %d anew\n", anew, TIMES);
    NEED(!ibv_dealloc_pd(first) && !ibv_dealloc_pd(second) && !ibv_close_device(context));
    ibv_free_device_list(list);
    return 0;
}
