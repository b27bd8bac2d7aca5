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
/* `regions`: what is in it, windows and queue pairs as well. */
struct domain {
    struct ibv_pd pd;
    int regions;
};
/* A window, what it is bound to, and the region that it was bound to last. */
struct window {
    struct ibv_mw mw;
    struct region *to, *last;
    uint64_t addr, length;
    unsigned int rights;
    struct window *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_device device;
static struct region *regions, *closed;
static uint32_t next_handle = 1;
static struct window *windows;
static long made_windows, bindings;
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

const char *ibv_get_device_name(struct ibv_device *device) {
    (void)device;
    return "fake0";
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
static int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
static int dealloc_mw(struct ibv_mw *mw);
static int poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc);
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    struct ibv_context *context = calloc(1, sizeof *context);
    context->device = device;
    context->ops = (struct ibv_context_ops){.alloc_mw = alloc_mw, .bind_mw = bind_mw, .dealloc_mw = dealloc_mw,
                                            .poll_cq = poll_cq, .post_send = post_send};
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
    for (struct window **at = &windows; *at;)
        if ((*at)->mw.context == context) {
            made_windows--;
            *at = (*at)->next;
        } else
            at = &(*at)->next;
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
    for (struct window *window = windows; region && window; window = window->next) {
        if (window->to == region) {
            pthread_mutex_unlock(&lock);
            return errno = EBUSY;
        }
        if (window->last == region)
            bad("a region ends before a window that was bound to it");
    }
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
    (void)entries, (void)of_program, (void)channel, (void)vector;
    struct ibv_cq *cq = queue(sizeof *cq);
    if (cq)
        cq->context = context;
    return cq;
}

static void count(struct ibv_pd *pd, int more) {
    pthread_mutex_lock(&lock);
    ((struct domain *)pd)->regions += more;
    pthread_mutex_unlock(&lock);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes) {
    struct ibv_qp *qp = queue(sizeof *qp);
    if (qp) {
        qp->context = pd->context;
        qp->pd = pd;
        qp->send_cq = attributes->send_cq;
        count(pd, 1);
    }
    return qp;
}

int ibv_destroy_cq(struct ibv_cq *cq) { return end_queue(cq); }

int ibv_destroy_qp(struct ibv_qp *qp) {
    count(qp->pd, -1);
    return end_queue(qp);
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int what) {
    (void)qp, (void)what;
    /* A device without atomic operations. */
    if (attributes->qp_state == 1 && attributes->qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC)
        return EINVAL;
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes) {
    (void)context;
    memset(attributes, 0, sizeof *attributes);
    attributes->state = getenv("FAKE_PORT_DOWN") ? 1 : 4;
    attributes->gid_tbl_len = 1;
    attributes->link_layer = 2;
    return port == 1 ? 0 : EINVAL;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int at, uint8_t gid[16]) {
    (void)context, (void)port, (void)at;
    memset(gid, 1, 16);
    return 0;
}

/* How windows behave: rightly, or `none`, `loose` (without bounds), `stale` (old keys work), `slow`, `same` (one key for all). */
static int windows_are(const char *how) {
    const char *text = getenv("FAKE_WINDOWS");
    return text && !strcmp(text, how);
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type) {
    if (windows_are("none") || type != IBV_MW_TYPE_1) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    struct window *window = calloc(1, sizeof *window);
    pthread_mutex_lock(&lock);
    uint32_t handle = next_handle++;
    window->mw = (struct ibv_mw){pd->context, pd, handle << 8, handle, type};
    window->next = windows;
    windows = window;
    ((struct domain *)pd)->regions++;
    made_windows++;
    pthread_mutex_unlock(&lock);
    return &window->mw;
}

static int dealloc_mw(struct ibv_mw *mw) {
    pthread_mutex_lock(&lock);
    struct window **at = &windows;
    while (*at && &(*at)->mw != mw)
        at = &(*at)->next;
    struct window *window = *at;
    if (!window)
        bad("a window is ended twice");
    *at = window->next;
    ((struct domain *)mw->pd)->regions--;
    made_windows--;
    pthread_mutex_unlock(&lock);
    free(window);
    return 0;
}

static void complete(struct ibv_qp *qp, int status) {
    qp->in_error |= status != IBV_WC_SUCCESS;
    if (qp->send_cq->count == 8)
        bad("more completions than a queue has room for");
    qp->send_cq->waiting[qp->send_cq->count++] = status;
}

static int poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc) {
    (void)entries;
    if (!cq->count)
        return 0;
    memset(wc, 0, sizeof *wc);
    wc->status = cq->waiting[0];
    memmove(cq->waiting, cq->waiting + 1, --cq->count * sizeof *cq->waiting);
    return 1;
}

/* Every so many bindings after those of the trial fail: FAKE_BIND_REFUSED with ENOMEM, FAKE_BIND_BROKEN with the queue pair. */
static int fails(const char *name) {
    long each = limit(name, 0);
    return each && bindings > 300 && bindings % each == 0;
}

static int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind) {
    struct window *window = (struct window *)mw;
    struct ibv_mw_bind_info *info = &bind->bind_info;
    struct region *region = (struct region *)info->mr;
    if (windows_are("slow"))
        usleep(1000);
    pthread_mutex_lock(&lock);
    struct region *known = regions;
    while (known && known != region)
        known = known->next;
    bindings++;
    int error = 0, status = IBV_WC_SUCCESS;
    if (!known || region->mr.pd != mw->pd || qp->pd != mw->pd)
        bad("a window is bound to a region that is not registered, or of another domain");
    else if (fails("FAKE_BIND_REFUSED"))
        error = ENOMEM;
    else if (qp->in_error)
        status = IBV_WC_WR_FLUSH_ERR;
    else if (fails("FAKE_BIND_BROKEN"))
        status = IBV_WC_MW_BIND_ERR;
    else if (info->length) {
        uint64_t first = (uintptr_t)region->mr.addr, end = first + region->mr.length;
        if (!(region->access & IBV_ACCESS_MW_BIND) || info->addr < first || info->addr + info->length > end ||
            (info->mw_access_flags & 2 && !(region->access & 1)))
            status = IBV_WC_MW_BIND_ERR;
    }
    if (!error && status == IBV_WC_SUCCESS) {
        int is_stale = windows_are("stale") && !info->length;
        if (!windows_are("same"))
            mw->rkey = (mw->rkey & ~255u) | ((mw->rkey + !is_stale) & 255);
        if (!is_stale) {
            window->to = info->length ? region : NULL;
            window->addr = info->addr;
            window->length = info->length;
            window->rights = info->mw_access_flags;
        }
        if (info->length)
            window->last = region;
    }
    if (!error)
        complete(qp, status);
    pthread_mutex_unlock(&lock);
    return error;
}

/* Where a key leads, if it gives the right to these bytes. */
static int opens(struct ibv_pd *pd, uint32_t rkey, unsigned int right, uint64_t addr, uint64_t length) {
    for (struct region *region = regions; region; region = region->next)
        if (region->mr.rkey && region->mr.rkey == rkey && region->mr.pd == pd) {
            uint64_t first = (uintptr_t)region->mr.addr;
            return region->access & right && addr >= first && addr + length <= first + region->mr.length;
        }
    for (struct window *window = windows; window; window = window->next)
        if (window->to && window->mw.rkey == rkey && window->mw.pd == pd) {
            uint64_t first = window->addr, last = window->addr + window->length;
            if (windows_are("loose")) {
                first = (uintptr_t)window->to->mr.addr;
                last = first + window->to->mr.length;
            }
            return window->rights & right && addr >= first && addr + length <= last;
        }
    return 0;
}

int fake_access(struct ibv_pd *pd, int writes, void *own, void *address, size_t length, uint32_t rkey) {
    unsigned int right = writes ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
    pthread_mutex_lock(&lock);
    int may = opens(pd, rkey, right, (uintptr_t)address, length);
    pthread_mutex_unlock(&lock);
    if (may)
        memcpy(writes ? address : own, writes ? own : address, length);
    return may ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr) {
    (void)bad_wr;
    struct ibv_sge *own = wr->sg_list;
    int status = IBV_WC_WR_FLUSH_ERR;
    if (!qp->in_error)
        status = fake_access(qp->pd, wr->opcode == IBV_WR_RDMA_WRITE, (void *)own->addr, (void *)wr->wr.rdma.remote_addr,
                             own->length, wr->wr.rdma.rkey);
    pthread_mutex_lock(&lock);
    complete(qp, status);
    pthread_mutex_unlock(&lock);
    return 0;
}

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
        fprintf(file, "%ld registered, %ld deregistered, %ld live, %ld at most, %ld domains, %ld contexts, %ld refused, %ld windows\n",
                registered, deregistered, live, most, domains, contexts, refused, made_windows);
        fclose(file);
    }
}
