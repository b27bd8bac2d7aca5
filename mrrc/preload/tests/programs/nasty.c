/* A verbs program that does, by its first argument, what is hard on a library between it and libibverbs. Its output
 * is to be the same with and without. Where it forks or discards it checks what a device carries.
 *
 *   nasty unmap | twice | fork | pds | unload | errors | rereg | threads | leak | shapes | storm |
 *         little | cancel | room | queues | many | ending | descriptors | beside */
#define _GNU_SOURCE
#include "carry.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (8 * 4096ul)

static struct ibv_context *open_first(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    NEED(context);
    ibv_free_device_list(list);
    return context;
}

static void *map_at(void *at, size_t size) {
    void *memory = mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
    NEED(memory != MAP_FAILED);
    return memory;
}

/* `NAME-only` runs NAME without carrying anything, for devices between whose queue pairs nothing goes without a
 * connection manager. */
static int carries = 1;

/* Whether the device reads what was written there, by this registration. */
static const char *reads(struct wire *wire, struct ibv_mr *mr, struct ibv_mr *into, char with) {
    if (!carries)
        return "not asked";
    memset(mr->addr, with, mr->length);
    memset(into->addr, 0, into->length);
    if (carry(wire, mr->lkey, mr->addr, into->lkey, into->addr, mr->length))
        return "refused";
    for (size_t i = 0; i < mr->length; i++)
        if (((char *)into->addr)[i] != with)
            return "STALE";
    return "right";
}

/* And whether it writes where that is. */
static const char *writes(struct wire *wire, struct ibv_mr *mr, struct ibv_mr *from, char with) {
    if (!carries)
        return "not asked";
    memset(from->addr, with, from->length);
    memset(mr->addr, 0, mr->length);
    if (carry(wire, from->lkey, from->addr, mr->lkey, mr->addr, mr->length))
        return "refused";
    for (size_t i = 0; i < mr->length; i++)
        if (((char *)mr->addr)[i] != with)
            return "STALE";
    return "right";
}

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *other;
static struct wire wire;

/* The shim is to learn that memory comes again. */
static void dereg_some(struct ibv_pd *in, void *memory) {
    for (int i = 0; i < 2; i++) {
        struct ibv_mr *mr = ibv_reg_mr(in, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr);
        NEED(!ibv_dereg_mr(mr));
    }
}

static void begin(void) {
    context = open_first();
    NEED(pd = ibv_alloc_pd(context));
    dereg_some(pd, map_at(NULL, SIZE));
    NEED(other = ibv_reg_mr(pd, map_at(NULL, SIZE), SIZE, IBV_ACCESS_LOCAL_WRITE));
    if (carries)
        wire_open(&wire, pd);
}

static void end(void) {
    if (carries)
        wire_close(&wire);
    NEED(!ibv_dereg_mr(other));
    printf("dealloc %d\n", ibv_dealloc_pd(pd));
    printf("close %d\n", ibv_close_device(context));
}

/* Memory that goes before its registration, and other memory at its address; every way in which memory goes. */
static void unmap(void) {
    void *memory = map_at(NULL, SIZE);
    for (int round = 0; round < 20; round++) {
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr);
        const char *before = reads(&wire, mr, other, 'a' + round);
        void *moved;
        switch (round % 5) {
        case 0: /* before the deregistration */
            NEED(!munmap(memory, SIZE));
            NEED(!ibv_dereg_mr(mr));
            map_at(memory, SIZE);
            break;
        case 1: /* after it */
            NEED(!ibv_dereg_mr(mr));
            NEED(!munmap(memory, SIZE));
            map_at(memory, SIZE);
            break;
        case 2: /* in one step */
            NEED(!ibv_dereg_mr(mr));
            map_at(memory, SIZE);
            break;
        case 3: /* discarded */
            NEED(!ibv_dereg_mr(mr));
            NEED(!madvise(memory, SIZE, MADV_DONTNEED));
            break;
        case 4: /* moved away, and something else put there */
            NEED(!ibv_dereg_mr(mr));
            moved = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            NEED(mremap(memory, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, moved) == moved);
            NEED(!munmap(moved, SIZE));
            map_at(memory, SIZE);
            break;
        }
        NEED(mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE));
        printf("round %d: %s before, then read %s, written %s\n", round, before, reads(&wire, mr, other, 'A' + round),
               writes(&wire, mr, other, '0' + round));
        NEED(!ibv_dereg_mr(mr));
    }
    NEED(!munmap(memory, SIZE));
}

/* A registration that is ended twice. What libibverbs does with the second is not defined: it is passed a copy, so that at
 * least its own memory is not used after it was freed. */
static void twice(void) {
    void *memory = map_at(NULL, SIZE);
    for (int round = 0; round < 3; round++) {
        /* As libibverbs' own are, with what drivers have behind it. */
        static char copy[1024];
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr);
        memset(copy, 0, sizeof copy);
        memcpy(copy, mr, sizeof *mr);
        NEED(!ibv_dereg_mr(mr));
        int code = ibv_dereg_mr((struct ibv_mr *)copy);
        printf("again: %s\n", code ? "refused" : "done");
        NEED(mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE));
        printf("later: %s\n", reads(&wire, mr, other, 'x'));
        NEED(!ibv_dereg_mr(mr));
    }
    NEED(!munmap(memory, SIZE));
}

/* The very pointer, twice: only with the shim, which knows it. */
static void dangling(void) {
    void *memory = map_at(NULL, SIZE);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    NEED(mr);
    NEED(!ibv_dereg_mr(mr));
    printf("again: %s\n", ibv_dereg_mr(mr) == EINVAL && errno == EINVAL ? "EINVAL" : "something else");
    NEED(!munmap(memory, SIZE));
}

static void *memory_of_fork;

static int child(void) {
    struct ibv_mr *mr;
    /* What it has of its own it does as its parent does. */
    struct ibv_context *mine = open_first();
    struct ibv_pd *own = ibv_alloc_pd(mine);
    NEED(own);
    struct wire line;
    wire_open(&line, own);
    struct ibv_mr *to = ibv_reg_mr(own, map_at(NULL, SIZE), SIZE, IBV_ACCESS_LOCAL_WRITE);
    NEED(to);
    for (int round = 0; round < 3; round++) {
        NEED(mr = ibv_reg_mr(own, memory_of_fork, SIZE, IBV_ACCESS_LOCAL_WRITE));
        printf("child: %s\n", reads(&line, mr, to, 'c' + round));
        NEED(!ibv_dereg_mr(mr));
    }
    NEED(!ibv_dereg_mr(to));
    wire_close(&line);
    printf("child: dealloc %d\n", ibv_dealloc_pd(own));
    printf("child: close %d\n", ibv_close_device(mine));
    fflush(stdout);
    _exit(0);
}

static void forks(void) {
    memory_of_fork = map_at(NULL, SIZE);
    struct ibv_mr *held = ibv_reg_mr(pd, memory_of_fork, SIZE, IBV_ACCESS_LOCAL_WRITE), *mr;
    NEED(held);
    void *second = map_at(NULL, SIZE);
    for (int round = 0; round < 3; round++) {
        NEED(mr = ibv_reg_mr(pd, second, SIZE, IBV_ACCESS_LOCAL_WRITE));
        NEED(!ibv_dereg_mr(mr));
        fflush(stdout);
        pid_t pid = fork();
        NEED(pid >= 0);
        if (!pid)
            child();
        int status;
        /* The parent writes while the child lives: its pages are its own. */
        printf("parent, with a child: %s\n", reads(&wire, held, other, 'p' + round));
        NEED(mr = ibv_reg_mr(pd, second, SIZE, IBV_ACCESS_LOCAL_WRITE));
        printf("parent, registered before: %s %s\n", reads(&wire, mr, other, 'q'), writes(&wire, mr, other, 'r'));
        NEED(!ibv_dereg_mr(mr));
        NEED(waitpid(pid, &status, 0) == pid);
        printf("child's end: %d\n", status);
        printf("parent, afterwards: %s\n", writes(&wire, held, other, 's' + round));
    }
    NEED(!ibv_dereg_mr(held));
}

static void pds(void) {
    struct ibv_pd *second = ibv_alloc_pd(context);
    NEED(second);
    struct wire line;
    wire_open(&line, second);
    void *memory = map_at(NULL, SIZE);
    dereg_some(second, memory);
    struct ibv_mr *there = ibv_reg_mr(second, map_at(NULL, SIZE), SIZE, IBV_ACCESS_LOCAL_WRITE);
    NEED(there);
    for (int round = 0; round < 5; round++) {
        struct ibv_mr *in_first = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
        struct ibv_mr *in_second = ibv_reg_mr(second, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
        NEED(in_first && in_second && in_first->pd == pd && in_second->pd == second);
        printf("first: %s, second: %s\n", reads(&wire, in_first, other, 'f'), reads(&line, in_second, there, 's'));
        NEED(!ibv_dereg_mr(in_first));
        NEED(!ibv_dereg_mr(in_second));
    }
    wire_close(&line);
    printf("in use: %d\n", ibv_dealloc_pd(second));
    NEED(!ibv_dereg_mr(there));
    printf("not any more: %d\n", ibv_dealloc_pd(second));
    /* Often at the same address. */
    NEED(second = ibv_alloc_pd(context));
    struct ibv_mr *mr = ibv_reg_mr(second, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    NEED(mr && mr->pd == second);
    NEED(!ibv_dereg_mr(mr));
    printf("a new one: %d\n", ibv_dealloc_pd(second));
}

static void errors(void) {
    char *memory = map_at(NULL, SIZE);
    struct {
        const char *name;
        void *at;
        size_t length;
        int access;
    } tries[] = {
        {"nothing there", (void *)0x10000, 4096, IBV_ACCESS_LOCAL_WRITE},
        {"beyond the end", memory + SIZE - 4096, 1ul << 40, IBV_ACCESS_LOCAL_WRITE},
        {"peers write and we do not", memory, 4096, IBV_ACCESS_REMOTE_WRITE},
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        errno = 0;
        struct ibv_mr *mr = ibv_reg_mr(pd, tries[i].at, tries[i].length, tries[i].access);
        printf("%s: %s %d\n", tries[i].name, mr ? "registered" : "refused", mr ? 0 : errno);
    }
    /* A success leaves errno as it was; the real libibverbs' the second time at least, when it is not asked. */
    for (int round = 0; round < 2; round++) {
        errno = 77;
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr);
        NEED(!ibv_dereg_mr(mr));
#ifndef FAKE_VERBS
        if (!round)
            continue;
#endif
        NEED(errno == 77);
    }
    /* Memory that may only be read. */
    NEED(!mprotect(memory, SIZE, PROT_READ));
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, 0);
    printf("to be read only: %s\n", mr ? "registered" : "refused");
    if (mr)
        NEED(!ibv_dereg_mr(mr));
    NEED(!munmap(memory, SIZE));
}

static void changed(void) {
    char *memory = map_at(NULL, 2 * SIZE);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    NEED(mr);
    int code = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory + SIZE, SIZE, 0);
    printf("changed: %d, now %s\n", code, mr->addr == memory ? "as before" : mr->addr == memory + SIZE ? "there" : "?");
    printf("carries: %s\n", reads(&wire, mr, other, 'r'));
    printf("dereg: %d\n", ibv_dereg_mr(mr));
    NEED(mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE));
    printf("carries: %s\n", reads(&wire, mr, other, 's'));
    NEED(!ibv_dereg_mr(mr));
}

struct worker {
    pthread_t thread;
    int number;
    long wrong;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    unsigned seed = worker->number;
    char *memory = map_at(NULL, 8 * SIZE);
    for (int i = 0; i < 400; i++) {
        size_t at = (rand_r(&seed) % 8) * 4096, length = (1 + rand_r(&seed) % 56) * 4096;
        struct ibv_mr *mr = ibv_reg_mr(pd, memory + at, length, IBV_ACCESS_LOCAL_WRITE);
        worker->wrong += !mr || mr->addr != memory + at || mr->length != length || mr->pd != pd || !mr->lkey;
        if (mr)
            worker->wrong += ibv_dereg_mr(mr) != 0;
        if (i % 50 == 49)
            map_at(memory, 8 * SIZE);
    }
    NEED(!munmap(memory, 8 * SIZE));
    return NULL;
}

static void threads(void) {
    struct worker workers[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){.number = i + 1};
        NEED(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
    }
    long wrong = 0;
    for (int i = 0; i < 4; i++) {
        NEED(!pthread_join(workers[i].thread, NULL));
        wrong += workers[i].wrong;
    }
    printf("wrong: %ld\n", wrong);
}

static volatile int stormy;

static void *registers(void *argument) {
    char *memory = map_at(NULL, 8 * SIZE);
    (void)argument;
    for (unsigned i = 0; stormy; i++) {
        struct ibv_mr *mr = ibv_reg_mr(pd, memory + i % 7 * SIZE, (1 + i % 3) * 4096, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr);
        NEED(!ibv_dereg_mr(mr));
        if (i % 32 == 31)
            map_at(memory + i % 8 * SIZE, SIZE);
    }
    NEED(!munmap(memory, 8 * SIZE));
    return NULL;
}

/* Forks while other threads register, unmap and hold whatever locks there are; children that register, too. */
static void storm(void) {
    pthread_t threads[3];
    struct ibv_mr *held = ibv_reg_mr(pd, map_at(NULL, SIZE), SIZE, IBV_ACCESS_LOCAL_WRITE);
    NEED(held);
    stormy = 1;
    for (int i = 0; i < 3; i++)
        NEED(!pthread_create(&threads[i], NULL, registers, NULL));
    int well = 0;
    for (int round = 0; round < 12; round++) {
        /* Opened here: libibverbs' own locks are not made for forks. */
        struct ibv_context *for_child = open_first();
        pid_t pid = fork();
        NEED(pid >= 0);
        if (!pid) {
            alarm(20);
            char *memory = map_at(NULL, SIZE);
            struct ibv_pd *own = ibv_alloc_pd(for_child);
            NEED(own);
            for (int i = 0; i < 5; i++) {
                struct ibv_mr *mr = ibv_reg_mr(own, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
                NEED(mr && mr->pd == own);
                NEED(!ibv_dereg_mr(mr));
            }
            NEED(!ibv_dealloc_pd(own));
            _exit(0);
        }
        int status;
        NEED(waitpid(pid, &status, 0) == pid);
        well += status == 0;
        NEED(!ibv_close_device(for_child));
    }
    stormy = 0;
    for (int i = 0; i < 3; i++)
        NEED(!pthread_join(threads[i], NULL));
    printf("children: %d well\nheld: %s\n", well, reads(&wire, held, other, 'h'));
    NEED(!ibv_dereg_mr(held));
}

/* What peers may use, of which there may be room for 16 only: after others that were registered and deregistered. */
static void room(void) {
    char *memory = map_at(NULL, 40 * SIZE);
    struct ibv_mr *held[12];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 40; i++) {
            struct ibv_mr *mr = ibv_reg_mr(pd, memory + i * SIZE, 4096, IBV_ACCESS_LOCAL_WRITE);
            NEED(mr);
            NEED(!ibv_dereg_mr(mr));
        }
        for (int i = 0; i < 12; i++)
            NEED(held[i] = ibv_reg_mr(pd, memory + i * SIZE, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
        for (int i = 0; i < 12; i++)
            NEED(!ibv_dereg_mr(held[i]));
    }
    printf("room\n");
}

/* Queues find room where what is cached has taken all of it: with room for 16 registrations, 15 and the program's own. */
static void queues(void) {
    char *memory = map_at(NULL, 15 * SIZE);
    for (int i = 0; i < 60; i++) {
        struct ibv_mr *mr = ibv_reg_mr(pd, memory + i % 15 * SIZE, 4096, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr);
        NEED(!ibv_dereg_mr(mr));
    }
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    printf("completion queue: %s\n", cq ? "made" : "refused");
    NEED(cq);
    struct ibv_qp_init_attr attributes = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &attributes);
    printf("queue pair: %s\n", qp ? "made" : "refused");
    NEED(qp);
    NEED(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
}

static struct ibv_pd *of_little;

static void *on_little(void *argument) {
    void *memory = argument;
    for (int i = 0; i < 3; i++) {
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr);
        NEED(!ibv_dereg_mr(mr));
    }
    /* What others have registered there is to go. */
    NEED(!ibv_dealloc_pd(of_little));
    return NULL;
}

/* A thread with as little stack as there may be. */
static void little(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *memory = map_at(NULL, SIZE);
    NEED(of_little = ibv_alloc_pd(context));
    dereg_some(of_little, memory);
    struct ibv_mr *mr = ibv_reg_mr(of_little, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    NEED(mr);
    NEED(!ibv_dereg_mr(mr));
    NEED(!pthread_attr_init(&attributes));
    NEED(!pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN));
    NEED(!pthread_create(&thread, &attributes, on_little, memory));
    NEED(!pthread_join(thread, NULL));
    printf("stack of %d: enough\n", (int)PTHREAD_STACK_MIN);
}

static void *until_cancelled(void *argument) {
    (void)argument;
    for (;;) {
        char *memory = map_at(NULL, SIZE);
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr);
        NEED(!ibv_dereg_mr(mr));
        NEED(!munmap(memory, SIZE));
        pthread_testcancel();
    }
    return NULL;
}

/* Threads that are cancelled wherever they are. */
static void cancel(void) {
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;
        NEED(!pthread_create(&thread, NULL, until_cancelled, NULL));
        usleep(500 + 300 * i);
        NEED(!pthread_cancel(thread));
        NEED(!pthread_join(thread, &result));
        NEED(result == PTHREAD_CANCELED);
    }
    printf("cancelled\n");
}

/* Ninety thousand at once, of overlapping memory, and ended in another order. */
static void many(void) {
    enum { COUNT = 90000, PRIME = 7919 };
    static struct ibv_mr *held[COUNT];
    char *memory = map_at(NULL, 64 * SIZE);
    long wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        NEED(held[i] = ibv_reg_mr(pd, memory + i % 256 * 4096, 1 + i % 8191, IBV_ACCESS_LOCAL_WRITE));
        wrong += held[i]->addr != memory + i % 256 * 4096 || held[i]->length != 1 + (size_t)(i % 8191);
    }
    for (int i = 0; i < COUNT; i++)
        NEED(!ibv_dereg_mr(held[(long)i * PRIME % COUNT]));
    printf("of many, wrong: %ld\n", wrong);
    NEED(!munmap(memory, 64 * SIZE));
}

static pthread_key_t at_its_end;
static _Atomic int ended;

/* Again and again, as long as destructors are called. */
static void register_in_destructor(void *memory) {
    for (int i = 0; i < 3; i++) {
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr && mr->addr == memory);
        NEED(!ibv_dereg_mr(mr));
    }
    if (ended++ % 4 < 3)
        NEED(!pthread_setspecific(at_its_end, memory));
    else
        NEED(!munmap(memory, SIZE));
}

static void *end_with_memory(void *argument) {
    (void)argument;
    void *memory = map_at(NULL, SIZE);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    NEED(mr && !ibv_dereg_mr(mr));
    NEED(!pthread_setspecific(at_its_end, memory));
    return NULL;
}

static void register_at_exit(void) {
    void *memory = map_at(NULL, SIZE);
    struct ibv_context *late = open_first();
    struct ibv_pd *in = ibv_alloc_pd(late);
    NEED(in);
    dereg_some(in, memory);
    dereg_some(in, memory);
    printf("at exit: %d %d\n", ibv_dealloc_pd(in), ibv_close_device(late));
}

/* Threads that register while they end, and a process that does. */
static void ending(void) {
    NEED(!pthread_key_create(&at_its_end, register_in_destructor));
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        NEED(!pthread_create(&thread, NULL, end_with_memory, NULL));
        NEED(!pthread_join(thread, NULL));
    }
    printf("destructors: %d\n", ended);
    NEED(!atexit(register_at_exit));
}

/* Eight buffers are on their way at a time. Four of them are deregistered, and then as many are registered again. */
static void ahead(void) {
    struct ibv_pd *in = ibv_alloc_pd(context);
    NEED(in);
    char *memory = map_at(NULL, 8 * SIZE);
    struct ibv_mr *all[8];
    for (int i = 0; i < 8; i++)
        NEED(all[i] = ibv_reg_mr(in, memory + i * SIZE, SIZE, IBV_ACCESS_LOCAL_WRITE));
    for (int round = 0; round < 24; round++) {
        int first = round % 2 * 4;
        for (int i = first; i < first + 4; i++)
            NEED(!ibv_dereg_mr(all[i]));
        for (int i = first; i < first + 4; i++)
            NEED(all[i] = ibv_reg_mr(in, memory + i * SIZE, SIZE, IBV_ACCESS_LOCAL_WRITE));
    }
    for (int i = 0; i < 8; i++)
        NEED(!ibv_dereg_mr(all[i]));
    printf("dealloc %d\n", ibv_dealloc_pd(in));
    NEED(!munmap(memory, 8 * SIZE));
}

/* The descriptors of the program's own. */
static int own[40];

/* Files of several kinds, some of which a library may have as well. */
static void open_own(int pipe) {
    for (int i = 0; i < 40; i++) {
        switch (i % 3) {
        case 0: own[i] = dup(pipe); break;
        case 1: own[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); break;
        case 2: own[i] = open("/proc/self/maps", O_RDONLY | O_CLOEXEC); break;
        }
        NEED(own[i] >= 0);
    }
}

/* Looks at the end whether they are open, and whether another wrote to them. */
static void count_own(void) {
    int open = 0, written = 0;
    uint64_t number;
    for (int i = 0; i < 40; i++) {
        open += fcntl(own[i], F_GETFD) >= 0;
        written += i % 3 == 1 && read(own[i], &number, sizeof number) > 0;
    }
    printf("open at the end: %d, written: %d\n", open, written);
}

/* A program that closes descriptors it did not open, as servers do that detach, and then opens its own. */
static void descriptors(void) {
    void *memory = map_at(NULL, SIZE);
    for (int i = 0; i < 4; i++)
        dereg_some(pd, memory);
    NEED(!close_range(3, ~0u, 0));
    int ends[2];
    NEED(!pipe(ends));
    printf("the first of its own: %d\n", ends[0]);
    open_own(ends[0]);
    NEED(!atexit(count_own));
    static char sent[4096], received[4096];
    memset(sent, 0x14, sizeof sent);
    NEED(write(ends[1], sent, sizeof sent) == sizeof sent);
    for (int round = 0; round < 4; round++) {
        map_at(memory, SIZE);
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr);
        printf("round %d: %s\n", round, reads(&wire, mr, other, 'd' + round));
        NEED(!ibv_dereg_mr(mr));
    }
    usleep(100000);
    NEED(!close(ends[1]));
    long got = 0, part;
    while ((part = read(ends[0], received, sizeof received)) > 0)
        got += part;
    printf("received: %ld of %zu\n", got, sizeof sent);
    NEED(!munmap(memory, SIZE));
}

/* A program that closes descriptors while a child lives, and then unmaps. The child ends by itself if the unmapping waits for it. */
static void beside(void) {
    void *memory = map_at(NULL, SIZE);
    for (int i = 0; i < 4; i++)
        dereg_some(pd, memory);
    pid_t pid = fork();
    NEED(pid >= 0);
    if (!pid) {
        alarm(60);
        for (;;)
            pause();
    }
    NEED(!close_range(3, ~0u, 0));
    NEED(!munmap(memory, SIZE));
    NEED(!kill(pid, SIGTERM));
    int status;
    NEED(waitpid(pid, &status, 0) == pid);
    printf("child ended by: %d\n", WTERMSIG(status));
}

/* A device that is closed with everything still open. */
static void leak(void) {
    struct ibv_context *second = open_first();
    struct ibv_pd *in = ibv_alloc_pd(second);
    char *memory = map_at(NULL, SIZE);
    struct ibv_mr *mr;
    dereg_some(in, memory);
    for (int i = 0; i < 8; i++)
        NEED(ibv_reg_mr(in, memory + i * 4096, 4096, IBV_ACCESS_LOCAL_WRITE));
    NEED(mr = ibv_reg_mr(in, memory, 4096, IBV_ACCESS_LOCAL_WRITE));
    NEED(!ibv_dereg_mr(mr));
    printf("in use: %d\n", ibv_dealloc_pd(in));
    printf("closed: %d\n", ibv_close_device(second));
    NEED(!munmap(memory, SIZE));
}

/* Every shape of a request. */
static void shapes(void) {
    char *memory = map_at(NULL, 4 * SIZE);
    int flags[] = {0, 1, 1 | IBV_ACCESS_REMOTE_READ, 1 | IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
                   1 | IBV_ACCESS_REMOTE_ATOMIC, 1 | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    size_t at[] = {0, 1, 4095, 4096, 12345, SIZE - 1}, length[] = {1, 4095, 4096, 4097, SIZE, 2 * SIZE};
    for (int round = 0; round < 2; round++)
        for (size_t f = 0; f < sizeof flags / sizeof *flags; f++)
            for (size_t a = 0; a < sizeof at / sizeof *at; a++)
                for (size_t l = 0; l < sizeof length / sizeof *length; l++) {
                    struct ibv_mr *mr = ibv_reg_mr(pd, memory + at[a], length[l], flags[f]);
                    NEED(mr && mr->addr == memory + at[a] && mr->length == length[l] && mr->pd == pd);
                    NEED(mr->context == context && mr->lkey && (mr->rkey || !(flags[f] & 14)));
                    NEED(!ibv_dereg_mr(mr));
                    NEED(mr = ibv_reg_mr_iova2(pd, memory + at[a], length[l], (uintptr_t)(memory + at[a]), flags[f]));
                    NEED(!ibv_dereg_mr(mr));
                }
    struct ibv_mr *mr = ibv_reg_mr_iova(pd, memory, SIZE, 0x100000, IBV_ACCESS_LOCAL_WRITE);
    printf("by another address: %s\n", mr ? "registered" : "refused");
    if (mr)
        NEED(!ibv_dereg_mr(mr));
    int relaxed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
    NEED(mr = ibv_reg_mr(pd, memory, SIZE, relaxed));
    printf("carries: %s\n", reads(&wire, mr, other, 'o'));
    NEED(!ibv_dereg_mr(mr));
    NEED(!munmap(memory, 4 * SIZE));
}

int main(int count, char **arguments) {
    NEED(count == 2);
    struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"unmap", unmap}, {"twice", twice},     {"dangling", dangling}, {"fork", forks}, {"pds", pds},
               {"errors", errors}, {"rereg", changed}, {"threads", threads},   {"leak", leak},  {"shapes", shapes}, {"storm", storm}, {"little", little}, {"cancel", cancel}, {"room", room}, {"queues", queues},
               {"many", many},     {"ending", ending}, {"descriptors", descriptors}, {"beside", beside}, {"ahead", ahead}};
    char *only = strstr(arguments[1], "-only");
    if (only) {
        *only = 0;
        carries = 0;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(arguments[1], all[i].name)) {
            begin();
            all[i].run();
            end();
            return 0;
        }
    fprintf(stderr, "nasty: no %s\n", arguments[1]);
    return 2;
}
