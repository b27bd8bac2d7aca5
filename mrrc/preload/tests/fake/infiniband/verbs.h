/* As much of libibverbs' header as the programs of these tests use, so that they are compiled where it is not installed. In
 * the lab they are compiled with the real one. Values and layouts are those of rdma-core; `tests/interposed.rs` compares them
 * with the real header where there is one. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define FAKE_VERBS 1

struct ibv_device;
struct ibv_context {
    struct ibv_device *device;
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
    int rest[24];
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
};
struct ibv_qp {
    struct ibv_context *context;
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
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *of_program, struct ibv_comp_channel *channel,
                             int vector);
int ibv_destroy_cq(struct ibv_cq *cq);
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes);
int ibv_destroy_qp(struct ibv_qp *qp);
int ibv_fork_init(void);
/* Registrations at this moment. The real one has no such function. */
long fake_live(void);

/* As in the real one. */
#define ibv_reg_mr(pd, addr, length, access)                                                                             \
    (__builtin_constant_p(((access) & IBV_ACCESS_RELAXED_ORDERING) == 0) &&                                             \
             ((access) & IBV_ACCESS_RELAXED_ORDERING) == 0                                                              \
         ? (ibv_reg_mr)(pd, addr, length, access)                                                                        \
         : ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)(addr), access))
