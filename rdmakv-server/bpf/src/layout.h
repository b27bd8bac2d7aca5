/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Layouts that the program and the server's writer share; layout.rs has the same. All numbers are little-endian. */
#ifndef RDMAKV_LAYOUT_H
#define RDMAKV_LAYOUT_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

/* An item: its header, the key, the value. */
#define ITEM_FIRST 0
#define ITEM_EXPIRY 8
#define ITEM_VERSION 16
#define ITEM_LENGTH 24
#define ITEM_FLAGS 28
#define ITEM_SHAPE 36
#define ITEM_KEY 56
#define ITEM_ALIVE 2u
#define ITEM_MAGIC 0x6b76u
#define ITEM_STALE 0x200ull
#define ITEM_WON 0x400ull
#define ITEM_BINARY 0x1000ull
#define ITEM_MARKS 0xff00ull

#define KEY_MAX 250u
/* Bytes of an answer's datagram at most, with the frame. */
#define DATAGRAM_MAX 1400u
/* Bytes at the end of a value of the map of items that no answer begins in. */
#define TAIL 2048u

#define SLOTS 7
struct bucket {
    u64 slot[SLOTS]; /* place in units of 8 bytes, and the tag above it */
    u8 hits[8];
};

#define SHARDS 252
struct shard {
    u64 flushed;
    u64 flush_at;
};
struct head {
    u64 epoch; /* the lowest bit: answer; the rest counts pages that left their class */
    u64 incarnation;
    u64 unused[6];
    struct shard shard[SHARDS];
};

struct tally {
    u64 asked, answered, bytes_in, bytes_out;
    u64 unknown, changed, over, no_room;
    u64 meta; /* of those that were answered */
    u64 rest[7];
    u64 classes[256];
};

#define NETWORKS 16
#define ADDRESSES 16
struct network4 {
    u32 address, mask;
};
struct network6 {
    u64 address[2], mask[2];
};

/* Constants, set before the program is loaded. */
struct settings {
    u64 value_size;  /* bytes of a value of the map of items */
    u64 memory;      /* bytes of items in all */
    u64 shard_size;  /* bytes of a shard */
    u64 bucket_mask; /* buckets less one */
    u64 secret[2];
    u64 clock; /* what the boot clock lacks to the server's, in nanoseconds */
    u32 without_cas;
    u32 only_tcx;
    u16 port; /* as in the packet */
    u16 unused[3];
};

/* The interface as it is now: the server writes this again when it changes, the counts of own addresses last. */
struct interface {
    u32 mtu;
    u8 mac[6];
    u16 unused;
    u32 own4_count, own6_count, from4_count, from6_count, rest;
    u32 own4[ADDRESSES];
    u64 own6[ADDRESSES][2];
    struct network4 from4[NETWORKS];
    struct network6 from6[NETWORKS];
};

/* The hash of a key: its words of eight bytes, the last one padded with zeros. */
#define HASH_ODD 0x9fb21c651e98df25ull
#define HASH_BEGIN(secret0) (secret0)
static inline __attribute__((always_inline)) u64 hash_word(u64 hash, u64 word, u64 secret1)
{
    hash = (hash ^ word) * HASH_ODD;
    hash ^= hash >> 32;
    hash *= secret1 | 1;
    return hash ^ hash >> 29;
}
static inline __attribute__((always_inline)) u64 hash_end(u64 hash, u32 length)
{
    hash = (hash ^ length) * HASH_ODD;
    hash ^= hash >> 32;
    hash *= HASH_ODD;
    return hash ^ hash >> 31;
}

#endif
