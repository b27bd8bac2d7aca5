/*
 * Two processes: one sends messages out of buffers of its own, the other receives them into buffers of its own. Each leases the memory
 * of a work request from a cache, for as long as the request is under way. So a buffer is registered the first time, and no other time.
 *
 *     cc -o pair pair.c $(pkg-config --cflags --libs mrrc) -lrdmacm -libverbs
 *     ./pair receive 7175
 *     ./pair send 10.0.0.1 7175 1000
 *
 * The library has to be installed with verbs (mrrc/c/install --features verbs). Without a card:
 * modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0, and the address is that of eth0.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <mrrc.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { BUFFERS = 8, BYTES = 64 << 10, MAX_SEGMENTS = 4, PATIENCE = 20 };

/* What a message begins with. All of its other bytes are its number's last. */
struct header {
    uint32_t number;
    uint32_t messages;
};

static struct rdma_cm_id *id;
static mrrc_cache_t *cache;

static void fail(const char *what, ...)
{
    va_list rest;
    va_start(rest, what);
    vfprintf(stderr, what, rest);
    va_end(rest);
    fputc('\n', stderr);
    exit(1);
}

/* Fails where a call of librdmacm did. */
static void must(int returned, const char *what)
{
    if (returned != 0)
        fail("%s: %s", what, strerror(errno));
}

static char *map(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap: %s", strerror(errno));
    return memory;
}

/* Leases memory and fills a list for a work request: a segment for each region that the memory is in. */
static int lease_memory(char *memory, size_t bytes, mrrc_access_t access, mrrc_lease_t *lease, struct ibv_sge *list)
{
    mrrc_error_t error;
    mrrc_segment_t segments[MAX_SEGMENTS];
    if (mrrc_acquire(cache, memory, bytes, access, lease, &error) != MRRC_OK)
        fail("%s", error.message);
    size_t count = mrrc_segments(lease, segments, MAX_SEGMENTS);
    if (count > MAX_SEGMENTS)
        fail("more segments than max_segments");
    for (size_t i = 0; i < count; i++)
        list[i] = (struct ibv_sge){ (uintptr_t)segments[i].address, (uint32_t)segments[i].length, (uint32_t)segments[i].lkey };
    return (int)count;
}

static void post_send(char *from, size_t bytes, mrrc_lease_t *lease)
{
    struct ibv_sge list[MAX_SEGMENTS];
    struct ibv_send_wr work = { .sg_list = list, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
    work.num_sge = lease_memory(from, bytes, MRRC_LOCAL_READ, lease, list);
    int failed = ibv_post_send(id->qp, &work, &bad);
    if (failed != 0)
        fail("ibv_post_send: %s", strerror(failed));
}

static void post_receive(char *to, size_t bytes, mrrc_lease_t *lease)
{
    struct ibv_sge list[MAX_SEGMENTS];
    struct ibv_recv_wr work = { .sg_list = list }, *bad;
    work.num_sge = lease_memory(to, bytes, MRRC_LOCAL_WRITE, lease, list);
    int failed = ibv_post_recv(id->qp, &work, &bad);
    if (failed != 0)
        fail("ibv_post_recv: %s", strerror(failed));
}

/* Waits until the only work request of a queue is done, and ends the lease of its memory. Returns how many bytes came. */
static size_t complete(struct ibv_cq *queue, mrrc_lease_t *lease)
{
    struct ibv_wc done;
    time_t until = time(NULL) + PATIENCE;
    int polled;
    while ((polled = ibv_poll_cq(queue, 1, &done)) == 0) {
        if (time(NULL) > until)
            fail("no answer in %d seconds", PATIENCE);
        sched_yield();
    }
    if (polled < 0 || done.status != IBV_WC_SUCCESS)
        fail("the transfer failed: %s", polled < 0 ? "ibv_poll_cq" : ibv_wc_status_str(done.status));
    /* The memory stays registered, and may be evicted from now on. */
    mrrc_release(lease);
    return done.byte_len;
}

/* Makes an endpoint: one that listens where there is no host, else one that is to be connected to it. */
static struct rdma_cm_id *endpoint(const char *host, const char *port)
{
    struct rdma_addrinfo wishes = { .ai_port_space = RDMA_PS_TCP, .ai_flags = host == NULL ? RAI_PASSIVE : 0 }, *place;
    struct ibv_qp_init_attr queues = { .qp_type = IBV_QPT_RC };
    queues.cap.max_send_wr = queues.cap.max_recv_wr = 2;
    queues.cap.max_send_sge = queues.cap.max_recv_sge = MAX_SEGMENTS;
    struct rdma_cm_id *made;
    must(rdma_getaddrinfo(host, port, &wishes, &place), "rdma_getaddrinfo");
    must(rdma_create_ep(&made, place, NULL, &queues), "rdma_create_ep: is there an RDMA device? `rdma link` lists them");
    rdma_freeaddrinfo(place);
    return made;
}

/* A cache over the protection domain of the connection's queue pair. */
static void create_cache(void)
{
    mrrc_error_t error;
    mrrc_options_t *options = mrrc_options_new();
    if (mrrc_options_set(options, "max_segments", "4", &error) != MRRC_OK ||
        mrrc_cache_new_verbs(options, id->pd, &cache, &error) != MRRC_OK)
        fail("%s", error.message);
    mrrc_options_free(options);
}

static void print_counters(const char *did, uint32_t messages)
{
    mrrc_counters_t counters;
    mrrc_counters(cache, &counters, sizeof counters);
    printf("%s %u messages of %d bytes: %lu registrations, %lu hits\n", did, (unsigned)messages, BYTES,
           (unsigned long)counters.attempts, (unsigned long)counters.hits);
}

static void receive(const char *port)
{
    struct rdma_cm_id *listener = endpoint(NULL, port);
    must(rdma_listen(listener, 1), "rdma_listen");
    printf("listening on port %s\n", port);
    fflush(stdout);
    must(rdma_get_request(listener, &id), "rdma_get_request");
    create_cache();
    char *buffers[BUFFERS], *answer = map(sizeof(uint32_t));
    for (int i = 0; i < BUFFERS; i++)
        buffers[i] = map(BYTES);
    mrrc_lease_t received = { { 0 } }, sent = { { 0 } };
    /* Before the connection: the first message may come with it. */
    post_receive(buffers[0], BYTES, &received);
    must(rdma_accept(id, NULL), "rdma_accept");
    struct header header = { .messages = 1 };
    for (uint32_t number = 0; number < header.messages; number++) {
        char *buffer = buffers[number % BUFFERS];
        size_t bytes = complete(id->recv_cq, &received);
        memcpy(&header, buffer, sizeof header);
        if (bytes != BYTES || header.number != number)
            fail("message %u: %zu bytes came, of message %u", (unsigned)number, bytes, (unsigned)header.number);
        for (size_t at = sizeof header; at < BYTES; at++)
            if (buffer[at] != (char)number)
                fail("message %u: byte %zu is another", (unsigned)number, at);
        /* The peer sends the next one when it has the answer. */
        if (number + 1 < header.messages)
            post_receive(buffers[(number + 1) % BUFFERS], BYTES, &received);
        memcpy(answer, &number, sizeof number);
        post_send(answer, sizeof number, &sent);
        complete(id->send_cq, &sent);
    }
    print_counters("received", header.messages);
    rdma_disconnect(id);
    mrrc_cache_free(cache);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listener);
}

static void send_all(const char *host, const char *port, uint32_t messages)
{
    id = endpoint(host, port);
    create_cache();
    must(rdma_connect(id, NULL), "rdma_connect: does the other process listen?");
    char *buffers[BUFFERS], *answer = map(sizeof(uint32_t));
    for (int i = 0; i < BUFFERS; i++)
        buffers[i] = map(BYTES);
    mrrc_lease_t received = { { 0 } }, sent = { { 0 } };
    for (uint32_t number = 0; number < messages; number++) {
        char *buffer = buffers[number % BUFFERS];
        struct header header = { number, messages };
        uint32_t answered;
        memset(buffer, (int)number, BYTES);
        memcpy(buffer, &header, sizeof header);
        post_receive(answer, sizeof answered, &received);
        post_send(buffer, BYTES, &sent);
        complete(id->send_cq, &sent);
        complete(id->recv_cq, &received);
        memcpy(&answered, answer, sizeof answered);
        if (answered != number)
            fail("message %u: the answer is to message %u", (unsigned)number, (unsigned)answered);
    }
    print_counters("sent", messages);
    rdma_disconnect(id);
    mrrc_cache_free(cache);
    rdma_destroy_ep(id);
}

int main(int argc, char **argv)
{
    long messages = argc == 5 ? strtol(argv[4], NULL, 10) : 1000;
    if (argc == 3 && strcmp(argv[1], "receive") == 0)
        receive(argv[2]);
    else if ((argc == 4 || argc == 5) && strcmp(argv[1], "send") == 0 && messages > 0 && messages <= INT32_MAX)
        send_all(argv[2], argv[3], (uint32_t)messages);
    else
        fail("usage: %s receive PORT | send HOST PORT [MESSAGES]", argv[0]);
    return 0;
}
