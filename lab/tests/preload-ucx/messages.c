/* Sends messages from buffers that UCX has to register for each, and compares what arrives.
 *
 *   messages server|client PORT MESSAGES
 *
 * Large messages go by rendezvous: the receiver reads them from the sender's memory. Both register the buffer of the call, unless
 * a cache has it. In the middle each side maps its buffers anew, at the same addresses. The addresses of the workers, and a byte
 * for each message, go over a TCP connection of this machine. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { BUFFERS = 8, LENGTH = 1 << 20 };

static ucp_worker_h worker;

static void need(const char *what, int is_true) {
    if (is_true) return;
    perror(what);
    exit(1);
}

static void check(const char *what, ucs_status_t status) {
    if (status == UCS_OK) return;
    fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
    exit(1);
}

/* Waits for a request. */
static void complete(const char *what, ucs_status_ptr_t request) {
    if (request == NULL) return;
    if (UCS_PTR_IS_ERR(request)) check(what, UCS_PTR_STATUS(request));
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) ucp_worker_progress(worker);
    ucp_request_free(request);
    check(what, status);
}

/* The other process, over TCP. */
static int meet(int serving, uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, own = socket(AF_INET, SOCK_STREAM, 0);
    need("socket", own >= 0);
    if (!serving) {
        /* The server may not be there yet. */
        for (int tries = 0; connect(own, (struct sockaddr *)&address, sizeof address); tries++) {
            need("connect", tries < 200);
            usleep(100 * 1000);
        }
        return own;
    }
    need("setsockopt", !setsockopt(own, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    need("bind", !bind(own, (struct sockaddr *)&address, sizeof address));
    need("listen", !listen(own, 1));
    int other = accept(own, NULL, NULL);
    need("accept", other >= 0);
    close(own);
    return other;
}

static void put(int peer, const void *bytes, size_t length) {
    need("send", send(peer, bytes, length, 0) == (ssize_t)length);
}

/* UCX has no thread of its own, so it is driven meanwhile. */
static void get(int peer, void *bytes, size_t length) {
    for (size_t got = 0; got < length;) {
        ssize_t more = recv(peer, (char *)bytes + got, length - got, MSG_DONTWAIT);
        need("recv", more > 0 || (more < 0 && (errno == EAGAIN || errno == EINTR)));
        if (more > 0) got += more;
        else ucp_worker_progress(worker);
    }
}

static void *map(void *at) {
    int fixed = at ? MAP_FIXED : 0;
    void *memory = mmap(at, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    need("mmap", memory != MAP_FAILED);
    return memory;
}

/* The word at a place of a message. */
static uint64_t word(int message, size_t at) { return (uint64_t)message << 32 | at; }

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: messages server|client PORT MESSAGES\n");
        return 2;
    }
    int serving = strcmp(argv[1], "server") == 0, messages = atoi(argv[3]);
    ucp_params_t parameters = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t of_worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_config_t *config;
    ucp_context_h context;
    check("ucp_config_read", ucp_config_read(NULL, NULL, &config));
    check("ucp_init", ucp_init(&parameters, config, &context));
    ucp_config_release(config);
    check("ucp_worker_create", ucp_worker_create(context, &of_worker, &worker));

    int peer = meet(serving, (uint16_t)atoi(argv[2]));
    ucp_address_t *own;
    size_t length, other_length;
    check("ucp_worker_get_address", ucp_worker_get_address(worker, &own, &length));
    put(peer, &length, sizeof length);
    put(peer, own, length);
    get(peer, &other_length, sizeof other_length);
    ucp_address_t *other = malloc(other_length);
    get(peer, other, other_length);
    ucp_ep_params_t of_endpoint = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = other};
    ucp_ep_h endpoint;
    check("ucp_ep_create", ucp_ep_create(worker, &of_endpoint, &endpoint));

    void *buffers[BUFFERS];
    for (int buffer = 0; buffer < BUFFERS; buffer++) buffers[buffer] = map(NULL);
    ucp_request_param_t plain = {0};
    int wrong = 0;
    char byte = 0;
    for (int message = 0; message < messages; message++) {
        if (message == messages / 2)
            for (int buffer = 0; buffer < BUFFERS; buffer++) buffers[buffer] = map(buffers[buffer]);
        uint64_t *words = buffers[message % BUFFERS];
        if (serving) {
            complete("a receive", ucp_tag_recv_nbx(worker, words, LENGTH, 1, UINT64_MAX, &plain));
            int differs = 0;
            for (size_t at = 0; at < LENGTH / sizeof *words; at += 64) differs |= words[at] != word(message, at);
            wrong += differs;
            put(peer, &byte, 1);
        } else {
            for (size_t at = 0; at < LENGTH / sizeof *words; at += 64) words[at] = word(message, at);
            complete("a send", ucp_tag_send_nbx(endpoint, words, LENGTH, 1, &plain));
            get(peer, &byte, 1);
        }
    }
    printf("%d messages, %d wrong\n", messages, wrong);
    fflush(stdout);
    /* Both are done before either goes. */
    put(peer, &byte, 1);
    get(peer, &byte, 1);
    complete("an end", ucp_ep_close_nbx(endpoint, &plain));
    ucp_worker_release_address(worker, own);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return wrong != 0;
}
