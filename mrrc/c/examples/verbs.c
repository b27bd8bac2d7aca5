/*
 * A cache over a protection domain: two queue pairs of one device are connected to each other, and buffers are written into a
 * memory of the other side, first with a registration for each transfer and then with leases of a cache.
 *
 *     cc verbs.c $(pkg-config --cflags --libs mrrc) -libverbs && ./a.out [DEVICE [TRANSFERS]]
 *
 * Without a card: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0. The library has to be installed with verbs
 * (mrrc/c/install --features verbs). iWARP connects its queue pairs in another way, and is not for this program.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <mrrc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { BUFFERS = 8, BYTES = 64 << 10, MAX_SGE = 4, PORT = 1 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *ours, *theirs;

static void fail(const char *what, ...)
{
    va_list rest;
    va_start(rest, what);
    vfprintf(stderr, what, rest);
    va_end(rest);
    fputc('\n', stderr);
    exit(1);
}

static void *must(void *made, const char *what)
{
    if (made == NULL)
        fail("%s: %s", what, strerror(errno));
    return made;
}

static void open_device(const char *name)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    for (int i = 0; i < count && context == NULL; i++)
        if (name == NULL || strcmp(ibv_get_device_name(devices[i]), name) == 0)
            context = must(ibv_open_device(devices[i]), "ibv_open_device");
    if (context == NULL)
        fail("there is no RDMA device %s: `rdma link` lists them", name != NULL ? name : "here");
    ibv_free_device_list(devices);
    pd = must(ibv_alloc_pd(context), "ibv_alloc_pd");
    cq = must(ibv_create_cq(context, 16, NULL, NULL, 0), "ibv_create_cq");
}

static struct ibv_qp *create_pair(void)
{
    struct ibv_qp_init_attr wishes = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };
    wishes.cap.max_send_wr = wishes.cap.max_recv_wr = 8;
    wishes.cap.max_send_sge = MAX_SGE;
    wishes.cap.max_recv_sge = 1;
    return must(ibv_create_qp(pd, &wishes), "ibv_create_qp");
}

/* The first address that is IPv4's, which RoCE goes by; else the first. */
static int address_of_port(union ibv_gid *gid)
{
    static const unsigned char ipv4[12] = { [10] = 0xff, [11] = 0xff };
    for (int index = 0; index < 16; index++)
        if (ibv_query_gid(context, PORT, index, gid) == 0 && memcmp(gid->raw, ipv4, sizeof ipv4) == 0)
            return index;
    if (ibv_query_gid(context, PORT, 0, gid) != 0)
        fail("the port has no address");
    return 0;
}

static void connect_pair(struct ibv_qp *qp, const struct ibv_qp *to)
{
    struct ibv_port_attr port;
    union ibv_gid gid;
    if (ibv_query_port(context, PORT, &port) != 0 || port.state != IBV_PORT_ACTIVE)
        fail("the port is not active");
    struct ibv_qp_attr set = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
    set.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    int failed = ibv_modify_qp(qp, &set, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    set.qp_state = IBV_QPS_RTR;
    set.path_mtu = port.active_mtu;
    set.dest_qp_num = to->qp_num;
    set.max_dest_rd_atomic = 1;
    set.min_rnr_timer = 12;
    set.ah_attr.port_num = PORT;
    set.ah_attr.dlid = port.lid;
    set.ah_attr.is_global = 1;
    set.ah_attr.grh.hop_limit = 1;
    set.ah_attr.grh.sgid_index = (uint8_t)address_of_port(&gid);
    set.ah_attr.grh.dgid = gid;
    if (failed == 0)
        failed = ibv_modify_qp(qp, &set, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    set.qp_state = IBV_QPS_RTS;
    set.timeout = 18;
    set.retry_cnt = set.rnr_retry = 7;
    set.max_rd_atomic = 1;
    if (failed == 0)
        failed = ibv_modify_qp(qp, &set, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                             IBV_QP_MAX_QP_RD_ATOMIC);
    if (failed != 0)
        fail("connecting the queue pairs: %s", strerror(failed));
}

/* Writes what the list names to the other side, and waits until it is there. */
static void write_there(struct ibv_sge *list, size_t count, void *to, uint64_t rkey)
{
    struct ibv_send_wr work = { .sg_list = list, .num_sge = (int)count, .opcode = IBV_WR_RDMA_WRITE }, *bad;
    work.send_flags = IBV_SEND_SIGNALED;
    work.wr.rdma.remote_addr = (uintptr_t)to;
    work.wr.rdma.rkey = (uint32_t)rkey;
    int failed = ibv_post_send(ours, &work, &bad), polled;
    if (failed != 0)
        fail("ibv_post_send: %s", strerror(failed));
    struct ibv_wc done;
    while ((polled = ibv_poll_cq(cq, 1, &done)) == 0)
        ;
    if (polled < 0 || done.status != IBV_WC_SUCCESS)
        fail("the transfer failed: %s", polled < 0 ? "ibv_poll_cq" : ibv_wc_status_str(done.status));
}

/* With a registration of the memory for this transfer: what programs do that have no cache. */
static unsigned long by_hand(char *from, char *to)
{
    struct ibv_mr *local = must(ibv_reg_mr(pd, from, BYTES, 0), "ibv_reg_mr");
    struct ibv_mr *remote = must(ibv_reg_mr(pd, to, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE), "ibv_reg_mr");
    struct ibv_sge whole = { (uintptr_t)from, BYTES, local->lkey };
    write_there(&whole, 1, to, remote->rkey);
    if (ibv_dereg_mr(local) != 0 || ibv_dereg_mr(remote) != 0)
        fail("ibv_dereg_mr: %s", strerror(errno));
    return 2;
}

/* With leases of a cache. */
static void by_leases(mrrc_cache_t *cache, char *from, char *to)
{
    mrrc_error_t error;
    mrrc_lease_t local = { { 0 } }, remote = { { 0 } };
    mrrc_segment_t parts[MAX_SGE], there;
    struct ibv_sge list[MAX_SGE];
    if (mrrc_acquire(cache, from, BYTES, MRRC_LOCAL_READ, &local, &error) != MRRC_OK ||
        mrrc_acquire(cache, to, BYTES, MRRC_LOCAL_WRITE | MRRC_REMOTE_WRITE, &remote, &error) != MRRC_OK)
        fail("%s", error.message);
    size_t count = mrrc_segments(&local, parts, MAX_SGE);
    if (count > MAX_SGE || mrrc_segments(&remote, &there, 1) != 1)
        fail("more segments than max_segments");
    for (size_t i = 0; i < count; i++)
        list[i] = (struct ibv_sge){ (uintptr_t)parts[i].address, (uint32_t)parts[i].length, (uint32_t)parts[i].lkey };
    write_there(list, count, there.address, there.rkey);
    /* Both transfers are complete: the memory stays registered, and may be evicted. */
    mrrc_release(&local);
    mrrc_release(&remote);
}

static char *map(void *place)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (place != NULL ? MAP_FIXED_NOREPLACE : 0);
    char *memory = mmap(place, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    return memory == MAP_FAILED ? fail("mmap: %s", strerror(errno)), NULL : memory;
}

static long pinned_pages(void)
{
    char line[200];
    long kilobytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        sscanf(line, "VmPin: %ld", &kilobytes);
    if (status != NULL)
        fclose(status);
    return kilobytes / 4;
}

static double microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

int main(int argc, char **argv)
{
    long transfers = argc > 2 ? strtol(argv[2], NULL, 10) : 200;
    if (argc > 4 || transfers < 1)
        fail("usage: %s [DEVICE [TRANSFERS [MONITOR]]]", argv[0]);
    open_device(argc > 1 ? argv[1] : NULL);
    ours = create_pair();
    theirs = create_pair();
    connect_pair(ours, theirs);
    connect_pair(theirs, ours);

    mrrc_error_t error;
    mrrc_cache_t *cache;
    mrrc_options_t *options = mrrc_options_new();
    if (mrrc_options_set(options, "max_segments", "1", &error) != MRRC_OK ||
        (argc > 3 && mrrc_options_set(options, "monitor", argv[3], &error) != MRRC_OK) ||
        mrrc_cache_new_verbs(options, pd, &cache, &error) != MRRC_OK)
        fail("%s", error.message);
    mrrc_options_free(options);

    char *from[BUFFERS], *to = map(NULL);
    for (int i = 0; i < BUFFERS; i++)
        from[i] = map(NULL);
    for (int cached = 0; cached < 2; cached++) {
        unsigned long registered = 0;
        double begun = microseconds();
        for (long i = 0; i < transfers; i++) {
            char *buffer = from[i * 7 % BUFFERS];
            memset(buffer, (int)(i * 2 + cached), BYTES);
            if (cached)
                by_leases(cache, buffer, to);
            else
                registered += by_hand(buffer, to);
            if (memcmp(buffer, to, BYTES) != 0)
                fail("transfer %ld: the other side has something else", i);
        }
        double took = (microseconds() - begun) / (double)transfers;
        mrrc_counters_t counters;
        mrrc_counters(cache, &counters, sizeof counters);
        if (cached)
            registered = counters.attempts;
        printf("%-9s %ld transfers, all arrived; %lu registrations, %ld pages pinned at the end; %.0f us each\n",
               cached ? "cached:" : "by hand:", transfers, registered, pinned_pages(), took);
    }

    /* Memory that was unmapped, and mapped anew at the same address: other pages. */
    munmap(from[0], BYTES);
    from[0] = map(from[0]);
    memset(from[0], 'n', BYTES);
    by_leases(cache, from[0], to);
    mrrc_counters_t counters;
    mrrc_counters(cache, &counters, sizeof counters);
    printf("remapped: %s; %lu registrations in all, %lu hits\n", to[0] == 'n' ? "the new bytes arrived" : "STALE BYTES ARRIVED",
           (unsigned long)counters.attempts, (unsigned long)counters.hits);

    char text[1000];
    mrrc_explain(cache, to, BYTES, MRRC_LOCAL_WRITE | MRRC_REMOTE_WRITE, text, sizeof text);
    printf("explain:  %s\n", text);
    mrrc_cache_free(cache);
    ibv_destroy_qp(ours);
    ibv_destroy_qp(theirs);
    ibv_destroy_cq(cq);
    /* The kernel refuses that as long as there is a registration in it. */
    int left = ibv_dealloc_pd(pd);
    printf("freed:    %ld pages pinned; ibv_dealloc_pd: %s\n", pinned_pages(), left == 0 ? "done" : strerror(left));
    ibv_close_device(context);
    return left == 0 && to[0] == 'n' ? 0 : 1;
}
