/* Sends messages from a buffer that libfabric has to register for each, and compares what arrives.
 *
 *   messages server|client ADDRESS PORT MESSAGES [LENGTH EVERY THREADS]
 *
 * `verbs;ofi_rxm` sends large messages by rendezvous: the receiver reads them from the sender's memory. Both register the
 * buffer of the call, unless libfabric's cache has it. In the middle each side maps its buffers anew, at the same addresses. With more
 * arguments, messages have LENGTH bytes, each side maps the next buffer anew before every EVERYth message, and THREADS threads map and
 * unmap memory meanwhile. */
#define _GNU_SOURCE
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BUFFERS = 8, MOST_THREADS = 8 };

static size_t message_length = 1 << 20;
static atomic_int over;

static struct fid_ep *endpoint;
static struct fid_cq *completions;

/* Ends the program if a call failed. */
static void check(const char *what, ssize_t result) {
    if (result == 0) return;
    fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-result));
    exit(1);
}

/* Waits for one completion. */
static void complete(void) {
    struct fi_cq_entry entry;
    ssize_t got;
    /* A guest has few processors, and other threads wait for them. */
    while ((got = fi_cq_read(completions, &entry, 1)) == -FI_EAGAIN) sched_yield();
    if (got == 1) return;
    struct fi_cq_err_entry error = {0};
    if (got == -FI_EAVAIL && fi_cq_readerr(completions, &error, 0) == 1) got = -error.err;
    check("a message", got);
}

static void receive(void *buffer, size_t length) {
    ssize_t result;
    while ((result = fi_recv(endpoint, buffer, length, NULL, FI_ADDR_UNSPEC, NULL)) == -FI_EAGAIN)
        fi_cq_read(completions, NULL, 0);
    check("fi_recv", result);
    complete();
}

static void transmit(const void *buffer, size_t length, fi_addr_t peer) {
    ssize_t result;
    while ((result = fi_send(endpoint, buffer, length, NULL, peer, NULL)) == -FI_EAGAIN)
        fi_cq_read(completions, NULL, 0);
    check("fi_send", result);
    complete();
}

static void *map(void *at) {
    int fixed = at ? MAP_FIXED : 0;
    void *memory = mmap(at, message_length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

/* Maps, touches and unmaps memory until the end. */
static void *bystander(void *nothing) {
    while (!over) {
        char *memory = map(NULL);
        *memory = 1;
        munmap(memory, message_length);
        usleep(1000);
    }
    return nothing;
}

/* The word at a place of a message. */
static uint64_t word(int message, size_t at) { return (uint64_t)message << 32 | at; }

int main(int argc, char **argv) {
    if (argc != 5 && argc != 8) {
        fprintf(stderr, "usage: messages server|client ADDRESS PORT MESSAGES [LENGTH EVERY THREADS]\n");
        return 2;
    }
    int messages = atoi(argv[4]), every = 0, threads = 0;
    if (argc == 8) {
        message_length = strtoul(argv[5], NULL, 10);
        every = atoi(argv[6]);
        threads = atoi(argv[7]);
    }
    int serving = strcmp(argv[1], "server") == 0;
    struct fi_info *hints = fi_allocinfo(), *info;
    if (!hints) return 1;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->fabric_attr->prov_name = strdup("verbs;ofi_rxm");
    check("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), argv[2], argv[3], serving ? FI_SOURCE : 0, hints, &info));
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *addresses;
    check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    check("fi_domain", fi_domain(fabric, info, &domain, NULL));
    struct fi_av_attr av = {.type = FI_AV_TABLE, .count = 2};
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT, .size = 64};
    check("fi_av_open", fi_av_open(domain, &av, &addresses, NULL));
    check("fi_cq_open", fi_cq_open(domain, &cq, &completions, NULL));
    check("fi_endpoint", fi_endpoint(domain, info, &endpoint, NULL));
    check("fi_ep_bind", fi_ep_bind(endpoint, &addresses->fid, 0));
    check("fi_ep_bind", fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV));
    check("fi_enable", fi_enable(endpoint));

    /* The client's first message is its address. */
    fi_addr_t peer;
    uint8_t name[64] = {0};
    size_t length = sizeof name;
    if (serving) {
        receive(name, sizeof name);
        if (fi_av_insert(addresses, name, 1, &peer, 0, NULL) != 1) return 1;
    } else {
        if (fi_av_insert(addresses, info->dest_addr, 1, &peer, 0, NULL) != 1) return 1;
        check("fi_getname", fi_getname(&endpoint->fid, name, &length));
        transmit(name, sizeof name, peer);
    }
    void *buffers[BUFFERS];
    for (int buffer = 0; buffer < BUFFERS; buffer++) buffers[buffer] = map(NULL);
    pthread_t running[MOST_THREADS];
    for (int thread = 0; thread < threads && thread < MOST_THREADS; thread++)
        if (pthread_create(&running[thread], NULL, bystander, NULL)) return 1;
    int wrong = 0;
    for (int message = 0; message < messages; message++) {
        int next = message % BUFFERS;
        if (every && message % every == 0) buffers[next] = map(buffers[next]);
        if (!every && message == messages / 2)
            for (int buffer = 0; buffer < BUFFERS; buffer++) buffers[buffer] = map(buffers[buffer]);
        uint64_t *words = buffers[next];
        if (serving) {
            receive(words, message_length);
            int other = 0;
            for (size_t at = 0; at < message_length / sizeof *words; at += 64) other |= words[at] != word(message, at);
            wrong += other;
            transmit(name, 1, peer);
        } else {
            for (size_t at = 0; at < message_length / sizeof *words; at += 64) words[at] = word(message, at);
            transmit(words, message_length, peer);
            receive(name, sizeof name);
        }
    }
    over = 1;
    for (int thread = 0; thread < threads && thread < MOST_THREADS; thread++) pthread_join(running[thread], NULL);
    printf("%d messages, %d wrong\n", messages, wrong);
    fi_close(&endpoint->fid);
    fi_close(&completions->fid);
    fi_close(&addresses->fid);
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
    fi_freeinfo(info);
    fi_freeinfo(hints);
    return wrong != 0;
}
