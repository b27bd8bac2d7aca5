/*
 * A cache over a network library of one's own: two callbacks, which register and deregister. Here they only say what they do.
 *
 *     cc callbacks.c $(pkg-config --cflags --libs mrrc) && ./a.out
 */
#include <mrrc.h>
#include <stdio.h>
#include <stdlib.h>

struct card {
    unsigned long keys;
};

/* Where a program calls ibv_reg_mr, fi_mr_reg or its like. */
static int card_register(void *user, void *address, size_t length, mrrc_access_t access, mrrc_registration_t *made)
{
    struct card *card = user;
    (void)address;
    made->lkey = ++card->keys;
    made->rkey = access & MRRC_REMOTE_READ ? card->keys : 0;
    printf("the card registers %zu bytes: key %lu\n", length, card->keys);
    return 0; /* or an errno */
}

static void card_deregister(void *user, mrrc_registered_t *batch, size_t count)
{
    (void)user;
    for (size_t i = 0; i < count; i++)
        printf("the card deregisters key %lu\n", (unsigned long)batch[i].registration.lkey);
    /* batch[i].error = an errno, where that fails */
}

static void must(mrrc_status_t status, const mrrc_error_t *error)
{
    if (status != MRRC_OK) {
        fprintf(stderr, "%s\n", error->message);
        exit(1);
    }
}

int main(void)
{
    mrrc_error_t error;
    struct card card = { 0 };
    mrrc_registrar_t registrar = {
        .size = sizeof registrar,
        .name = "my card",
        .user = &card,
        .register_range = card_register,
        .deregister_batch = card_deregister,
    };
    mrrc_options_t *options = mrrc_options_new();
    must(mrrc_options_set(options, "capacity", "64 MiB", &error), &error);
    /* This program tells the cache before it frees memory; by default the kernel does. */
    must(mrrc_options_set(options, "monitor", "explicit", &error), &error);
    mrrc_cache_t *cache;
    must(mrrc_cache_new(options, &registrar, &cache, &error), &error);
    mrrc_options_free(options);

    size_t length = 25 * 4096;
    char *buffer = aligned_alloc(4096, length);
    for (int i = 0; i < 10; i++) {
        mrrc_lease_t lease = { { 0 } };
        must(mrrc_acquire(cache, buffer, length, MRRC_LOCAL, &lease, &error), &error);
        mrrc_segment_t parts[4];
        size_t count = mrrc_segments(&lease, parts, 4);
        for (size_t part = 0; part < count && i == 0; part++)
            printf("a transfer of %zu bytes by key %lu\n", parts[part].length, (unsigned long)parts[part].lkey);
        /* ... post it, and wait for its completion ... */
        mrrc_release(&lease);
    }
    must(mrrc_invalidate(cache, buffer, length, &error), &error);
    free(buffer);

    char text[2000];
    mrrc_summary(cache, text, sizeof text);
    printf("%s\n", text);
    mrrc_cache_free(cache);
    return 0;
}
