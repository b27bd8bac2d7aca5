/* The part of libfabric's interface that imports monitors, written down anew, and calls of the fake libfabric. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FI_CLASS_MR_CACHE = 22, FI_CLASS_MEM_MONITOR = 23 };

struct fid;
struct fi_ops {
    size_t size;
    int (*close)(struct fid *);
    int (*bind)(struct fid *, struct fid *, uint64_t);
    void *others[4];
};
struct fid {
    size_t fclass;
    void *context;
    struct fi_ops *ops;
};
struct fid_mem_monitor;
struct fi_ops_mem_monitor {
    size_t size;
    int (*start)(struct fid_mem_monitor *);
    void (*stop)(struct fid_mem_monitor *);
    int (*subscribe)(struct fid_mem_monitor *, const void *, size_t);
    void (*unsubscribe)(struct fid_mem_monitor *, const void *, size_t);
    bool (*valid)(struct fid_mem_monitor *, const void *, size_t);
};
struct fi_ops_mem_notify {
    size_t size;
    void (*notify)(struct fid_mem_monitor *, const void *, size_t);
};
struct fid_mem_monitor {
    struct fid fid;
    struct fi_ops_mem_monitor *export_ops;
    struct fi_ops_mem_notify *import_ops;
};

int fi_open(uint32_t version, const char *name, void *attr, size_t length, uint64_t flags, struct fid **fid, void *context);

/* The fake's cache. A registration keeps what `read` says of the memory when it is made. */
int fake_begin(void);
void fake_end(void);
uint64_t fake_search(void *address, size_t length, uint64_t (*read)(void *));
uint64_t fake_registered(void);
