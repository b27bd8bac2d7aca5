/*
 * The edge to UCX's registration cache (ucs_rcache of 1.13). The layouts of its parameters and operations
 * are known to its headers alone, so creating one is done here. Looking up and releasing are plain
 * functions of libucs with pointers only: the Rust side calls them itself, as a C program would.
 */
#include <errno.h>
#include <stdint.h>
#include <time.h>

#include <ucs/config/global_opts.h>
#include <ucs/memory/rcache.h>

_Static_assert(sizeof(ucs_status_t) == 1, "the Rust side declares ucs_status_t as i8");

/* `Behaviour` of side_by_side/cache/subject.rs. */
struct behaviour {
    uintptr_t slow_from, slow_until;
    uint64_t  slow_ns;
    uintptr_t bad_from, bad_until;
    uint64_t  attempts, deregistered;
};

/* Not one operation, so that counting costs next to nothing: exact while one thread at a time counts. */
static void count(uint64_t *counter)
{
    __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

static ucs_status_t mem_reg(void *context, ucs_rcache_t *rcache, void *arg, ucs_rcache_region_t *region,
                            uint16_t flags)
{
    struct behaviour *behaviour = context;
    uintptr_t         start     = region->super.start;

    (void)rcache, (void)arg, (void)flags;
    count(&behaviour->attempts);
    if (start >= behaviour->bad_from && start < behaviour->bad_until) {
        return UCS_ERR_INVALID_ADDR;
    }
    if (start >= behaviour->slow_from && start < behaviour->slow_until) {
        struct timespec left = {behaviour->slow_ns / 1000000000, behaviour->slow_ns % 1000000000};
        while (nanosleep(&left, &left) != 0 && errno == EINTR) {
        }
    }
    return UCS_OK;
}

static void mem_dereg(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region)
{
    (void)rcache, (void)region;
    count(&((struct behaviour *)context)->deregistered);
}

static void dump_region(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region, char *buf, size_t max)
{
    (void)context, (void)rcache, (void)region;
    if (max > 0) {
        buf[0] = '\0';
    }
}

/*
 * No memory hooks (ucm_events is 0): they would patch the code of this process. A hit costs the same with and
 * without. `most_regions` is the limit that evicts.
 */
int peer_ucx_create(struct behaviour *behaviour, unsigned long most_regions, ucs_rcache_t **created)
{
    static const ucs_rcache_ops_t ops = {mem_reg, mem_dereg, dump_region};
    ucs_rcache_params_t           params = {0};

    /* Its log goes to stdout, where the figures are. */
    ucs_global_opts.log_component.log_level = UCS_LOG_LEVEL_FATAL;

    params.region_struct_size = sizeof(ucs_rcache_region_t);
    params.alignment          = UCS_RCACHE_MIN_ALIGNMENT;
    params.max_alignment      = 4096;
    params.ops                = &ops;
    params.context            = behaviour;
    params.max_regions        = most_regions;
    params.max_size           = SIZE_MAX;
    params.max_unreleased     = SIZE_MAX;
    return ucs_rcache_create(&params, "side-by-side", NULL, created);
}

/* What the build's link test calls: everything that the Rust side needs is there. */
int peer_ucx_linked(void)
{
    return (void *)ucs_rcache_get == (void *)ucs_rcache_region_put || (void *)ucs_rcache_destroy == NULL;
}
