/* A program that gives a peer rights to parts of its buffers, and takes them back: so many times some bytes of one of 8 buffers of
 * 4 pages are registered and deregistered, and so many times a peer then uses the key that has ended.
 *
 *   rights TIMES REFUSALS [stay]
 *
 * `stay` ends the process with a registration and its domain open. Says what a peer could and could not do: the same, whatever keeps
 * the memory registered. Ends with 1 if a peer could do what it must not. */
#define _GNU_SOURCE
#include "carry.h"
#include <sys/mman.h>
#include <time.h>

enum {
    PAGES = 4,
    BUFFERS = 8,
    SIZE = PAGES * 4096,
    LENGTH = 8192,
    READ = IBV_ACCESS_REMOTE_READ,
    WRITE = IBV_ACCESS_REMOTE_WRITE,
    KEYS = 100,
};

static struct ibv_pd *pd;
static char *memory, *own;
static struct ibv_mr *owns;
static struct wire peer;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

/* A connection of the peer. A refusal ends it, so there is another one for each. */
static void connect_peer(void) {
    wire_open(&peer, pd);
#ifndef FAKE_VERBS
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr rights = {.qp_access_flags = READ | WRITE};
        NEED(!ibv_modify_qp(peer.qp[i], &rights, IBV_QP_ACCESS_FLAGS));
    }
#endif
}

static enum ibv_wc_status reach(int writes, char *address, size_t length, uint32_t rkey) {
#ifdef FAKE_VERBS
    return fake_access(pd, writes, own, address, length, rkey);
#else
    struct ibv_sge entry = {(uintptr_t)own, length, owns->lkey};
    struct ibv_send_wr request = {.sg_list = &entry, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
                                  .opcode = writes ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
                                  .wr.rdma = {(uintptr_t)address, rkey}},
                       *bad;
    NEED(!ibv_post_send(peer.qp[0], &request, &bad));
    struct ibv_wc done;
    int got;
    while (!(got = ibv_poll_cq(peer.cq, 1, &done)))
        ;
    NEED(got == 1);
    if (done.status != IBV_WC_SUCCESS) {
        wire_close(&peer);
        connect_peer();
    }
    return done.status;
#endif
}

static int wrong;
static void answer(const char *what, long right, long of) {
    printf("%s: %ld of %ld\n", what, right, of);
    wrong |= right != of;
}

static char *bytes_of(long i) { return memory + i % BUFFERS * SIZE + 64 + i % 1000; }

static struct ibv_mr *registered(char *bytes, int rights) {
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE | rights);
    NEED(mr && mr->rkey && mr->addr == bytes && mr->length == LENGTH);
    return mr;
}

/* Whether a read, or a write, is refused and changes nothing. */
static int is_refused(int writes, char *address, size_t length, uint32_t rkey) {
    memset(own, 9, length);
    char before = *address;
    int refused = reach(writes, address, length, rkey) == IBV_WC_REM_ACCESS_ERR;
    return refused && own[0] == 9 && *address == before;
}

int main(int count, char **arguments) {
    NEED(count >= 3);
    long times = atol(arguments[1]), refusals = atol(arguments[2]);
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    NEED(context && (pd = ibv_alloc_pd(context)));
    memory = mmap(NULL, BUFFERS * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(memory != MAP_FAILED && own != MAP_FAILED);
    memset(memory, 1, BUFFERS * SIZE);
    NEED(owns = ibv_reg_mr(pd, own, SIZE, IBV_ACCESS_LOCAL_WRITE));
    connect_peer();

    long read = 0, written = 0, checked = 0, fresh = 0, outside = 0, rightless = 0, refused = 0;
    uint32_t keys[KEYS] = {0};
    double registering = 0, deregistering = 0;
    for (long i = 0; i < times; i++) {
        char *bytes = bytes_of(i);
        double begun = now();
        struct ibv_mr *mr = registered(bytes, READ | WRITE);
        registering += now() - begun;
        int is_new = 1;
        for (int at = 0; at < KEYS; at++)
            is_new &= keys[at] != mr->rkey;
        fresh += is_new;
        keys[i % KEYS] = mr->rkey;
        if (i % 32 == 0) {
            checked++;
            memset(bytes, (char)i, LENGTH);
            read += !reach(0, bytes, LENGTH, mr->rkey) && !memcmp(own, bytes, LENGTH);
            memset(own, (char)(i + 1), LENGTH);
            written += !reach(1, bytes, LENGTH, mr->rkey) && !memcmp(own, bytes, LENGTH);
            outside += is_refused(i / 32 % 2, i / 64 % 2 ? bytes - 1 : bytes + LENGTH, 1, mr->rkey);
        }
        begun = now();
        NEED(!ibv_dereg_mr(mr));
        deregistering += now() - begun;
        if (i % 32 == 0) {
            int writes = i / 32 % 2;
            mr = registered(bytes, writes ? READ : WRITE);
            rightless += is_refused(writes, bytes, 64, mr->rkey);
            NEED(!ibv_dereg_mr(mr));
        }
    }
    answer("other keys than before", fresh, times);
    answer("read in bounds", read, checked);
    answer("written in bounds", written, checked);
    answer("bytes outside refused", outside, checked);
    answer("without the right refused", rightless, checked);
    if (times)
        fprintf(stderr, "us a time: register %.1f deregister %.1f\n", registering / times, deregistering / times);

    /* Ended keys. Every other time the same bytes are registered again by then. */
    for (long i = 0; i < refusals; i++) {
        char *bytes = bytes_of(i);
        struct ibv_mr *mr = registered(bytes, READ | WRITE), *again = NULL;
        uint32_t old = mr->rkey;
        NEED(!ibv_dereg_mr(mr));
        if (i / 2 % 2)
            again = registered(bytes, READ | WRITE);
        refused += is_refused(i % 2, bytes, 64, old);
        NEED(!again || !ibv_dereg_mr(again));
    }
    answer("ended keys refused", refused, refusals);
    if (count > 3) {
        registered(memory, READ);
        return wrong;
    }
    wire_close(&peer);
    NEED(!ibv_dereg_mr(owns));
    /* A registration that the program still has keeps the domain, also of a cache. */
    struct ibv_mr *last = registered(memory, READ | WRITE);
    NEED(ibv_dealloc_pd(pd));
    NEED(!ibv_dereg_mr(last));
    NEED(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
    ibv_free_device_list(list);
    return wrong;
}
