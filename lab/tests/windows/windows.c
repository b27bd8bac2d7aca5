/* Whether memory windows of type 1 could serve a cache that keeps memory registered: one region has no rights for peers, and each
 * registration of a program would get a window over exactly its bytes. A peer reads and writes by the windows' keys, in bounds, out
 * of bounds, and after they were unbound. The windows are bound on a queue pair of their own, which is linked to itself.
 *
 *   windows REGISTRATIONS REFUSALS
 *
 * Prints the answers that a device has to give, one a line, and how many there were; ends with 1 if one was wrong. */
#include "carry.h"
#include <sys/mman.h>
#include <time.h>

enum { PAGES = 4, BUFFERS = 40, SIZE = PAGES * 4096, PEER_RIGHTS = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static struct ibv_pd *pd;

static enum ibv_wc_status completion(struct ibv_cq *cq) {
    struct ibv_wc done;
    int got;
    while (!(got = ibv_poll_cq(cq, 1, &done)))
        ;
    NEED(got == 1);
    return done.status;
}

/* A connection of a peer. A refusal ends it, so there is another one for each. */
static struct wire peer;

static void connect_peer(void) {
    wire_open(&peer, pd);
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr rights = {.qp_access_flags = PEER_RIGHTS};
        NEED(!ibv_modify_qp(peer.qp[i], &rights, IBV_QP_ACCESS_FLAGS));
    }
}

/* The peer reads from, or writes to, these bytes. */
static enum ibv_wc_status reach(int writes, struct ibv_mr *own, char *address, size_t length, uint32_t rkey) {
    struct ibv_sge entry = {(uintptr_t)own->addr, length, own->lkey};
    struct ibv_send_wr request = {.sg_list = &entry, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
                                  .opcode = writes ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
                                  .wr.rdma = {(uintptr_t)address, rkey}},
                       *bad;
    NEED(!ibv_post_send(peer.qp[0], &request, &bad));
    enum ibv_wc_status status = completion(peer.cq);
    if (status != IBV_WC_SUCCESS) {
        wire_close(&peer);
        connect_peer();
    }
    return status;
}

/* Binds a window, or unbinds it where there is no length. The region is named in any case: rxe's library looks at it. */
static int bind_to(struct wire *local, struct ibv_mw *window, struct ibv_mr *region, char *address, size_t length) {
    struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED,
                               .bind_info = {region, (uintptr_t)address, length, length ? PEER_RIGHTS : 0}};
    int error = ibv_bind_mw(local->qp[0], window, &bind);
    if (error) {
        fprintf(stderr, "ibv_bind_mw: %s\n", strerror(error));
        return error;
    }
    return completion(local->cq);
}

static int wrong;
static void answer(const char *what, long right, long of) {
    printf("%s: %ld of %ld\n", what, right, of);
    wrong |= right != of;
}

int main(int count, char **arguments) {
    NEED(count == 3);
    long registrations = atol(arguments[1]), refusals = atol(arguments[2]);
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    NEED(context && (pd = ibv_alloc_pd(context)));
    struct ibv_pd *other_pd = ibv_alloc_pd(context);
    NEED(other_pd);
    size_t all = BUFFERS * SIZE;
    char *memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *own = malloc(SIZE);
    NEED(memory != MAP_FAILED && own);
    struct ibv_mr *regions[BUFFERS], *owns = ibv_reg_mr(pd, own, SIZE, IBV_ACCESS_LOCAL_WRITE);
    NEED(owns);
    for (int i = 0; i < BUFFERS; i++)
        NEED(regions[i] = ibv_reg_mr(pd, memory + i * SIZE, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
    struct wire local;
    wire_open(&local, pd);
    connect_peer();
    struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    if (!window) {
        printf("no windows of type 1: %m\n");
        return 1;
    }

    /* Registrations: each binds a window over its own bytes, lets a peer use it, and unbinds it. */
    long bound = 0, read = 0, written = 0, unbound = 0, fresh = 0;
    double binding = 0, unbinding = 0, registering = 0, deregistering = 0;
    uint32_t before = 0;
    for (long i = 0; i < registrations; i++) {
        char *bytes = memory + i % BUFFERS * SIZE + 64 + i % 1000;
        double begun = now();
        bound += !bind_to(&local, window, regions[i % BUFFERS], bytes, 8192);
        binding += now() - begun;
        fresh += window->rkey != before;
        before = window->rkey;
        memset(bytes, (char)i, 8192);
        read += !reach(0, owns, bytes, 8192, window->rkey) && !memcmp(own, bytes, 8192);
        memset(own, (char)(i + 1), 8192);
        written += !reach(1, owns, bytes, 8192, window->rkey) && !memcmp(own, bytes, 8192);
        begun = now();
        unbound += !bind_to(&local, window, regions[0], memory, 0);
        unbinding += now() - begun;
        begun = now();
        struct ibv_mr *region = ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE | PEER_RIGHTS);
        registering += now() - begun;
        NEED(region);
        begun = now();
        NEED(!ibv_dereg_mr(region));
        deregistering += now() - begun;
    }
    answer("bound", bound, registrations);
    answer("another key each time", fresh, registrations);
    answer("read in bounds", read, registrations);
    answer("written in bounds", written, registrations);
    answer("unbound", unbound, registrations);
    printf("us a time: bind %.1f unbind %.1f, register %.1f deregister %.1f\n", binding / registrations,
           unbinding / registrations, registering / registrations, deregistering / registrations);

    /* Ended keys, of reads and writes in turns. */
    long refused = 0, changed = 0;
    for (long i = 0; i < refusals; i++) {
        char *bytes = memory + i % BUFFERS * SIZE + 64;
        NEED(!bind_to(&local, window, regions[i % BUFFERS], bytes, 8192));
        uint32_t old = window->rkey;
        NEED(!bind_to(&local, window, regions[0], memory, 0));
        memset(memory, 7, all);
        memset(own, 9, SIZE);
        refused += reach(i % 2, owns, bytes, 64, old) == IBV_WC_REM_ACCESS_ERR;
        changed += memory[i % BUFFERS * SIZE + 64] != 7 || own[0] != 9;
    }
    answer("ended keys refused", refused, refusals);
    answer("bytes that ended keys left alone", refusals - changed, refusals);

    /* Old keys of windows that are bound again, as a pool of windows has them. */
    long rounds = refusals < 300 ? refusals : 300;
    refused = 0;
    for (long i = 0; i < rounds; i++) {
        NEED(!bind_to(&local, window, regions[0], memory, 8192));
        uint32_t old = window->rkey;
        NEED(!bind_to(&local, window, regions[0], memory, 0));
        NEED(!bind_to(&local, window, regions[0], memory, 8192));
        /* After 255 bindings a key comes again: a window is replaced before. */
        refused += reach(i % 2, owns, memory, 64, old) == IBV_WC_REM_ACCESS_ERR;
        NEED(!bind_to(&local, window, regions[0], memory, 0));
    }
    answer("keys of bindings before refused", refused, rounds);

    /* Bytes outside. */
    struct { long at; size_t length; } outside[] = {{-1, 1}, {-64, 128}, {4095, 2}, {4096, 1}, {8192, 64}, {0, 4097}, {-64, 8192}};
    long cases = sizeof outside / sizeof *outside;
    NEED(!bind_to(&local, window, regions[1], memory + SIZE + 256, 4096));
    refused = 0;
    for (long i = 0; i < 2 * cases; i++)
        refused += reach(i % 2, owns, memory + SIZE + 256 + outside[i / 2].at, outside[i / 2].length, window->rkey) ==
                   IBV_WC_REM_ACCESS_ERR;
    answer("bytes outside refused", refused, 2 * cases);

    /* Another domain's connection, and the region's own key. */
    struct ibv_pd *own_pd = pd;
    struct ibv_mr *others = ibv_reg_mr(other_pd, own, SIZE, IBV_ACCESS_LOCAL_WRITE);
    NEED(others);
    wire_close(&peer);
    pd = other_pd;
    connect_peer();
    answer("other domain refused", reach(0, others, memory + SIZE + 256, 64, window->rkey) == IBV_WC_REM_ACCESS_ERR, 1);
    wire_close(&peer);
    pd = own_pd;
    connect_peer();
    answer("key of the region refused", reach(0, owns, memory + SIZE, 64, regions[1]->rkey) == IBV_WC_REM_ACCESS_ERR, 1);
    /* A region with a window cannot end before the window does. */
    answer("region with a window stays", ibv_dereg_mr(regions[1]) != 0, 1);
    NEED(!bind_to(&local, window, regions[0], memory, 0));
    for (int i = 0; i < BUFFERS; i++)
        NEED(!ibv_dereg_mr(regions[i]));
    NEED(!ibv_dealloc_mw(window));
    wire_close(&local);
    wire_close(&peer);
    NEED(!ibv_dereg_mr(owns) && !ibv_dereg_mr(others));
    NEED(!ibv_dealloc_pd(pd) && !ibv_dealloc_pd(other_pd) && !ibv_close_device(context));
    ibv_free_device_list(list);
    return wrong;
}
