/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What the program needs of the kernel: helpers by their numbers, which never change, and a few words for C. */
#ifndef RDMAKV_HELPERS_H
#define RDMAKV_HELPERS_H

/* From the kernel's interface to programs; the verifier knows these structures by their offsets. */
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_F_MMAPABLE (1u << 10)
#define BPF_F_RECOMPUTE_CSUM 1u
#define XDP_DROP 1
#define XDP_PASS 2
#define XDP_TX 3
struct xdp_md {
    u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};
struct __sk_buff {
    u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
    u32 ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end, napi_id;
    u32 family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4], remote_port, local_port, data_meta;
    u64 flow_keys, tstamp;
    u32 wire_len, gso_segs;
};

#define SEC(name) __attribute__((section(name), used))
#define INLINE inline __attribute__((always_inline))
/* Verified once, wherever it is called from. */
#define FUNCTION __attribute__((noinline))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IPPROTO_UDP 17
#define TCX_NEXT -1
#define TCX_DROP 2

#define be16(x) ((u16)__builtin_bswap16(x))
#define be32(x) __builtin_bswap32(x)
#define TEXT2(a, b) ((u16)((a) | (b) << 8))
#define TEXT4(a, b, c, d) ((u32)(a) | (u32)(b) << 8 | (u32)(c) << 16 | (u32)(d) << 24)
#define TEXT8(a, b, c, d, e, f, g, h) (TEXT4(a, b, c, d) | (u64)TEXT4(e, f, g, h) << 32)
#define STORE(type, to, value) (*(volatile type *)(to) = (value))

/* The compiler does not know the value any more. */
#define OPAQUE(x) asm volatile("" : "+r"(x))
/* The verifier sees the bounds, in the register that is used next. */
#define BOUNDED(x, least, most, otherwise) \
    OPAQUE(x);                             \
    if ((x) < (least) || (x) > (most)) return otherwise
/* No load moves over it. x86 does not reorder loads; ARM64 does, unless an atomic addition that returns lies between. */
#ifdef ORDER_BY_ADDITION
#define BARRIER(s) LOAD(u64, &(s)->order) = __sync_fetch_and_add(&(s)->order, 1)
#else
#define BARRIER(s) asm volatile("" ::: "memory")
#endif

/* Builds for tests break one rule, and wait where that shows. */
#ifndef GETS_FAULT
#define GETS_FAULT 0
#endif
#ifdef GETS_WAIT
static INLINE void wait_a_little(void);
#define WAIT() wait_a_little()
#else
#define WAIT()
#endif

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static unsigned int (*bpf_get_smp_processor_id)(void) = (void *)8;
static long (*bpf_skb_store_bytes)(struct __sk_buff *skb, unsigned int at, const void *from, unsigned int bytes, unsigned long long flags) = (void *)9;
static long (*bpf_redirect)(unsigned int ifindex, unsigned long long flags) = (void *)23;
static long (*bpf_skb_load_bytes)(const void *skb, unsigned int at, void *to, unsigned int bytes) = (void *)26;
static long long (*bpf_csum_diff)(unsigned int *from, unsigned int from_bytes, unsigned int *to, unsigned int to_bytes, unsigned int seed) = (void *)28;
static long (*bpf_skb_change_tail)(struct __sk_buff *skb, unsigned int bytes, unsigned long long flags) = (void *)38;
static long (*bpf_xdp_adjust_head)(struct xdp_md *xdp, int by) = (void *)44;
static long (*bpf_xdp_adjust_tail)(struct xdp_md *xdp, int by) = (void *)65;
static unsigned long long (*bpf_ktime_get_boot_ns)(void) = (void *)125;
static long (*bpf_xdp_load_bytes)(struct xdp_md *xdp, unsigned int at, void *to, unsigned int bytes) = (void *)189;
static long (*bpf_xdp_store_bytes)(struct xdp_md *xdp, unsigned int at, void *from, unsigned int bytes) = (void *)190;

#ifdef GETS_WAIT
static INLINE void wait_a_little(void)
{
    unsigned long long until = bpf_ktime_get_boot_ns() + GETS_WAIT;
    for (int i = 0; i < 2000; i++)
        if (bpf_ktime_get_boot_ns() >= until) break;
}
#endif

#endif
