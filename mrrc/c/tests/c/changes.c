/* The kernel tells the cache of changes by itself: what is unmapped, and mapped again at the same address, is registered anew. */
#define _GNU_SOURCE
#include "card.h"
#include <sys/mman.h>

int main(void)
{
    struct card card = { 0 };
    mrrc_registrar_t registrar = card_registrar(&card);
    mrrc_cache_t *cache;
    mrrc_error_t error;
    mrrc_status_t status = mrrc_cache_new(NULL, &registrar, &cache, &error);
    if (status == MRRC_ERROR_SYSTEM) {
        printf("not run: %s\n", error.message);
        return 77;
    }
    CHECK(status == MRRC_OK);
    char *place = (char *)0x200000000000, *memory = NULL;
    unsigned long keys[3];
    for (int round = 0; round < 3; round++) {
        if (round < 2) {
            memory = mmap(place, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            CHECK(memory == place);
        }
        mrrc_lease_t lease = { { 0 } };
        mrrc_segment_t part;
        DONE(mrrc_acquire(cache, memory, 4 * PAGE, MRRC_LOCAL, &lease, &error));
        CHECK(mrrc_segments(&lease, &part, 1) == 1);
        keys[round] = part.lkey;
        CHECK(mrrc_release(&lease) == MRRC_OK);
        if (round < 1)
            CHECK(munmap(memory, 4 * PAGE) == 0);
    }
    CHECK(keys[0] != keys[1] && keys[1] == keys[2]);
    CHECK(counted(cache).changes > 0 && counted(cache).invalidated == 1);
    munmap(memory, 4 * PAGE);
    mrrc_cache_free(cache);
    CHECK(card.bytes == 0 && card.done == 1);
    puts("done");
    return 0;
}
