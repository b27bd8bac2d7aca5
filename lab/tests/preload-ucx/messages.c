/* Sends messages from buffers that UCX has to register for each, and compares what arrives.
 *
 *   messages server|client ADDRESS PORT MESSAGES
 *
 * Large messages go by rendezvous: the receiver reads them from the sender's memory. Both register the buffer of the call, unless
 * a cache has it. In the middle each side maps its buffers anew, at the same addresses. A byte answers each. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

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

/* Keeps a client's request for a connection. */
static void on_request(ucp_conn_request_h request, void *into) { *(ucp_conn_request_h *)into = request; }

static void put(ucp_ep_h endpoint, const void *bytes, size_t length, ucp_tag_t tag) {
    ucp_request_param_t plain = {0};
    complete("a send", ucp_tag_send_nbx(endpoint, bytes, length, tag, &plain));
}

static void get(void *bytes, size_t length, ucp_tag_t tag) {
    ucp_request_param_t plain = {0};
    complete("a receive", ucp_tag_recv_nbx(worker, bytes, length, tag, UINT64_MAX, &plain));
}

/* Listens there, or connects to it. */
static ucp_ep_h meet(int serving, const char *host, uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    need("an address", inet_pton(AF_INET, host, &address.sin_addr) == 1);
    ucs_sock_addr_t place = {(struct sockaddr *)&address, sizeof address};
    ucp_ep_params_t of_endpoint = {0};
    ucp_ep_h endpoint;
    if (serving) {
        ucp_conn_request_h request = NULL;
        ucp_listener_params_t listen = {
            .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
            .sockaddr = place, .conn_handler = {on_request, &request}};
        ucp_listener_h listener;
        check("ucp_listener_create", ucp_listener_create(worker, &listen, &listener));
        while (request == NULL) ucp_worker_progress(worker);
        of_endpoint.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
        of_endpoint.conn_request = request;
        check("ucp_ep_create", ucp_ep_create(worker, &of_endpoint, &endpoint));
    } else {
        of_endpoint.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
        of_endpoint.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
        of_endpoint.sockaddr = place;
        check("ucp_ep_create", ucp_ep_create(worker, &of_endpoint, &endpoint));
    }
    return endpoint;
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
    if (argc != 5) {
        fprintf(stderr, "usage: messages server|client ADDRESS PORT MESSAGES\n");
        return 2;
    }
    int serving = strcmp(argv[1], "server") == 0, messages = atoi(argv[4]);
    ucp_params_t parameters = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t of_worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_config_t *config;
    ucp_context_h context;
    check("ucp_config_read", ucp_config_read(NULL, NULL, &config));
    check("ucp_init", ucp_init(&parameters, config, &context));
    ucp_config_release(config);
    check("ucp_worker_create", ucp_worker_create(context, &of_worker, &worker));

    ucp_ep_h peer = meet(serving, argv[2], (uint16_t)atoi(argv[3]));
    void *buffers[BUFFERS];
    for (int buffer = 0; buffer < BUFFERS; buffer++) buffers[buffer] = map(NULL);
    int wrong = 0;
    char byte = 0;
    for (int message = 0; message < messages; message++) {
        if (message == messages / 2)
            for (int buffer = 0; buffer < BUFFERS; buffer++) buffers[buffer] = map(buffers[buffer]);
        uint64_t *words = buffers[message % BUFFERS];
        if (serving) {
            get(words, LENGTH, 1);
            int differs = 0;
            for (size_t at = 0; at < LENGTH / sizeof *words; at += 64) differs |= words[at] != word(message, at);
            wrong += differs;
            put(peer, &byte, 1, 2);
        } else {
            for (size_t at = 0; at < LENGTH / sizeof *words; at += 64) words[at] = word(message, at);
            put(peer, words, LENGTH, 1);
            get(&byte, 1, 2);
        }
    }
    printf("%d messages, %d wrong\n", messages, wrong);
    fflush(stdout);
    /* The server goes when its last answer has arrived, the client when it has told so. */
    ucp_request_param_t plain = {0};
    if (serving) get(&byte, 1, 3);
    else put(peer, &byte, 1, 3);
    complete("a flush", ucp_worker_flush_nbx(worker, &plain));
    return wrong != 0;
}
