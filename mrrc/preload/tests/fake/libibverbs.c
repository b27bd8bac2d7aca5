/* A libibverbs.so.1 without a kernel behind it: it counts what it is called for, checks that it is called rightly, and
 * writes the counts to the file that FAKE_COUNTS names when the process ends.
 *
 * Like the real one it calls itself through the dynamic linker, has its functions under their versions (libibverbs.map) and
 * two of some, and uses an `ibv_mr` only if it is its own: whatever else is passed is an abort. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#undef ibv_reg_mr

struct ibv_device {
    int number;
};
/* What the real one has behind an ibv_mr of its own. */
struct region {
    struct ibv_mr mr;
    int kind, access;
    struct region *next;
};
struct domain {
    struct ibv_pd pd;
    int regions;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_device device;
static struct region *regions, *closed;
static uint32_t next_handle = 1;
static long registered, deregistered, domains, contexts, most, live, queues, refused;
static int fork_safe;

/* A child finds it free. */
static void hold(void) { pthread_mutex_lock(&lock); }
static void release(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void begins(void) { pthread_atfork(hold, release, release); }

static long limit(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static void bad(const char *what) {
    fprintf(stderr, "libibverbs: %s\n", what);
    abort();
}

struct ibv_device **ibv_get_device_list(int *count) {
    struct ibv_device **list = calloc(2, sizeof *list);
    list[0] = &device;
    if (count)
        *count = 1;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    struct ibv_context *context = calloc(1, sizeof *context);
    context->device = device;
    contexts++;
    return context;
}

/* The kernel takes back what is registered. */
int ibv_close_device(struct ibv_context *context) {
    pthread_mutex_lock(&lock);
    for (struct region **at = &regions; *at;) {
        struct region *region = *at;
        if (region->mr.context == context) {
            *at = region->next;
            region->next = closed;
            closed = region;
            live--;
        } else {
            at = &region->next;
        }
    }
    contexts--;
    pthread_mutex_unlock(&lock);
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes) {
    (void)context;
    memset(attributes, 0, sizeof *attributes);
    attributes->max_mr_size = UINT64_MAX;
    attributes->page_size_cap = 4096;
    attributes->max_mr = 2 * limit("FAKE_MOST", 100000);
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    /* As if the one before had been freed by a call that is not seen: the next one has its address. */
    static struct domain *again;
    if (again)
        return &again->pd;
    struct domain *domain = calloc(1, sizeof *domain);
    domain->pd.context = context;
    domains++;
    if (getenv("FAKE_ONE_ADDRESS"))
        again = domain;
    return &domain->pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
    struct domain *domain = (struct domain *)pd;
    pthread_mutex_lock(&lock);
    int busy = domain->regions > 0;
    if (!busy)
        domains--;
    pthread_mutex_unlock(&lock);
    if (busy)
        return errno = EBUSY;
    free(domain);
    return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access) {
    struct domain *domain = (struct domain *)pd;
    uintptr_t first = (uintptr_t)addr & ~4095ul, end = ((uintptr_t)addr + length + 4095) & ~4095ul;
    (void)iova;
    if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE)) {
        errno = EINVAL;
        return NULL;
    }
    if (!(access & IBV_ACCESS_ON_DEMAND) && (end < first || madvise((void *)first, end - first, MADV_NORMAL))) {
        errno = EFAULT;
        return NULL;
    }
    long delay = limit("FAKE_DELAY_US", 0);
    if (delay)
        usleep(delay);
    pthread_mutex_lock(&lock);
    struct region *region = NULL;
    if (live + queues >= limit("FAKE_MOST", 100000)) {
        errno = ENOMEM;
        refused++;
    } else {
        region = calloc(1, sizeof *region);
        uint32_t handle = next_handle++;
        region->mr = (struct ibv_mr){pd->context, pd, addr, length, handle, handle << 8, access & 14 ? handle << 8 : 0};
        region->access = access;
        region->next = regions;
        regions = region;
        domain->regions++;
        registered++;
        if (++live > most)
            most = live;
    }
    pthread_mutex_unlock(&lock);
    return region ? &region->mr : NULL;
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access) {
    return ibv_reg_mr_iova2(pd, addr, length, iova, access);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}

/* Of the interface before version 1.1, whose structures are others. */
struct ibv_mr *reg_mr_1_0(struct ibv_pd *pd, void *addr, size_t length, int access);
struct ibv_mr *reg_mr_1_0(struct ibv_pd *pd, void *addr, size_t length, int access) {
    (void)pd, (void)addr, (void)length, (void)access;
    bad("a function of version 1.0 is called");
    return NULL;
}
__asm__(".symver reg_mr_1_0, ibv_reg_mr@IBVERBS_1.0");

int ibv_dereg_mr(struct ibv_mr *mr) {
    pthread_mutex_lock(&lock);
    struct region **at = &regions;
    while (*at && &(*at)->mr != mr)
        at = &(*at)->next;
    struct region *region = *at;
    if (region) {
        *at = region->next;
        ((struct domain *)mr->pd)->regions--;
        deregistered++;
        live--;
    }
    for (struct region *gone = closed; gone; gone = gone->next)
        if (&gone->mr == mr)
            bad("a region of a closed device is deregistered");
    pthread_mutex_unlock(&lock);
    if (!region) {
        /* The kernel has no such handle: the real one says so if it comes that far. */
        return errno = ENOENT;
    }
    memset(region, 0x5a, sizeof *region);
    free(region);
    return 0;
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access) {
    (void)pd;
    if (getenv("FAKE_NO_REREG")) {
        errno = EOPNOTSUPP;
        return -4;
    }
    pthread_mutex_lock(&lock);
    struct region *region = regions;
    while (region && &region->mr != mr)
        region = region->next;
    if (region && flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
        mr->addr = addr;
        mr->length = length;
    }
    if (region && flags & IBV_REREG_MR_CHANGE_ACCESS)
        region->access = access;
    pthread_mutex_unlock(&lock);
    if (!region)
        bad("a region that is not its own is changed");
    return 0;
}

/* A queue takes the room of a registration. */
static void *queue(size_t size) {
    pthread_mutex_lock(&lock);
    int full = live + queues >= limit("FAKE_MOST", 100000);
    queues += !full;
    refused += full;
    pthread_mutex_unlock(&lock);
    errno = full ? ENOMEM : errno;
    return full ? NULL : calloc(1, size);
}

static int end_queue(void *queue) {
    pthread_mutex_lock(&lock);
    queues--;
    pthread_mutex_unlock(&lock);
    free(queue);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *of_program, struct ibv_comp_channel *channel,
                             int vector) {
    (void)context, (void)entries, (void)of_program, (void)channel, (void)vector;
    return queue(sizeof(struct ibv_cq));
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes) {
    (void)pd, (void)attributes;
    return queue(sizeof(struct ibv_qp));
}

int ibv_destroy_cq(struct ibv_cq *cq) { return end_queue(cq); }
int ibv_destroy_qp(struct ibv_qp *qp) { return end_queue(qp); }

long fake_live(void) {
    pthread_mutex_lock(&lock);
    long now = live;
    pthread_mutex_unlock(&lock);
    return now;
}

int ibv_fork_init(void) {
    fork_safe = 1;
    return 0;
}

int ibv_is_fork_initialized(void) { return fork_safe ? 1 : 2; }

__attribute__((destructor)) static void ends(void) {
    const char *name = getenv("FAKE_COUNTS");
    FILE *file = name ? fopen(name, "a") : NULL;
    if (file) {
        fprintf(file, "%ld registered, %ld deregistered, %ld live, %ld at most, %ld domains, %ld contexts, %ld refused\n",
                registered, deregistered, live, most, domains, contexts, refused);
        fclose(file);
    }
}
