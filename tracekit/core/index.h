/* Numbers by hash: an open-addressing table that grows. The owner of a table compares the things that its numbers refer to. */

#ifndef TRACEKIT_INDEX_H
#define TRACEKIT_INDEX_H

#include <stdint.h>
#include <string.h>

#include "memory.h"

#define HASH_BEGIN 0xCBF29CE484222325u

typedef struct {
    uint32_t hash, number; /* number 0: the slot is free */
} Slot;

typedef struct {
    Slot *slots;
    uint32_t room, count; /* room: a power of two, or 0 */
} Index;

/* FNV-1a. */
INLINE uint64_t hash_part(uint64_t hash, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001B3u;
    return hash;
}

/* Hashes a text, 16 bytes at a time. */
static inline __attribute__((unused)) uint64_t hash_bytes(const char *text, size_t size)
{
    uint64_t hash = size * 0x9E3779B97F4A7C15u, other = 0, some[2];
    for (; size >= 16; text += 16, size -= 16) {
        memcpy(some, text, 16);
        hash = (hash ^ some[0]) * 0xFF51AFD7ED558CCDu;
        other = (other ^ some[1]) * 0xC4CEB9FE1A85EC53u;
        hash ^= hash >> 32;
        other ^= other >> 32;
    }
    some[0] = some[1] = 0;
    memcpy(some, text, size);
    hash = (hash ^ some[0] ^ other) * 0xFF51AFD7ED558CCDu;
    hash = (hash ^ hash >> 32 ^ some[1]) * 0xC4CEB9FE1A85EC53u;
    return hash ^ hash >> 32;
}

/* Returns the next number with a hash, 0 for none. `slot` begins as the hash, and is moved on. */
INLINE uint32_t next_number(const Index *index, uint32_t hash, uint32_t *slot)
{
    while (index->room) {
        Slot found = index->slots[(*slot)++ & (index->room - 1)];
        if (found.number == 0 || found.hash == hash)
            return found.number;
    }
    return 0;
}

INLINE void put_number(Index *index, Slot added)
{
    uint32_t at = added.hash;
    while (index->slots[at & (index->room - 1)].number)
        at++;
    index->slots[at & (index->room - 1)] = added;
}

/* Makes room for one more number. Returns 0 without memory. */
static inline __attribute__((unused)) int reserve_number(Index *index)
{
    if (index->count < index->room / 2)
        return 1;
    Index grown = {.room = index->room ? index->room * 2 : 64, .count = index->count};
    grown.slots = grown.room > 1u << 30 ? NULL : tracekit_calloc(grown.room, sizeof(Slot));
    if (grown.slots == NULL)
        return 0;
    for (uint32_t i = 0; i < index->room; i++)
        if (index->slots[i].number)
            put_number(&grown, index->slots[i]);
    free(index->slots);
    *index = grown;
    return 1;
}

/* Adds a number, for which there is room. */
INLINE void add_number(Index *index, uint32_t hash, uint32_t number)
{
    put_number(index, (Slot){hash, number});
    index->count++;
}

INLINE void clear_index(Index *index)
{
    if (index->slots != NULL)
        memset(index->slots, 0, index->room * sizeof *index->slots);
    index->count = 0;
}

#endif
