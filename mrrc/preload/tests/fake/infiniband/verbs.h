/* As much of libibverbs' header as the programs of these tests use, so that they are compiled where it is not installed. In
 * the lab they are compiled with the real one. Values and layouts are those of rdma-core; `tests/interposed.rs` compares them
 * with the real header where there is one. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define FAKE_VERBS 1

struct ibv_device;
struct ibv_pd;
struct ibv_qp;
struct ibv_cq;
struct ibv_mw;
struct ibv_mw_bind;
struct ibv_send_wr;
struct ibv_wc;
enum ibv_mw_type { IBV_MW_TYPE_1 = 1 };
/* The calls that the shim makes, in their places. */
struct ibv_context_ops {
    void *_0[7];
    struct ibv_mw *(*alloc_mw)(struct ibv_pd *pd, enum ibv_mw_type type);
    int (*bind_mw)(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
    int (*dealloc_mw)(struct ibv_mw *mw);
    void *_10;
    int (*poll_cq)(struct ibv_cq *cq, int entries, struct ibv_wc *wc);
    void *_12[13];
    int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
    void *_26[6];
};
struct ibv_context {
    struct ibv_device *device;
    struct ibv_context_ops ops;
};
struct ibv_pd {
    struct ibv_context *context;
    uint32_t handle;
};
struct ibv_mr {
    struct ibv_context *context;
    struct ibv_pd *pd;
    void *addr;
    size_t length;
    uint32_t handle;
    uint32_t lkey;
    uint32_t rkey;
};
struct ibv_device_attr {
    char fw_ver[64];
    uint64_t node_guid;
    uint64_t sys_image_guid;
    uint64_t max_mr_size;
    uint64_t page_size_cap;
    uint32_t vendor_id;
    uint32_t vendor_part_id;
    uint32_t hw_ver;
    int max_qp;
    int max_qp_wr;
    unsigned int device_cap_flags;
    int max_sge;
    int max_sge_rd;
    int max_cq;
    int max_cqe;
    int max_mr;
    int resources[6];
    int atomic_cap;
    int rest[17];
};
struct ibv_mw {
    struct ibv_context *context;
    struct ibv_pd *pd;
    uint32_t rkey;
    uint32_t handle;
    enum ibv_mw_type type;
};
struct ibv_mw_bind_info {
    struct ibv_mr *mr;
    uint64_t addr;
    uint64_t length;
    unsigned int mw_access_flags;
};
struct ibv_mw_bind {
    uint64_t wr_id;
    unsigned int send_flags;
    struct ibv_mw_bind_info bind_info;
};
enum ibv_wc_status { IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR = 5, IBV_WC_MW_BIND_ERR = 6, IBV_WC_REM_ACCESS_ERR = 10 };
struct ibv_wc {
    uint64_t wr_id;
    enum ibv_wc_status status;
    uint32_t rest[9];
};
struct ibv_sge {
    uint64_t addr;
    uint32_t length;
    uint32_t lkey;
};
enum ibv_wr_opcode { IBV_WR_RDMA_WRITE = 0, IBV_WR_RDMA_READ = 4, IBV_WR_ATOMIC_FETCH_AND_ADD = 6 };
enum { IBV_SEND_SIGNALED = 2 };
struct ibv_send_wr {
    uint64_t wr_id;
    struct ibv_send_wr *next;
    struct ibv_sge *sg_list;
    int num_sge;
    enum ibv_wr_opcode opcode;
    unsigned int send_flags;
    uint32_t imm_data;
    union {
        struct {
            uint64_t remote_addr;
            uint32_t rkey;
        } rdma;
        struct {
            uint64_t remote_addr;
            uint64_t compare_add;
            uint64_t swap;
            uint32_t rkey;
        } atomic;
        uint64_t room[11];
    } wr;
};
struct ibv_port_attr {
    int state, max_mtu, active_mtu, gid_tbl_len;
    uint32_t numbers[4];
    uint16_t pkey_tbl_len, lid, sm_lid;
    uint8_t bytes[8];
    uint8_t link_layer;
};
struct ibv_global_route {
    uint8_t dgid[16];
    uint32_t flow_label;
    uint8_t sgid_index, hop_limit, traffic_class;
};
struct ibv_ah_attr {
    struct ibv_global_route grh;
    uint16_t dlid;
    uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

enum {
    IBV_ACCESS_LOCAL_WRITE = 1,
    IBV_ACCESS_REMOTE_WRITE = 1 << 1,
    IBV_ACCESS_REMOTE_READ = 1 << 2,
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
    IBV_ACCESS_MW_BIND = 1 << 4,
    IBV_ACCESS_ZERO_BASED = 1 << 5,
    IBV_ACCESS_ON_DEMAND = 1 << 6,
    IBV_ACCESS_HUGETLB = 1 << 7,
    IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
};
enum {
    IBV_REREG_MR_CHANGE_TRANSLATION = 1,
    IBV_REREG_MR_CHANGE_PD = 1 << 1,
    IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
};

struct ibv_device **ibv_get_device_list(int *count);
void ibv_free_device_list(struct ibv_device **list);
struct ibv_context *ibv_open_device(struct ibv_device *device);
int ibv_close_device(struct ibv_context *context);
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes);
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context);
int ibv_dealloc_pd(struct ibv_pd *pd);
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access);
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access);
int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access);
int ibv_dereg_mr(struct ibv_mr *mr);
/* Of queues no more than what is passed: nothing is sent. */
struct ibv_comp_channel;
struct ibv_cq {
    struct ibv_context *context;
    /* Of the fake: the status of each completion that was not taken. */
    int waiting[8], count;
};
struct ibv_qp {
    struct ibv_context *context;
    void *qp_context;
    struct ibv_pd *pd;
    struct ibv_cq *send_cq, *recv_cq;
    void *srq;
    uint32_t handle, qp_num;
    /* Of the fake. */
    int in_error;
};
struct ibv_qp_cap {
    uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};
enum ibv_qp_type { IBV_QPT_RC = 2 };
struct ibv_qp_init_attr {
    void *qp_context;
    struct ibv_cq *send_cq, *recv_cq;
    void *srq;
    struct ibv_qp_cap cap;
    enum ibv_qp_type qp_type;
    int sq_sig_all;
};
struct ibv_qp_attr {
    int qp_state, cur_qp_state, path_mtu, path_mig_state;
    uint32_t qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags;
    struct ibv_qp_cap cap;
    struct ibv_ah_attr ah_attr, alt_ah_attr;
    uint16_t pkey_index, alt_pkey_index;
    uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
        rnr_retry;
};
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *of_program, struct ibv_comp_channel *channel,
                             int vector);
int ibv_destroy_cq(struct ibv_cq *cq);
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes);
int ibv_destroy_qp(struct ibv_qp *qp);
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int what);
int ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes);
int ibv_query_gid(struct ibv_context *context, uint8_t port, int at, uint8_t gid[16]);
const char *ibv_get_device_name(struct ibv_device *device);
int ibv_fork_init(void);
/* Registrations at this moment. The real one has no such function. */
long fake_live(void);
/* A peer's read of these bytes by a key, or its write: the status of the completion. */
int fake_access(struct ibv_pd *pd, int writes, void *own, void *address, size_t length, uint32_t rkey);

/* As in the real one. */
#define ibv_reg_mr(pd, addr, length, access)                                                                             \
    (__builtin_constant_p(((access) & IBV_ACCESS_RELAXED_ORDERING) == 0) &&                                             \
             ((access) & IBV_ACCESS_RELAXED_ORDERING) == 0                                                              \
         ? (ibv_reg_mr)(pd, addr, length, access)                                                                        \
         : ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)(addr), access))
