/* Sends messages of 1 MiB from one of its workers to the other, in one thread, and says what one takes by the clock.
 *
 *   cost ADDRESS PORT MESSAGES
 *
 * No process waits for another, so where the clock counts instructions, that is the cost of the messages: both ends, and the kernel's part. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <ucp/api/ucp.h>

enum { BUFFERS = 8, LENGTH = 1 << 20, FIRST = 32 };

static ucp_worker_h workers[2];

static void check(const char *what, ucs_status_t status) {
    if (status == UCS_OK) return;
    fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
    exit(1);
}

static void progress(void) {
    for (int at = 0; at < 2; at++) ucp_worker_progress(workers[at]);
}

/* Waits for a request. */
static void complete(const char *what, ucs_status_ptr_t request) {
    if (request == NULL) return;
    if (UCS_PTR_IS_ERR(request)) check(what, UCS_PTR_STATUS(request));
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) progress();
    ucp_request_free(request);
    check(what, status);
}

/* Keeps the request for a connection. */
static void on_request(ucp_conn_request_h request, void *into) { *(ucp_conn_request_h *)into = request; }

/* Returns the client's end of a connection between the workers. */
static ucp_ep_h connected(const char *host, uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) check(host, UCS_ERR_INVALID_ADDR);
    ucs_sock_addr_t place = {(struct sockaddr *)&address, sizeof address};
    ucp_conn_request_h request = NULL;
    ucp_listener_params_t listen = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = place, .conn_handler = {on_request, &request}};
    ucp_listener_h listener;
    check("ucp_listener_create", ucp_listener_create(workers[0], &listen, &listener));
    ucp_ep_params_t of_client = {.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
                                 .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER, .sockaddr = place};
    ucp_ep_h client, server;
    check("ucp_ep_create", ucp_ep_create(workers[1], &of_client, &client));
    while (request == NULL) progress();
    ucp_ep_params_t of_server = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = request};
    check("ucp_ep_create", ucp_ep_create(workers[0], &of_server, &server));
    return client;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: cost ADDRESS PORT MESSAGES\n");
        return 2;
    }
    int messages = atoi(argv[3]), wrong = 0;
    ucp_params_t parameters = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t of_worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_config_t *config;
    ucp_context_h context;
    check("ucp_config_read", ucp_config_read(NULL, NULL, &config));
    check("ucp_init", ucp_init(&parameters, config, &context));
    ucp_config_release(config);
    for (int at = 0; at < 2; at++) check("ucp_worker_create", ucp_worker_create(context, &of_worker, &workers[at]));
    ucp_ep_h peer = connected(argv[1], (uint16_t)atoi(argv[2]));
    char *from[BUFFERS], *to[BUFFERS];
    for (int buffer = 0; buffer < BUFFERS; buffer++) {
        from[buffer] = aligned_alloc(4096, LENGTH);
        to[buffer] = aligned_alloc(4096, LENGTH);
        memset(from[buffer], 0, LENGTH);
        memset(to[buffer], 0, LENGTH);
    }
    ucp_request_param_t plain = {0};
    double begun = 0;
    for (int message = 0; message < messages + FIRST; message++) {
        if (message == FIRST) begun = now();
        char *source = from[message % BUFFERS], *target = to[message % BUFFERS];
        source[LENGTH - 1] = (char)message;
        ucs_status_ptr_t received = ucp_tag_recv_nbx(workers[0], target, LENGTH, 1, UINT64_MAX, &plain);
        complete("a send", ucp_tag_send_nbx(peer, source, LENGTH, 1, &plain));
        complete("a receive", received);
        wrong += target[LENGTH - 1] != (char)message;
    }
    printf("%.0f a message, %d wrong\n", (now() - begun) / messages, wrong);
    fflush(stdout);
    /* The kernel ends the rest. */
    _Exit(wrong != 0);
}
