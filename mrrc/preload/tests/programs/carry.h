/* Bytes carried by the device from one registered buffer to another, in this process: a queue pair sends to another. So
 * whether a key means the memory that it should is seen by what arrives. Against the libibverbs of the tests that run
 * without a device it is a copy. */
#pragma once
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(condition)                                                                                                   \
    do {                                                                                                                  \
        if (!(condition)) {                                                                                               \
            fprintf(stderr, "%s:%d: not %s: %m\n", __FILE__, __LINE__, #condition);                                      \
            exit(3);                                                                                                      \
        }                                                                                                                 \
    } while (0)

#ifdef FAKE_VERBS
struct wire {
    int none;
};
static inline void wire_open(struct wire *wire, struct ibv_pd *pd) { (void)wire, (void)pd; }
static inline void wire_close(struct wire *wire) { (void)wire; }
static inline int carry(struct wire *wire, uint32_t from_key, void *from, uint32_t to_key, void *to, size_t length) {
    (void)wire;
    if (!from_key || !to_key)
        return 1;
    memcpy(to, from, length);
    return 0;
}
#else
struct wire {
    struct ibv_cq *cq;
    struct ibv_qp *qp[2];
};

static inline void wire_open(struct wire *wire, struct ibv_pd *pd) {
    struct ibv_context *context = pd->context;
    struct ibv_port_attr port;
    union ibv_gid gid;
    int at = 0;
    NEED(!ibv_query_port(context, 1, &port));
    /* One with an IPv4 address, which a network card that is up has. */
    for (int i = 0; i < port.gid_tbl_len; i++)
        if (!ibv_query_gid(context, 1, i, &gid) && gid.raw[10] == 0xff && gid.raw[11] == 0xff)
            at = i;
    NEED(!ibv_query_gid(context, 1, at, &gid));
    NEED(wire->cq = ibv_create_cq(context, 16, NULL, NULL, 0));
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr attributes = {
            .send_cq = wire->cq, .recv_cq = wire->cq, .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        };
        NEED(wire->qp[i] = ibv_create_qp(pd, &attributes));
    }
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE};
        NEED(!ibv_modify_qp(wire->qp[i], &init,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
        struct ibv_qp_attr receive = {
            .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = wire->qp[1 - i]->qp_num,
            .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
            .ah_attr = {.is_global = 1, .port_num = 1, .dlid = port.lid,
                        .grh = {.dgid = gid, .sgid_index = at, .hop_limit = 1}},
        };
        NEED(!ibv_modify_qp(wire->qp[i], &receive,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
        struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                                   .max_rd_atomic = 1};
        NEED(!ibv_modify_qp(wire->qp[i], &send,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                IBV_QP_MAX_QP_RD_ATOMIC));
    }
}

static inline void wire_close(struct wire *wire) {
    NEED(!ibv_destroy_qp(wire->qp[0]));
    NEED(!ibv_destroy_qp(wire->qp[1]));
    NEED(!ibv_destroy_cq(wire->cq));
}

/* 0, or the status of the first completion that is none. */
static inline int carry(struct wire *wire, uint32_t from_key, void *from, uint32_t to_key, void *to, size_t length) {
    struct ibv_sge into = {(uintptr_t)to, length, to_key}, out = {(uintptr_t)from, length, from_key};
    struct ibv_recv_wr receive = {.sg_list = &into, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED},
                       *bad_send;
    NEED(!ibv_post_recv(wire->qp[1], &receive, &bad_receive));
    NEED(!ibv_post_send(wire->qp[0], &send, &bad_send));
    for (int done = 0; done < 2;) {
        struct ibv_wc completion;
        int got = ibv_poll_cq(wire->cq, 1, &completion);
        NEED(got >= 0);
        if (got && completion.status != IBV_WC_SUCCESS)
            return completion.status;
        done += got;
    }
    return 0;
}
#endif
