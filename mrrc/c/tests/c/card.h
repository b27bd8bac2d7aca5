/* A network card that is none: it counts what it is told, and fails on demand. And words for the tests. */
#ifndef CARD_H
#define CARD_H

#include <errno.h>
#include <mrrc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The call fails so, and its message has these words. */
#define FAILS(call, expected, words)                                                                                   \
    do {                                                                                                               \
        mrrc_error_t error;                                                                                            \
        memset(&error, 0x5a, sizeof error);                                                                            \
        mrrc_status_t status = (call);                                                                                 \
        if (status != (expected) || error.status != status || strstr(error.message, words) == NULL ||                  \
            strchr(error.message, '\n') != NULL) {                                                                     \
            fprintf(stderr, "%s:%d: %s: %d, %.300s\n", __FILE__, __LINE__, #call, (int)status, error.message);         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The call is done, or says why not. */
#define DONE(call)                                                                                                     \
    do {                                                                                                               \
        mrrc_error_t error;                                                                                            \
        if ((call) != MRRC_OK) {                                                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, error.message);                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { PAGE = 4096 };

struct card {
    atomic_ulong keys, regions, bytes, calls, batches, done;
    /* So many calls to register fail, with this error. */
    atomic_int failing, failure;
    /* Deregistering fails with this, unless it is 0. */
    atomic_int keeping;
};

static int card_register(void *user, void *address, size_t length, mrrc_access_t access, mrrc_registration_t *made)
{
    struct card *card = user;
    atomic_fetch_add(&card->calls, 1);
    CHECK(length > 0 && length % PAGE == 0 && (size_t)address % PAGE == 0 && (access & MRRC_LOCAL_READ));
    int left = atomic_load(&card->failing);
    while (left > 0 && !atomic_compare_exchange_weak(&card->failing, &left, left - 1))
        ;
    if (left > 0)
        return atomic_load(&card->failure);
    unsigned long key = atomic_fetch_add(&card->keys, 1) + 1;
    made->handle = address;
    made->lkey = key;
    made->rkey = access & (MRRC_REMOTE_READ | MRRC_REMOTE_WRITE | MRRC_REMOTE_ATOMIC) ? key << 32 : 0;
    atomic_fetch_add(&card->regions, 1);
    atomic_fetch_add(&card->bytes, length);
    return 0;
}

static void card_deregister(void *user, mrrc_registered_t *batch, size_t count)
{
    struct card *card = user;
    atomic_fetch_add(&card->batches, 1);
    for (size_t i = 0; i < count; i++) {
        CHECK(batch[i].registration.handle == batch[i].address && batch[i].error == 0);
        batch[i].error = atomic_load(&card->keeping);
        if (batch[i].error != 0)
            continue;
        atomic_fetch_sub(&card->regions, 1);
        atomic_fetch_sub(&card->bytes, batch[i].length);
    }
}

static inline void fail(struct card *card, int calls, int error)
{
    atomic_store(&card->failure, error);
    atomic_store(&card->failing, calls);
}

static void card_done(void *user)
{
    atomic_fetch_add(&((struct card *)user)->done, 1);
}

static inline mrrc_registrar_t card_registrar(struct card *card)
{
    mrrc_registrar_t registrar = { .size = sizeof registrar };
    registrar.name = "test card";
    registrar.user = card;
    registrar.register_range = card_register;
    registrar.deregister_batch = card_deregister;
    registrar.done = card_done;
    return registrar;
}

/* A cache over it with these settings, as "capacity=64K,max_segments=1", which the program tells of changes. */
static inline mrrc_cache_t *card_cache(struct card *card, const char *settings)
{
    mrrc_options_t *options = mrrc_options_new();
    DONE(mrrc_options_set(options, "monitor", "explicit", &error));
    char copy[200];
    snprintf(copy, sizeof copy, "%s", settings);
    for (char *name = strtok(copy, ","); name != NULL; name = strtok(NULL, ",")) {
        char *value = strchr(name, '=');
        *value++ = 0;
        DONE(mrrc_options_set(options, name, value, &error));
    }
    mrrc_registrar_t registrar = card_registrar(card);
    mrrc_cache_t *cache;
    DONE(mrrc_cache_new(options, &registrar, &cache, &error));
    mrrc_options_free(options);
    return cache;
}

static inline mrrc_counters_t counted(const mrrc_cache_t *cache)
{
    mrrc_counters_t counters;
    CHECK(mrrc_counters(cache, &counters, sizeof counters) == MRRC_OK);
    return counters;
}

static inline mrrc_usage_t used(const mrrc_cache_t *cache)
{
    mrrc_usage_t usage;
    CHECK(mrrc_usage(cache, &usage, sizeof usage) == MRRC_OK);
    return usage;
}

static inline void *pages(size_t count)
{
    void *memory = aligned_alloc(PAGE, count * PAGE);
    CHECK(memory != NULL);
    memset(memory, 1, count * PAGE);
    return memory;
}

#endif
