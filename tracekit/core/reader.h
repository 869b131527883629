/* JSON as text: strict, read from the first byte to the last, nothing copied.

   Every function takes a pointer into a text that ends with a NUL (as the content of a bytes object does). It returns the pointer
   behind the value that it read, or NULL if it does not understand the text: then the caller returns the text to Python. NUL is
   not valid in JSON, so that nothing reads beyond it. Only steps over several bytes must check for the end.
   msgspec accepts every text that is accepted here, and possibly more. */

#ifndef TRACEKIT_READER_H
#define TRACEKIT_READER_H

#include "known.h"

#define MOST_NESTED 60      /* levels of objects and arrays in a value: one bit each */
#define MOST_EDITS 256      /* numbers of an event that may change */
#define MOST_EXPONENT 2     /* digits */
#define MOST_NUMBER 64      /* characters */
#define MAX_ID 19           /* digits of an id */
#define MAX_ARG_ID 10       /* digits of an id in arguments that moves: CUPTI's have 32 bits */

enum edit_kind { EDIT_PID, EDIT_TID, EDIT_TS, EDIT_ID, EDIT_ARG, EDIT_LOCAL_ID, EDIT_BIND_ID, EDIT_DUR, EDIT_SCOPE, EDIT_ARGS, EDIT_PLACE };

/* Arguments that the event table has columns for. */
enum arg_field { ARG_NONE, ARG_CORRELATION, ARG_STREAM, ARG_DEVICE, ARG_BYTES, ARG_GROUP, ARG_FIELDS };

typedef struct {
    const char *at, *end;
} Span;

typedef struct {
    enum edit_kind kind;
    Span span;
    uint64_t number;
    const char *key; /* EDIT_ARG: the first character of the key */
    int depth;       /* EDIT_ARG: 1 for a key of the arguments themselves */
} Edit;

typedef struct {
    const char *end;
    unsigned char odd_string;      /* whether a string ends with a backslash, which Perfetto misreads, or has a surrogate */
    unsigned char rewrites;        /* whether edits are noted */
    unsigned char arg_ids;         /* whether ids in arguments are edits too */
    unsigned char args_mode;       /* which arguments are kept, see enum args_mode */
    unsigned char moves_durations; /* whether durations change too */
    unsigned char wants_args;      /* whether values of arguments are noted */
    unsigned char in_args;         /* whether the reader is in arguments with noted values */
    unsigned char noted_args;      /* a bit for each enum arg_field that was seen in the last arguments */
    const char *args_at[ARG_FIELDS]; /* where their values begin */
    int edit_count;
    Edit edits[MOST_EDITS];
    Known known;
} Reader;

INLINE int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

INLINE const char *skip_space(const Reader *r, const char *p)
{
    /* Fast path for the usual case: no space, or one. */
    if ((unsigned char)*p > ' ' || !is_space(*p) || (unsigned char)*++p > ' ' || !is_space(*p))
        return p;
#if defined(__SSE2__)
    while (r->end - p >= 16) {
        __m128i some = _mm_loadu_si128((const __m128i *)(const void *)p);
        __m128i space = _mm_or_si128(_mm_cmpeq_epi8(some, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(some, _mm_set1_epi8('\n')));
        space = _mm_or_si128(space, _mm_cmpeq_epi8(some, _mm_set1_epi8('\t')));
        space = _mm_or_si128(space, _mm_cmpeq_epi8(some, _mm_set1_epi8('\r')));
        unsigned other = ~(unsigned)_mm_movemask_epi8(space) & 0xFFFF;
        if (other)
            return p + __builtin_ctz(other);
        p += 16;
    }
#endif
    while (is_space(*p))
        p++;
    return p;
}

INLINE int is_digit(char c)
{
    return (unsigned char)(c - '0') < 10;
}

/* Returns the count of the digits at p, at most 16, and their value in `number`. */
INLINE int read_digits(const Reader *r, const char *p, uint64_t *number)
{
    uint64_t found = 0;
    int count = 0;
#if defined(__SSE2__)
    if (r->end - p >= 16) {
        __m128i some = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(const void *)p), _mm_set1_epi8('0'));
        __m128i digits = _mm_cmpeq_epi8(_mm_min_epu8(some, _mm_set1_epi8(9)), some);
        count = __builtin_ctz(~(unsigned)_mm_movemask_epi8(digits));
        uint64_t low = 0, high = 0;
        _mm_storel_epi64((__m128i *)(void *)&low, some);
        _mm_storel_epi64((__m128i *)(void *)&high, _mm_srli_si128(some, 8));
        if (count == 0)
            return 0;
        /* The first digit is the lowest byte. Two neighbours become one, three times. */
        low <<= count < 8 ? 64 - 8 * count : 0;
        low = low * 2561 >> 8 & 0x00FF00FF00FF00FF;
        low = low * 6553601 >> 16 & 0x0000FFFF0000FFFF;
        low = low * 42949672960001 >> 32;
        if (count > 8) {
            static const uint64_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
            high <<= count < 16 ? 128 - 8 * count : 0;
            high = high * 2561 >> 8 & 0x00FF00FF00FF00FF;
            high = high * 6553601 >> 16 & 0x0000FFFF0000FFFF;
            high = high * 42949672960001 >> 32;
            low = low * powers[count - 8] + high;
        }
        *number = low;
        return count;
    }
#endif
    while (count < 16 && is_digit(p[count]))
        found = found * 10 + (uint64_t)(p[count++] - '0');
    *number = found;
    return count;
}

INLINE int is_hex(char c)
{
    return is_digit(c) || (unsigned char)((c | 32) - 'a') < 6;
}

#if defined(__SSE2__)
/* Returns a bit for each of 16 characters that needs attention in a string: quotes, backslashes and control characters. */
INLINE unsigned string_stops(const char *p)
{
    __m128i some = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i stop = _mm_or_si128(_mm_cmpeq_epi8(some, _mm_set1_epi8('"')), _mm_cmpeq_epi8(some, _mm_set1_epi8('\\')));
    stop = _mm_or_si128(stop, _mm_cmpeq_epi8(_mm_min_epu8(some, _mm_set1_epi8(31)), some));
    return (unsigned)_mm_movemask_epi8(stop);
}
#endif

/* p is behind the opening quote; returns the place of the closing one. */
static const char *find_quote(Reader *r, const char *p)
{
    for (;;) {
#if defined(__SSE2__)
        while (r->end - p >= 16) {
            unsigned mask = string_stops(p);
            if (mask) {
                p += __builtin_ctz(mask);
                break;
            }
            p += 16;
        }
#endif
        while (*p != '"' && *p != '\\' && (unsigned char)*p >= 32)
            p++;
        if (*p == '"')
            return p;
        if (*p != '\\')
            return NULL;
        switch (p[1]) {
        case 'u':
            for (int i = 2; i < 6; i++)
                if (!is_hex(p[i]))
                    return NULL;
            r->odd_string |= (p[2] | 32) == 'd' && p[3] > '7';
            p += 6;
            break;
        case '\\':
            r->odd_string |= p[2] == '"';
            p += 2;
            break;
        case '"': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
            p += 2;
            break;
        default:
            return NULL;
        }
    }
}

/* p is at the opening quote; returns the place of the closing one. */
INLINE const char *find_string_end(Reader *r, const char *p)
{
#if defined(__SSE2__)
    unsigned mask = 0;
    if (r->end - p > 16 && (mask = string_stops(p + 1)) != 0 && p[1 + __builtin_ctz(mask)] == '"')
        return p + 1 + __builtin_ctz(mask);
#endif
    return find_quote(r, p + 1);
}

INLINE const char *skip_digits(const char *p)
{
    while (is_digit(*p))
        p++;
    return p;
}

INLINE const char *skip_number(const char *p)
{
    const char *from = p;
    p += *p == '-';
    const char *whole = p;
    p = skip_digits(p);
    if (p == whole || (*whole == '0' && p > whole + 1))
        return NULL;
    if (*p == '.') {
        const char *decimals = ++p;
        p = skip_digits(p);
        if (p == decimals)
            return NULL;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '+' || *p == '-';
        const char *digits = p;
        p = skip_digits(p);
        if (p == digits || p - digits > MOST_EXPONENT)
            return NULL;
    }
    return p - from > MOST_NUMBER ? NULL : p;
}

static const char *skip_scalar(Reader *r, const char *p)
{
    switch (*p) {
    case '"':
        p = find_string_end(r, p);
        return p == NULL ? NULL : p + 1;
    case 't':
        return strncmp(p, "true", 4) == 0 ? p + 4 : NULL;
    case 'f':
        return strncmp(p, "false", 5) == 0 ? p + 5 : NULL;
    case 'n':
        return strncmp(p, "null", 4) == 0 ? p + 4 : NULL;
    default:
        return skip_number(p);
    }
}

/* Notes the number behind a key of arguments that ties events together: see tracekit.merge.rewrite.events. Where only such
   arguments are kept, another value is noted as an empty span: of a key that stands twice, the last value counts. */
INLINE int note_arg_id(Reader *r, const char *key, const char *value, int depth)
{
    if (*key == 'c' ? memcmp(key, "correlation", 11) != 0 : (*key | 32) != 'e' || memcmp(key + 1, "xternal id", 10) != 0)
        return 1;
    uint64_t number = 0;
    const char *p = value, *most = value + (r->args_mode ? MAX_ID : MAX_ARG_ID);
    while (is_digit(*p) && p < most)
        number = number * 10 + (uint64_t)(*p++ - '0');
    if (p == value || is_digit(*p) || *p == '.' || *p == 'e' || *p == 'E') {
        if (!r->args_mode)
            return 1;
        p = value;
    }
    if (r->edit_count == MOST_EDITS)
        return 0;
    r->edits[r->edit_count++] = (Edit){EDIT_ARG, {value, p}, number, key, depth};
    return 1;
}

INLINE unsigned arg_field_of(const char *key, ptrdiff_t size)
{
#define IS(name, field) if (memcmp(key, name, sizeof name - 1) == 0) return field
    switch (size) {
    case 5: IS("bytes", ARG_BYTES); IS("Bytes", ARG_BYTES); break;
    case 6: IS("stream", ARG_STREAM); IS("device", ARG_DEVICE); break;
    case 9: IS("Device Id", ARG_DEVICE); break;
    case 11: IS("correlation", ARG_CORRELATION); break;
    case 18: IS("Process Group Name", ARG_GROUP); break;
    default: break;
    }
#undef IS
    return ARG_NONE;
}

/* Notes where the value of an argument begins. */
INLINE void note_arg(Reader *r, unsigned field, const char *value)
{
    r->noted_args |= (unsigned char)(1u << field);
    r->args_at[field] = value;
}

/* p is at the opening bracket of an object or array. */
static const char *skip_container(Reader *r, const char *p)
{
    uint64_t objects = 0; /* of the levels that are open, innermost last: whether it is an object */
    int depth = 0;
    enum where where;
    unsigned before = 0; /* number of the last known key */
    const KnownKey *expected = next_key(&r->known, before);
    const char *from;
    for (;;) {
        /* A value begins here. */
        if (*p == '{' || *p == '[') {
            int object = *p == '{';
            from = ++p;
            where = BEHIND_BRACE;
            int known = object && is_known_key(expected, p, r->end, where);
            if (!known && *(p = skip_space(r, p)) == (object ? '}' : ']')) {
                p++;
            } else {
                if (++depth > MOST_NESTED)
                    return NULL;
                objects = objects << 1 | (uint64_t)object;
                if (known)
                    goto known_key;
                if (!object)
                    continue;
                goto key;
            }
        } else {
            if (is_digit(*p))
                p = skip_number(p);
            else if (*p == '"')
                p = (p = find_string_end(r, p)) == NULL ? NULL : p + 1;
            else
                p = skip_scalar(r, p);
            if (p == NULL)
                return NULL;
        }
        for (;;) {
            /* A value has ended. */
            if (depth == 0)
                return p;
            from = p;
            where = BEHIND_VALUE;
            if ((objects & 1) && is_known_key(expected, p, r->end, where))
                goto known_key;
            p = skip_space(r, p);
            if (*p == ',')
                break;
            if (*p != (objects & 1 ? '}' : ']'))
                return NULL;
            p++;
            objects >>= 1;
            depth--;
        }
        p = skip_space(r, p + 1);
        if (!(objects & 1))
            continue;
    key:
        if (*p != '"')
            return NULL;
        {
            const char *quote = find_string_end(r, p);
            if (quote == NULL)
                return NULL;
            const char *key = p + 1;
            p = skip_space(r, quote + 1);
            if (*p != ':')
                return NULL;
            p = skip_space(r, p + 1);
            unsigned field = arg_field_of(key, quote - key);
            if (r->in_args && depth == 1) {
                if (field != ARG_NONE)
                    note_arg(r, field, p);
                r->odd_string |= memchr(key, '\\', (size_t)(quote - key)) != NULL; /* without its escapes, it may be one of the fields */
            }
            before = keep_arg_key(&r->known, before, from, key, quote, p, where, field);
            expected = next_key(&r->known, before);
            if (r->arg_ids && quote - key == 11 && !note_arg_id(r, key, p, depth))
                return NULL;
        }
        continue;
    known_key:
        p = skip_space(r, from + expected->size);
        if (r->arg_ids && expected->key_size == 11 && !note_arg_id(r, from + expected->key_at, p, depth))
            return NULL;
        if (expected->field && r->in_args && depth == 1)
            note_arg(r, expected->field, p);
        before = (unsigned)(expected - r->known.of_args);
        expected = next_key(&r->known, before);
    }
}

INLINE const char *skip_value(Reader *r, const char *p)
{
    if (*p == '"')
        return (p = find_string_end(r, p)) == NULL ? NULL : p + 1;
    return *p == '{' || *p == '[' ? skip_container(r, p) : skip_scalar(r, p);
}

/* Writes a JSON string without its escapes at `out`, which has room for it: from behind its first quote to the last one. Returns the
   end; NULL at a surrogate. */
static inline __attribute__((unused)) char *write_unescaped(char *out, const char *p, const char *quote)
{
    static const char names[] = "bfnrt", values[] = "\b\f\n\r\t";
    while (p < quote) {
        if (*p != '\\') {
            *out++ = *p++;
            continue;
        }
        const char *name = strchr(names, p[1]);
        if (p[1] != 'u') {
            *out++ = name == NULL ? p[1] : values[name - names];
            p += 2;
            continue;
        }
        unsigned code = 0;
        for (int i = 2; i < 6; i++)
            code = code << 4 | (unsigned)(is_digit(p[i]) ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
        if (code >= 0xD800 && code < 0xE000)
            return NULL;
        if (code < 0x80) {
            *out++ = (char)code;
        } else {
            if (code < 0x800) {
                *out++ = (char)(0xC0 | code >> 6);
            } else {
                *out++ = (char)(0xE0 | code >> 12);
                *out++ = (char)(0x80 | (code >> 6 & 63));
            }
            *out++ = (char)(0x80 | (code & 63));
        }
        p += 6;
    }
    return out;
}

#endif
