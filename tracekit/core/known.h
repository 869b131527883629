/* A cache of texts that mostly repeat from one event to the next: keys with the text around them, the place of an event, its
   arguments. The same bytes have the same meaning, and need not be read again.

   A text is known in one kind of place only: behind a value, or behind the opening brace of an object. */

#ifndef TRACEKIT_KNOWN_H
#define TRACEKIT_KNOWN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "memory.h"

#define MOST_KEY 48         /* characters of a known key; a multiple of 16, as the others */
#define MOST_PLACE_TEXT 112 /* of a known place */
#define MOST_SAME 128       /* of known arguments */
#define KNOWN_PLACES 8
#define KNOWN_KEYS 128      /* of arguments; a power of two */
#define FIELDS 22           /* no field, and each of an event */
#define PHASE_GROUPS 4

enum where { NOWHERE, BEHIND_BRACE, BEHIND_VALUE };

/* The text before a key, the key, and the text up to its value. 64 bytes. */
typedef struct {
    char text[MOST_KEY];
    unsigned char where; /* NOWHERE: no key is known */
    unsigned char size, key_at, key_size;
    unsigned char field; /* of an event, or of its arguments: enum arg_field */
    unsigned char next;  /* of arguments: the key that followed */
    uint16_t begin;      /* a bit for each of the first 16 characters */
    char unused[8];
} KnownKey;

/* The text from before the key pid to the value of ts, if pid and tid are numbers. */
typedef struct {
    char text[MOST_PLACE_TEXT];
    unsigned char where, size, pid_at, pid_end, tid_at, tid_end, tid_stop; /* tid_stop: behind spaces */
    int64_t track; /* -1: to be found */
    unsigned char new_size, new_tid_at; /* the replacement that the merge writes, once it is known */
    char new_text[MOST_PLACE_TEXT + 64];
} KnownPlace;

typedef struct {
    KnownKey of_events[PHASE_GROUPS][FIELDS]; /* by the phase, once it is read, and the field before */
    KnownKey of_args[KNOWN_KEYS];
    KnownPlace places[KNOWN_PLACES];
    unsigned next_place, last_place;
    char same_args[MOST_SAME];
    size_t same_size; /* 0: no arguments are known */
} Known;

/* Returns true if a text is at p. If `end` is at least `most` characters away, 16 characters are compared per step. */
INLINE int stands_at(const char *p, const char *end, const char *text, size_t size, size_t most)
{
#if defined(__SSE2__)
    if ((size_t)(end - p) >= most) {
        for (size_t at = 0; at < size; at += 16) {
            __m128i here = _mm_loadu_si128((const __m128i *)(const void *)(p + at));
            __m128i there = _mm_loadu_si128((const __m128i *)(const void *)(text + at));
            unsigned differ = ~(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(here, there)) & 0xFFFF;
            if (size - at < 16)
                return (differ & ((1u << (size - at)) - 1)) == 0;
            if (differ)
                return 0;
        }
        return 1;
    }
#endif
    return (size_t)(end - p) >= size && memcmp(p, text, size) == 0;
}

INLINE int is_known_key(const KnownKey *key, const char *p, const char *end, enum where where)
{
    if (key->where != where)
        return 0;
#if defined(__SSE2__)
    if (end - p >= MOST_KEY) {
        __m128i here = _mm_loadu_si128((const __m128i *)(const void *)p);
        __m128i there = _mm_loadu_si128((const __m128i *)(const void *)key->text);
        if (~(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(here, there)) & key->begin)
            return 0;
        return key->size <= 16 || stands_at(p + 16, end, key->text + 16, key->size - 16u, MOST_KEY - 16);
    }
#endif
    return (size_t)(end - p) >= key->size && memcmp(p, key->text, key->size) == 0;
}

INLINE int keep_key(KnownKey *known, const char *from, const char *key, const char *quote, const char *value, enum where where, unsigned field)
{
    size_t size = (size_t)(value - from);
    if (size > MOST_KEY)
        return 0;
    memcpy(known->text, from, size);
    known->size = (unsigned char)size;
    known->key_at = (unsigned char)(key - from);
    known->key_size = (unsigned char)(quote - key);
    known->where = (unsigned char)where;
    known->field = (unsigned char)field;
    known->begin = (uint16_t)(size < 16 ? (1u << size) - 1 : 0xFFFF);
    return 1;
}

/* Returns the key of arguments that followed another one. */
INLINE const KnownKey *next_key(const Known *known, unsigned before)
{
    return &known->of_args[known->of_args[before].next];
}

/* Keeps a key of arguments; returns its number, or 0 if it cannot be kept. */
INLINE unsigned keep_arg_key(Known *known, unsigned before, const char *from, const char *key, const char *quote, const char *value, enum where where, unsigned field)
{
    if (quote == key || memchr(key, '\\', (size_t)(quote - key)) != NULL)
        return 0;
    unsigned number = 1 + (((unsigned char)*key * 5u + (unsigned char)quote[-1] * 3u + (unsigned)(quote - key) * 7u) & (KNOWN_KEYS - 1)) % (KNOWN_KEYS - 1);
    if (!keep_key(&known->of_args[number], from, key, quote, value, where, field))
        return 0;
    known->of_args[before].next = (unsigned char)number;
    return number;
}

INLINE KnownPlace *find_place(Known *known, const char *p, const char *end, enum where where)
{
    for (unsigned i = 0; i < KNOWN_PLACES; i++) {
        unsigned number = (known->last_place + i) % KNOWN_PLACES;
        KnownPlace *place = &known->places[number];
        if (place->where == where && stands_at(p, end, place->text, place->size, MOST_PLACE_TEXT)) {
            known->last_place = number;
            return place;
        }
    }
    return NULL;
}

#endif
