// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Answers GETs in datagrams from the server's own items, at XDP and at tcx ingress.
 *
 * Nothing is copied ahead and nothing is written to items: each answer is put together in scratch memory, and is sent only if
 * the item was the key's value all the while. Everything else is passed up untouched.
 *
 * Packets lie in scratch memory so that the UDP header is at the same offset for IPv4 and IPv6, and is aligned.
 */
#include "layout.h"
#include "helpers.h"

#ifndef HOST
char LICENSE[] SEC("license") = "Dual MIT/GPL";
#endif

#define ETH_BYTES 14u
#define IP4_BYTES 20u
#define IP6_BYTES 40u
#define UDP_BYTES 8u
#define FRAME_BYTES 8u
/* Places in the scratch memory of a packet. */
#define AT_UDP 56u
#define AT_FRAME (AT_UDP + UDP_BYTES)
#define AT_TEXT (AT_FRAME + FRAME_BYTES)
#define AT_PACKET4 (AT_UDP - ETH_BYTES - IP4_BYTES)
#define AT_PACKET6 (AT_UDP - ETH_BYTES - IP6_BYTES)
#define AT_IP4 (AT_UDP - IP4_BYTES)
#define AT_IP6 (AT_UDP - IP6_BYTES)
/* Bytes of a request's text at most: "mg ", a key, all flags, the line's end. */
#define TEXT_MAX (3 + KEY_MAX + 48 + 2)
#define REQUEST_MAX (ETH_BYTES + IP6_BYTES + UDP_BYTES + FRAME_BYTES + TEXT_MAX)
#define REQUEST_MIN (ETH_BYTES + IP4_BYTES + UDP_BYTES + FRAME_BYTES + 4 + 1 + 2)
#define ANSWER_MAX (ETH_BYTES + IP6_BYTES + UDP_BYTES + DATAGRAM_MAX)
/* Ethernet has no shorter packets. */
#define FRAME_MIN 60u
#define IN_BYTES 448u
#define OUT_BYTES 2048u
/* Seconds that an item is left which never ends. */
#define FOREVER ~0ull
/* Flags of a `mg`, and bytes of one, at most. */
#define FLAGS 8u
#define FLAG_MAX 32u
/* bpf_xdp_adjust_head leaves room for the driver's own. */
#define HEAD_ROOM 208

struct scratch {
    u8 in[IN_BYTES];
    u8 out[OUT_BYTES];
    u64 key[32];
    u64 order; /* ARM64 orders its loads by atomic additions to this */
    u64 hash;
    u64 epoch;
    u32 is6;
    u32 partial; /* the request's checksum is that of the pseudo-header alone */
    u32 key_length;
    u32 verb;
    u32 at;    /* where the next byte of the answer goes */
    u32 total; /* bytes of the answer's packet */
    u32 count;
    u32 class;
    /* Of the item: what was read first. */
    u64 version;
    u32 shape;
    u32 length;
    u32 waiting; /* requests that XDP had no room for, and tcx has not seen yet */
    u32 incarnation;
    /* Of a `mg`: where its flags are in `in`, and how long each is. */
    u32 seen; /* a bit a letter */
    u32 flags;
    u16 flag[FLAGS][2];
};

/* What is asked, and the answer's bytes behind the value. */
enum verb { GET, GETS, META };

/* Why a packet is not answered. */
enum outcome { ANSWERED = 0, NOT_ASKED, UNKNOWN, CHANGED, OVER, NO_ROOM, OTHER_KEY };

#ifndef HOST
/* What is written here is the most work for the verifier; the loader sets all of it. */
const volatile struct settings settings = {
    .value_size = 1 << 20,
    .memory = 1 << 20,
    .shard_size = 1 << 20,
    .bucket_mask = 63,
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(key_size, 4);
    __uint(value_size, 1 << 20);
    __uint(max_entries, 1);
} items SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, u32);
    __type(value, struct bucket);
    __uint(max_entries, 64);
} gets SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, u32);
    __type(value, struct head);
    __uint(max_entries, 1);
} head SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, u32);
    __type(value, struct interface);
    __uint(max_entries, 1);
} interface SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, u32);
    __type(value, struct tally);
    __uint(max_entries, 1);
} tally SEC(".maps");
/* Row 0 is for XDP, 1 for tcx. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __type(key, u32);
    __type(value, struct scratch);
    __uint(max_entries, 2);
} scratch SEC(".maps");
#endif

#define LOAD(type, from) (*(volatile type *)(from))

static INLINE u32 fold(u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static INLINE u64 sum_ip4(const u8 *packet)
{
    u64 sum = 0;
    for (u32 at = AT_IP4; at < AT_UDP; at += 4) sum += LOAD(u32, packet + at);
    return sum;
}

/* The sum of addresses, protocol and length. */
static INLINE u64 sum_pseudo(const u8 *packet, u32 is6)
{
    u64 sum = LOAD(u16, packet + AT_UDP + 4) + (u64)be16(IPPROTO_UDP);
    for (u32 at = is6 ? AT_IP6 + 8 : AT_IP4 + 12; at < AT_UDP; at += 4) sum += LOAD(u32, packet + at);
    return sum;
}

/* Returns the sum of this number of bytes of a packet from the UDP header on; up to three more bytes are made zero. */
FUNCTION u32 sum_request(struct scratch *s, u32 bytes)
{
    if (!s || bytes > REQUEST_MAX) return 0;
    for (u32 i = 0; i < 3; i++) s->in[AT_UDP + bytes + i] = 0;
    bytes = (bytes + 3) & 0x1fc;
    return bpf_csum_diff(0, 0, (u32 *)(s->in + AT_UDP), bytes, 0);
}

FUNCTION u32 sum_answer(struct scratch *s, u32 bytes)
{
    if (!s || bytes > UDP_BYTES + DATAGRAM_MAX) return 0;
    for (u32 i = 0; i < 3; i++) s->out[AT_UDP + bytes + i] = 0;
    bytes = (bytes + 3) & 0x7fc;
    u64 sum = 0;
    for (u32 at = 0; at < 3 * 512; at += 512) {
        if (at >= bytes) break;
        u32 part = bytes - at;
        if (part > 512) part = 512;
        sum = bpf_csum_diff(0, 0, (u32 *)(s->out + AT_UDP + at), part, fold(sum));
    }
    return fold(sum);
}

/* Copies the key from the text at this offset, padded with zeros, and hashes it; 0 if no byte of it is one that no key has. */
FUNCTION int take_key(struct scratch *s, u32 at, u32 length)
{
    if (!s || at > AT_TEXT + 5 || length < 1 || length > KEY_MAX) return -1;
    u64 hash = HASH_BEGIN(settings.secret[0]);
    for (u32 i = 0; i < 32; i++) {
        u32 left = length - i * 8;
        u64 word = LOAD(u64, s->in + at + i * 8), seen = word;
        if (left < 8) {
            u64 mask = ((u64)1 << (left * 8)) - 1;
            word &= mask;
            seen = word | (0x2a2a2a2a2a2a2a2aull & ~mask);
        }
        u64 delete = seen ^ 0x7f7f7f7f7f7f7f7full;
        u64 below = (seen - 0x2121212121212121ull) & ~seen & 0x8080808080808080ull;
        if (below | ((delete - 0x0101010101010101ull) & ~delete & 0x8080808080808080ull)) return -1;
        s->key[i] = word;
        hash = hash_word(hash, word, settings.secret[1]);
        if (left <= 8) break;
    }
    s->hash = hash_end(hash, length);
    s->key_length = length;
    return 0;
}

/* Returns where the text has its next space, or its end, at most `most` bytes on; 0 if a byte before that ends a line. */
FUNCTION u32 word_end(struct scratch *s, u32 at, u32 end, u32 most)
{
    if (!s || at > AT_TEXT + TEXT_MAX || at > end) return 0;
    if (most > end - at) most = end - at;
    const u8 *text = s->in + at;
    for (u32 i = 0; i < KEY_MAX; i++) {
        if (i >= most || text[i] == ' ') return at + i;
        if (text[i] < ' ') return 0;
    }
    return at + KEY_MAX;
}

static INLINE u32 letter(u8 name)
{
    return (u32)1 << (name & 31);
}

/* Reads the flags of a `mg`: each of these at most once, with one space between two. The server has all others. */
FUNCTION int take_flags(struct scratch *s, u32 at, u32 end)
{
    if (!s) return -1;
    LOAD(u32, &s->seen) = 0;
    for (u32 i = 0; i < FLAGS; i++) {
        if (at >= end || at > AT_TEXT + TEXT_MAX) return -1;
        u8 name = s->in[at];
        u32 after = at + 1;
        if (name == 'O') {
            after = word_end(s, at, end, FLAG_MAX + 1);
            if (after <= at || after > at + FLAG_MAX) return -1;
        } else if (name != 'v' && name != 'k' && name != 'f' && name != 'c' && name != 't' && name != 's' && name != 'q') {
            return -1;
        }
        u32 seen = LOAD(u32, &s->seen);
        if (seen & letter(name)) return -1;
        LOAD(u32, &s->seen) = seen | letter(name);
        s->flag[i][0] = at;
        s->flag[i][1] = after - at;
        if (after == end) {
            s->flags = i + 1;
            return 0;
        }
        if (after > end || after > AT_TEXT + TEXT_MAX || s->in[after] != ' ') return -1;
        at = after + 1;
    }
    return -1;
}

static INLINE struct interface *this_interface(void)
{
    u32 zero = 0;
    return bpf_map_lookup_elem(&interface, &zero);
}

static INLINE int is_own4(struct interface *at, u32 address)
{
    u32 count = LOAD(u32, &at->own4_count);
    for (u32 i = 0; i < ADDRESSES; i++) {
        if (i >= count) break;
        if (LOAD(u32, &at->own4[i]) == address) return 1;
    }
    return 0;
}

static INLINE int may_ask4(struct interface *at, u32 address)
{
    u32 count = LOAD(u32, &at->from4_count);
    for (u32 i = 0; i < NETWORKS; i++) {
        if (i >= count) break;
        u32 mask = LOAD(u32, &at->from4[i].mask), rest = address & ~mask;
        if ((address & mask) != LOAD(u32, &at->from4[i].address)) continue;
        /* No host has a network's first address, nor its broadcast address. */
        if (be32(~mask) > 1 && (rest == 0 || rest == ~mask)) continue;
        u32 first = address & 0xff;
        return first != 0 && first != 127 && first < 224;
    }
    return 0;
}

FUNCTION int allowed4(struct scratch *s)
{
    struct interface *at = this_interface();
    if (!s || !at) return 0;
    u32 from = LOAD(u32, s->in + AT_IP4 + 12), to = LOAD(u32, s->in + AT_IP4 + 16);
    return is_own4(at, to) && !is_own4(at, from) && may_ask4(at, from);
}

static INLINE int is_own6(struct interface *at, u64 high, u64 low)
{
    u32 count = LOAD(u32, &at->own6_count);
    for (u32 i = 0; i < ADDRESSES; i++) {
        if (i >= count) break;
        if (LOAD(u64, &at->own6[i][0]) == high && LOAD(u64, &at->own6[i][1]) == low) return 1;
    }
    return 0;
}

FUNCTION int allowed6(struct scratch *s)
{
    struct interface *at = this_interface();
    if (!s || !at) return 0;
    u64 from0 = LOAD(u64, s->in + AT_IP6 + 8), from1 = LOAD(u64, s->in + AT_IP6 + 16);
    u64 to0 = LOAD(u64, s->in + AT_IP6 + 24), to1 = LOAD(u64, s->in + AT_IP6 + 32);
    if (!is_own6(at, to0, to1) || is_own6(at, from0, from1)) return 0;
    /* Neither multicast nor unspecified or loopback. */
    if ((from0 & 0xff) == 0xff || (from0 == 0 && (from1 & ~(0xffull << 56)) == 0)) return 0;
    u32 count = LOAD(u32, &at->from6_count);
    for (u32 i = 0; i < NETWORKS; i++) {
        if (i >= count) break;
        struct network6 *network = &at->from6[i];
        if ((from0 & LOAD(u64, &network->mask[0])) == LOAD(u64, &network->address[0]) &&
            (from1 & LOAD(u64, &network->mask[1])) == LOAD(u64, &network->address[1]))
            return 1;
    }
    return 0;
}

/* Reads the packet of this number of bytes in `in`; 0 if it is a request. */
FUNCTION int parse(struct scratch *s, u32 bytes)
{
    struct interface *at = this_interface();
    if (!s || !at) return NOT_ASKED;
    u8 *in = s->in;
    u32 is6 = s->is6, udp;
    if (is6) {
        for (u32 i = 0; i < 6; i++)
            if (in[AT_PACKET6 + i] != LOAD(u8, at->mac + i)) return NOT_ASKED;
        if (in[AT_PACKET6 + 6] & 1 || LOAD(u16, in + AT_PACKET6 + 12) != be16(ETH_P_IPV6)) return NOT_ASKED;
        if (in[AT_IP6] >> 4 != 6 || in[AT_IP6 + 6] != IPPROTO_UDP) return NOT_ASKED;
        udp = be16(LOAD(u16, in + AT_IP6 + 4));
        if (ETH_BYTES + IP6_BYTES + udp > bytes) return NOT_ASKED;
    } else {
        for (u32 i = 0; i < 6; i++)
            if (in[AT_PACKET4 + i] != LOAD(u8, at->mac + i)) return NOT_ASKED;
        if (in[AT_PACKET4 + 6] & 1 || LOAD(u16, in + AT_PACKET4 + 12) != be16(ETH_P_IP)) return NOT_ASKED;
        if (in[AT_IP4] != 0x45 || in[AT_IP4 + 9] != IPPROTO_UDP || LOAD(u16, in + AT_IP4 + 6) & be16(0xbfff)) return NOT_ASKED;
        u32 total = be16(LOAD(u16, in + AT_IP4 + 2));
        if (total < IP4_BYTES || ETH_BYTES + total > bytes || fold(sum_ip4(in)) != 0xffff) return NOT_ASKED;
        udp = total - IP4_BYTES;
    }
    if (LOAD(u16, in + AT_UDP + 2) != settings.port || LOAD(u16, in + AT_UDP) == 0) return NOT_ASKED;
    if (udp != be16(LOAD(u16, in + AT_UDP + 4))) return NOT_ASKED;
    if (udp < UDP_BYTES + FRAME_BYTES + 7 || udp > REQUEST_MAX - ETH_BYTES - IP6_BYTES) return NOT_ASKED;
    /* The first of one datagram. */
    if (LOAD(u16, in + AT_FRAME + 2) != 0 || LOAD(u16, in + AT_FRAME + 4) & be16(0xfffe)) return NOT_ASKED;
    u32 verb, key;
    if (LOAD(u32, in + AT_TEXT) == TEXT4('g', 'e', 't', ' ')) {
        verb = GET, key = AT_TEXT + 4;
    } else if (LOAD(u32, in + AT_TEXT) == TEXT4('g', 'e', 't', 's') && in[AT_TEXT + 4] == ' ') {
        verb = GETS, key = AT_TEXT + 5;
    } else if (LOAD(u16, in + AT_TEXT) == TEXT2('m', 'g') && in[AT_TEXT + 2] == ' ') {
        verb = META, key = AT_TEXT + 3;
    } else {
        return NOT_ASKED;
    }
    u32 end = AT_UDP + udp - 2;
    if (end > AT_TEXT + TEXT_MAX - 2 || in[end] != '\r' || in[end + 1] != '\n') return NOT_ASKED;
    if (!(is6 ? allowed6(s) : allowed4(s))) return NOT_ASKED;
    /* Read again: the functions above count once for the verifier, this does for each of their results. */
    u32 check = LOAD(u16, in + AT_UDP + 6);
    u32 partial = 0;
    if (check == 0) {
        if (is6) return NOT_ASKED;
    } else {
        u64 pseudo = sum_pseudo(in, is6);
        if (fold(pseudo + sum_request(s, udp)) != 0xffff) {
            if (check != fold(pseudo)) return NOT_ASKED;
            partial = 1;
        }
    }
    s->partial = partial;
    s->verb = verb;
    if (verb == META) {
        u32 after = word_end(s, key, end, KEY_MAX);
        /* Without a flag it is another question. */
        if (after <= key || after >= end || after > AT_TEXT + TEXT_MAX || in[after] != ' ' || take_flags(s, after + 1, end)) return NOT_ASKED;
        end = after;
    }
    return take_key(s, key, end - key) ? NOT_ASKED : 0;
}

static INLINE void *item_at(u64 place)
{
    u32 value = place / settings.value_size;
    u64 within = place % settings.value_size;
    if (place >= settings.memory) return 0;
    OPAQUE(within);
    if (within > settings.value_size - TAIL) return 0;
    void *items_value = bpf_map_lookup_elem(&items, &value);
    if (!items_value) return 0;
    OPAQUE(items_value);
    return items_value + within;
}

/* Whether the item's key is the one that was asked for. */
FUNCTION int has_key(struct scratch *s, u64 place)
{
    if (!s) return 0;
    u8 *item = item_at(place);
    u32 length = s->key_length;
    if (!item || length > KEY_MAX) return 0;
    for (u32 i = 0; i < 32; i++) {
        u32 left = length - i * 8;
        u64 word = LOAD(u64, item + ITEM_KEY + i * 8);
        if (left < 8) return ((word ^ s->key[i]) & (((u64)1 << (left * 8)) - 1)) == 0;
        if (word != s->key[i]) return 0;
        if (left == 8) return 1;
    }
    return 0;
}

/* Copies so many bytes of the item to the answer, in steps of 64: what is beyond them is overwritten. */
FUNCTION int copy_value(struct scratch *s, u64 place, u32 skip, u32 bytes)
{
    if (!s || skip > KEY_MAX || bytes > DATAGRAM_MAX) return -1;
    u32 to = s->at;
    if (to > 512) return -1;
    u8 *item = item_at(place);
    if (!item) return -1;
    item += ITEM_KEY + skip;
    u8 *out = s->out + to;
    for (u32 at = 0; at < DATAGRAM_MAX; at += 64) {
        if (at >= bytes) break;
        for (u32 i = 0; i < 64; i += 8) STORE(u64, out + at + i, LOAD(u64, item + at + i));
    }
    return 0;
}

/* Appends a number to the answer. */
FUNCTION int put_number(struct scratch *s, u64 number)
{
    if (!s) return -1;
    u32 digits = 1;
    u64 rest = number;
    for (u32 i = 0; i < 19; i++) {
        if (rest < 10) break;
        rest /= 10;
        digits++;
    }
    /* By way of memory the verifier forgets how many there are. */
    LOAD(u32, &s->count) = digits;
    u32 end = s->at + LOAD(u32, &s->count);
    s->at = end;
    for (u32 i = 0; i < 20; i++) {
        end--;
        if (end > 512) return -1;
        s->out[end] = '0' + number % 10;
        number /= 10;
        if (!number) break;
    }
    return 0;
}

static INLINE int put_byte(struct scratch *s, u8 byte)
{
    u32 at = s->at;
    if (at > OUT_BYTES - 8) return -1;
    s->out[at] = byte;
    s->at = at + 1;
    return 0;
}

static INLINE u64 seconds(void)
{
    return (bpf_ktime_get_boot_ns() + settings.clock) / 1000000000;
}

FUNCTION int put_key(struct scratch *s)
{
    if (!s) return -1;
    u32 key_length = s->key_length, at = s->at;
    if (key_length > KEY_MAX || at > 512) return -1;
    for (u32 i = 0; i < 32; i++) {
        if (i * 8 >= key_length) break;
        STORE(u64, s->out + at + i * 8, s->key[i]);
    }
    s->at = at + key_length;
    return 0;
}

/* Appends a flag as it was sent. */
FUNCTION int put_flag(struct scratch *s, u32 from, u32 bytes)
{
    if (!s) return -1;
    u32 at = s->at;
    if (at > 512 || from > AT_TEXT + TEXT_MAX || bytes > FLAG_MAX) return -1;
    for (u32 i = 0; i < FLAG_MAX; i += 8) STORE(u64, s->out + at + i, LOAD(u64, s->in + from + i));
    s->at = at + bytes;
    return 0;
}

/* Puts the text of an answer together, as far as the value. */
FUNCTION int put_line(struct scratch *s, u32 flags, u32 length, u64 cas)
{
    if (!s) return -1;
    STORE(u32, s->out + AT_TEXT, TEXT4('V', 'A', 'L', 'U'));
    STORE(u16, s->out + AT_TEXT + 4, TEXT2('E', ' '));
    s->at = AT_TEXT + 6;
    if (put_key(s) || put_byte(s, ' ') || put_number(s, flags) || put_byte(s, ' ') || put_number(s, length)) return -1;
    if (s->verb == GETS && (put_byte(s, ' ') || put_number(s, cas))) return -1;
    return put_byte(s, '\r') || put_byte(s, '\n');
}

/* The same for `mg`: its flags in the order of the request. */
FUNCTION int put_meta(struct scratch *s, u32 flags, u32 length, u64 cas, u64 left)
{
    if (!s) return -1;
    if (s->seen & letter('v')) {
        STORE(u32, s->out + AT_TEXT, TEXT4('V', 'A', ' ', 0));
        s->at = AT_TEXT + 3;
        if (put_number(s, length)) return -1;
    } else {
        STORE(u16, s->out + AT_TEXT, TEXT2('H', 'D'));
        s->at = AT_TEXT + 2;
    }
    for (u32 i = 0; i < FLAGS; i++) {
        if (i >= s->flags) break;
        u32 from = s->flag[i][0];
        if (from > AT_TEXT + TEXT_MAX) return -1;
        u8 name = s->in[from];
        if (name == 'v' || name == 'q') continue;
        if (put_byte(s, ' ')) return -1;
        if (put_flag(s, from, s->flag[i][1])) return -1;
        if (name == 'k') {
            if (put_key(s)) return -1;
        } else if (name == 't' && left == FOREVER) {
            if (put_byte(s, '-') || put_byte(s, '1')) return -1;
        } else if (name != 'O') {
            u64 number = name == 'f' ? flags : name == 'c' ? cas : name == 's' ? length : left;
            if (put_number(s, number)) return -1;
        }
    }
    return put_byte(s, '\r') || put_byte(s, '\n');
}

/* Step 1 and 2: whether the item there is alive and the key's; what is to be answered is put together. */
FUNCTION int take_item(struct scratch *s, u64 place)
{
    if (!s) return CHANGED;
    u8 *item = item_at(place);
    if (!item) return OVER;
    u32 shape = LOAD(u32, item + ITEM_SHAPE);
    BARRIER(s);
    u64 first = LOAD(u64, item + ITEM_FIRST);
    BARRIER(s);
    u64 alive = ITEM_ALIVE | (u64)ITEM_MAGIC << 16 | (u64)s->incarnation << 32;
    if ((first & ~(ITEM_MARKS & ~ITEM_STALE)) != alive) return CHANGED;
    u64 version = LOAD(u64, item + ITEM_VERSION);
    BARRIER(s);
    u32 length = LOAD(u32, item + ITEM_LENGTH), flags = LOAD(u32, item + ITEM_FLAGS);
    u32 key_length = shape & 0xff;
    if (key_length != s->key_length) return OTHER_KEY;
    if (!has_key(s, place)) return OTHER_KEY;
    if (length > DATAGRAM_MAX) return OVER;
    u64 expiry = LOAD(u64, item + ITEM_EXPIRY), cas = settings.without_cas ? 0 : version;
    u64 left = FOREVER;
    if (expiry != 0) {
        u64 now = seconds();
        if (expiry <= now) return OVER;
        left = expiry - now;
    }
    s->shape = shape;
    s->version = version;
    STORE(u64, s->out + AT_FRAME, LOAD(u16, s->in + AT_FRAME) | (u64)be16(1) << 32);
    if (s->verb == META) {
        /* The server has the answer's other flags. */
        if (first & (ITEM_WON | ITEM_BINARY)) return OVER;
        if (put_meta(s, flags, length, cas, left)) return OVER;
        if (!(s->seen & letter('v'))) length = 0;
    } else if (put_line(s, flags, length, cas)) {
        return OVER;
    }
    s->length = length;
    WAIT();
    if (copy_value(s, place, key_length, length)) return OVER;
    WAIT();
    return ANSWERED;
}

/* Step 3: whether the item was the key's value all the while. */
FUNCTION int still(struct scratch *s, u64 place)
{
    if (!s) return 0;
    u8 *item = item_at(place);
    u32 zero = 0;
    struct head *h = bpf_map_lookup_elem(&head, &zero);
    u64 at = place / settings.shard_size;
    if (!item || !h || at >= SHARDS) return 0;
    BARRIER(s);
#if GETS_FAULT != 1
    u64 first = LOAD(u64, item + ITEM_FIRST);
    u64 alive = ITEM_ALIVE | (u64)ITEM_MAGIC << 16 | (u64)s->incarnation << 32;
    if ((first & ~(ITEM_MARKS & ~ITEM_STALE)) != alive) return 0;
    BARRIER(s);
    if (LOAD(u64, item + ITEM_VERSION) != s->version) return 0;
#if GETS_FAULT != 2
    if (LOAD(u32, item + ITEM_SHAPE) != s->shape) return 0;
#endif
#endif
    u64 flush_at = LOAD(u64, &h->shard[at].flush_at);
    if (flush_at != 0 && flush_at <= seconds()) return 0;
    BARRIER(s);
    if (s->version <= LOAD(u64, &h->shard[at].flushed)) return 0;
#if GETS_FAULT != 3
    if (LOAD(u64, &h->epoch) != s->epoch) return 0;
#endif
    return 1;
}

/* Looks the key up, and puts its value together; counts hits. */
FUNCTION int find(struct scratch *s)
{
    if (!s) return UNKNOWN;
    u32 zero = 0, at = s->hash & settings.bucket_mask, tag = s->hash >> 32;
    struct head *h = bpf_map_lookup_elem(&head, &zero);
    struct bucket *bucket = bpf_map_lookup_elem(&gets, &at);
    if (!h || !bucket) return UNKNOWN;
    u64 epoch = LOAD(u64, &h->epoch);
    if (!(epoch & 1)) return UNKNOWN;
    s->epoch = epoch;
    s->incarnation = LOAD(u64, &h->incarnation);
    BARRIER(s);
    if (!tag) tag = 1;
    for (u32 i = 0; i < SLOTS; i++) {
        u64 slot = LOAD(u64, &bucket->slot[i]);
        if (slot >> 32 != tag) continue;
        BARRIER(s);
        u64 place = (slot & 0xffffffff) * 8;
        int outcome = take_item(s, place);
        if (outcome == OTHER_KEY) continue;
        if (outcome != ANSWERED) return outcome;
        if (!still(s, place)) return CHANGED;
        u32 mine = i;
        BOUNDED(mine, 0, SLOTS - 1, ANSWERED);
        u8 hits = LOAD(u8, &bucket->hits[mine]);
        if (hits < 3) LOAD(u8, &bucket->hits[mine]) = hits + 1;
        return ANSWERED;
    }
    return UNKNOWN;
}

/* Puts the headers of the answer together. */
FUNCTION int finish(struct scratch *s)
{
    struct interface *here = this_interface();
    if (!s || !here) return OVER;
    u8 *in = s->in, *out = s->out;
    u32 at = s->at + s->length;
    if (at < AT_TEXT || at > OUT_BYTES - 16) return OVER;
    STORE(u64, out + at, TEXT8('\r', '\n', 'E', 'N', 'D', '\r', '\n', 0));
    /* Behind a value the end of its line, and of all that was asked for. */
    at += s->verb != META ? 7 : s->seen & letter('v') ? 2 : 0;
    /* Zeros are there where a short packet is padded. */
    STORE(u64, out + at, 0);
    u32 udp = at - AT_UDP, is6 = s->is6;
    if (udp > UDP_BYTES + DATAGRAM_MAX || udp + (is6 ? IP6_BYTES : IP4_BYTES) > LOAD(u32, &here->mtu)) return OVER;
    LOAD(u16, out + AT_UDP) = LOAD(u16, in + AT_UDP + 2);
    LOAD(u16, out + AT_UDP + 2) = LOAD(u16, in + AT_UDP);
    LOAD(u16, out + AT_UDP + 4) = be16(udp);
    LOAD(u16, out + AT_UDP + 6) = 0;
    if (is6) {
        for (u32 i = 0; i < 6; i += 2) {
            LOAD(u16, out + AT_PACKET6 + i) = LOAD(u16, in + AT_PACKET6 + 6 + i);
            LOAD(u16, out + AT_PACKET6 + 6 + i) = LOAD(u16, in + AT_PACKET6 + i);
        }
        LOAD(u16, out + AT_PACKET6 + 12) = be16(ETH_P_IPV6);
        LOAD(u32, out + AT_IP6) = 0x60;
        LOAD(u16, out + AT_IP6 + 4) = be16(udp);
        LOAD(u16, out + AT_IP6 + 6) = IPPROTO_UDP | 64 << 8;
        for (u32 i = 0; i < 16; i += 8) {
            LOAD(u64, out + AT_IP6 + 8 + i) = LOAD(u64, in + AT_IP6 + 24 + i);
            LOAD(u64, out + AT_IP6 + 24 + i) = LOAD(u64, in + AT_IP6 + 8 + i);
        }
        s->total = ETH_BYTES + IP6_BYTES + udp;
    } else {
        for (u32 i = 0; i < 6; i += 2) {
            LOAD(u16, out + AT_PACKET4 + i) = LOAD(u16, in + AT_PACKET4 + 6 + i);
            LOAD(u16, out + AT_PACKET4 + 6 + i) = LOAD(u16, in + AT_PACKET4 + i);
        }
        LOAD(u16, out + AT_PACKET4 + 12) = be16(ETH_P_IP);
        LOAD(u16, out + AT_IP4) = 0x45;
        LOAD(u16, out + AT_IP4 + 2) = be16(IP4_BYTES + udp);
        LOAD(u32, out + AT_IP4 + 4) = be16(0x4000) << 16;
        LOAD(u32, out + AT_IP4 + 8) = 64 | IPPROTO_UDP << 8;
        LOAD(u32, out + AT_IP4 + 12) = LOAD(u32, in + AT_IP4 + 16);
        LOAD(u32, out + AT_IP4 + 16) = LOAD(u32, in + AT_IP4 + 12);
        LOAD(u16, out + AT_IP4 + 10) = ~fold(sum_ip4(out));
        s->total = ETH_BYTES + IP4_BYTES + udp;
    }
    if (s->total < FRAME_MIN) s->total = FRAME_MIN;
    return ANSWERED;
}

/* Sets the answer's checksum: of all of it, or of the pseudo-header alone. */
FUNCTION int seal(struct scratch *s, int partial)
{
    if (!s) return OVER;
    u8 *out = s->out;
    u64 sum = sum_pseudo(out, s->is6);
    if (partial) {
        LOAD(u16, out + AT_UDP + 6) = fold(sum);
        return ANSWERED;
    }
    u32 udp = be16(LOAD(u16, out + AT_UDP + 4));
    u32 check = ~fold(sum + sum_answer(s, udp)) & 0xffff;
    LOAD(u16, out + AT_UDP + 6) = check ? check : 0xffff;
    return ANSWERED;
}

/* Everything between the packet in `in` and the one in `out`. */
static INLINE int respond(struct scratch *s, u32 bytes)
{
    if (parse(s, bytes)) return NOT_ASKED;
    int outcome = find(s);
    if (outcome == ANSWERED) outcome = finish(s);
    return outcome;
}

static INLINE struct tally *row(void)
{
    u32 cpu = bpf_get_smp_processor_id();
    return bpf_map_lookup_elem(&tally, &cpu);
}

static INLINE void count_passed(struct tally *t, int outcome)
{
    if (outcome == UNKNOWN) t->unknown++;
    if (outcome == CHANGED) t->changed++;
    if (outcome == OVER) t->over++;
    if (outcome == NO_ROOM) t->no_room++;
}

static INLINE void count_answer(struct tally *t, struct scratch *s)
{
    t->answered++;
    if (s->verb == META) t->meta++;
    t->bytes_in += be16(LOAD(u16, s->in + AT_UDP + 4)) - UDP_BYTES;
    t->bytes_out += be16(LOAD(u16, s->out + AT_UDP + 4)) - UDP_BYTES;
    t->classes[s->shape >> 8 & 0xff]++;
}

SEC("xdp") int rdmakv_xdp(struct xdp_md *ctx)
{
    u8 *end = (u8 *)(long)ctx->data_end, *data = (u8 *)(long)ctx->data;
    if (data + REQUEST_MIN > end) return XDP_PASS;
    u32 base;
    if (LOAD(u16, data + 12) == be16(ETH_P_IP)) {
        if (LOAD(u16, data + ETH_BYTES + IP4_BYTES + 2) != settings.port || data[ETH_BYTES] != 0x45) return XDP_PASS;
        base = AT_PACKET4;
    } else if (LOAD(u16, data + 12) == be16(ETH_P_IPV6)) {
        if (data + ETH_BYTES + IP6_BYTES + UDP_BYTES > end) return XDP_PASS;
        if (LOAD(u16, data + ETH_BYTES + IP6_BYTES + 2) != settings.port) return XDP_PASS;
        base = AT_PACKET6;
    } else {
        return XDP_PASS;
    }
    u32 bytes = end - data, zero = 0;
    struct tally *t = row();
    struct scratch *s = bpf_map_lookup_elem(&scratch, &zero);
    if (!t || !s) return XDP_PASS;
    BOUNDED(bytes, REQUEST_MIN, REQUEST_MAX, XDP_PASS);
    s->is6 = base == AT_PACKET6;
    if (bpf_xdp_load_bytes(ctx, 0, s->in + base, bytes)) return XDP_PASS;
    int outcome = respond(s, bytes);
    if (outcome == NOT_ASKED) return XDP_PASS;
    t->asked++;
    if (outcome != ANSWERED) {
        count_passed(t, outcome);
        return XDP_PASS;
    }
    seal(s, 0);
    u32 total = s->total;
    int more = total - bytes;
    if (more > 0) {
        if ((more > HEAD_ROOM || bpf_xdp_adjust_head(ctx, -more)) && bpf_xdp_adjust_tail(ctx, more)) {
            /* Untouched: tcx tries again. */
            if (s->waiting < 64) s->waiting++;
            return XDP_PASS;
        }
    } else if (more < 0 && bpf_xdp_adjust_tail(ctx, more)) {
        return XDP_PASS;
    }
    BOUNDED(total, REQUEST_MIN, ANSWER_MAX, XDP_DROP);
    base = s->is6 ? AT_PACKET6 : AT_PACKET4;
    if (bpf_xdp_store_bytes(ctx, 0, s->out + base, total)) return XDP_DROP;
    count_answer(t, s);
    return XDP_TX;
}

SEC("tcx/ingress") int rdmakv_tcx(struct __sk_buff *skb)
{
    u32 bytes = skb->len, base, port, zero = 0, one = 1;
    BOUNDED(bytes, REQUEST_MIN, REQUEST_MAX, TCX_NEXT);
    if (skb->vlan_present || skb->gso_segs > 1) return TCX_NEXT;
    if (skb->protocol == be16(ETH_P_IP)) base = AT_PACKET4;
    else if (skb->protocol == be16(ETH_P_IPV6)) base = AT_PACKET6;
    else return TCX_NEXT;
    if (!settings.only_tcx) {
        struct scratch *before = bpf_map_lookup_elem(&scratch, &zero);
        if (!before || before->waiting == 0) return TCX_NEXT;
    }
    if (bpf_skb_load_bytes(skb, AT_UDP - base, &port, 4) || port >> 16 != settings.port) return TCX_NEXT;
    struct tally *t = row();
    struct scratch *s = bpf_map_lookup_elem(&scratch, &one);
    if (!t || !s) return TCX_NEXT;
    s->is6 = base == AT_PACKET6;
    if (bpf_skb_load_bytes(skb, 0, s->in + base, bytes)) return TCX_NEXT;
    int outcome = respond(s, bytes);
    if (outcome == NOT_ASKED) return TCX_NEXT;
    if (settings.only_tcx) {
        t->asked++;
    } else {
        struct scratch *before = bpf_map_lookup_elem(&scratch, &zero);
        /* XDP has counted what is not found here; only an item that it found can be gone. */
        if (outcome == UNKNOWN) return TCX_NEXT;
        if (before && before->waiting) before->waiting--;
    }
    if (outcome != ANSWERED) {
        count_passed(t, outcome);
        return TCX_NEXT;
    }
    seal(s, s->partial);
    u32 total = s->total;
    BOUNDED(total, REQUEST_MIN, ANSWER_MAX, TCX_NEXT);
    if (bpf_skb_change_tail(skb, total, 0)) {
        count_passed(t, NO_ROOM);
        return TCX_NEXT;
    }
    base = s->is6 ? AT_PACKET6 : AT_PACKET4;
    if (bpf_skb_store_bytes(skb, 0, s->out + base, total, BPF_F_RECOMPUTE_CSUM)) return TCX_DROP;
    count_answer(t, s);
    return bpf_redirect(skb->ifindex, 0);
}
