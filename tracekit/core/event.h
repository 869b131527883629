/* Events of a trace as text: strict JSON, read from the first byte to the last, nothing copied.

   Every function takes a place in a text that ends with a NUL (as the content of a bytes object does) and returns the place
   behind what it read, or NULL where it does not understand it: then the caller gives the text back to Python. NUL is
   no part of any JSON, so that nothing reads on behind it; only where 16 bytes are looked at in one step is the end asked for.
   What is accepted here is accepted by msgspec too; what is not may still be. */

#ifndef TRACEKIT_EVENT_H
#define TRACEKIT_EVENT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline, unused))
#define MOST_NESTED 60      /* levels of objects and arrays in a value: one bit each */
#define MOST_EDITS 256      /* numbers of an event that may change */
#define MOST_EXPONENT 2     /* digits */
#define MOST_NUMBER 64      /* characters */
#define MOST_PLACE 99       /* characters between the keys pid, tid and ts; see tracekit.merge.plain */
#define MOST_KNOWN 96       /* characters of a known place */
#define KNOWN_PLACES 8
#define EXACT_US_NS 1000000000000000LL /* below 10^12 us; see tracekit.formats.time_columns */

enum field {
    F_PH = 1 << 0, F_CAT = 1 << 1, F_NAME = 1 << 2, F_PID = 1 << 3, F_TID = 1 << 4, F_TS = 1 << 5, F_DUR = 1 << 6,
    F_ID = 1 << 7, F_ID2 = 1 << 8, F_BIND_ID = 1 << 9, F_BP = 1 << 10, F_S = 1 << 11, F_SCOPE = 1 << 12,
    F_FLOW_IN = 1 << 13, F_FLOW_OUT = 1 << 14, F_TTS = 1 << 15, F_TDUR = 1 << 16, F_CNAME = 1 << 17, F_SF = 1 << 18,
    F_STACK = 1 << 19, F_ARGS = 1 << 20
};

enum edit_kind { EDIT_PID, EDIT_TID, EDIT_TS, EDIT_ID, EDIT_ARG };

typedef struct {
    const char *at, *end;
} Span;

typedef struct {
    enum edit_kind kind;
    Span span;
    uint64_t number;
} Edit;

/* How the numbers of a column of times are written: whether `parse_column_us` takes them. */
typedef struct {
    int64_t most_ns;
    unsigned char other, zero, four, dot; /* not three decimals; begins with 0; more than three; any decimals */
} Column;

/* What stood from a key pid to the value of ts, where pid and tid are numbers: the next event begins its place with the
   same text as one of the last few, mostly. */
typedef struct {
    char text[MOST_KNOWN];
    unsigned char size, pid_at, pid_end, tid_at, tid_end;
    int64_t track; /* -1: to be found */
} KnownPlace;

typedef struct {
    const char *end;
    uint64_t pid_quotes, id_quotes; /* how often pid" and "id" stand in the text */
    unsigned char escape_u, quoted_g; /* whether \u and "g" do */
    unsigned char edits_wanted, arg_ids;
    unsigned next_known;
    int edit_count;
    Edit edits[MOST_EDITS];
    KnownPlace known[KNOWN_PLACES];
} Reader;

typedef struct {
    uint32_t seen;
    char phase;
    unsigned char direct_id, in_order; /* id is a number of up to 9 digits; pid, tid and ts stand as `TextPatcher` wants them */
    Span name, pid, tid, args;
    int64_t ts_ns, dur_ns;
    Column dur; /* of this event alone */
    unsigned char dur_usable;
    KnownPlace *known; /* that it has */
} Event;

INLINE int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

INLINE const char *skip_space(const Reader *r, const char *p)
{
    /* Mostly there is none, or one. */
    if (!is_space(*p) || !is_space(*++p))
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

/* Returns how many digits stand here, at most 16, and their number. */
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
/* Returns which of 16 characters may not stand in a string as they are: a bit for each. */
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
            r->escape_u = 1;
            p += 6;
            break;
        case '\\':
            r->escape_u |= p[2] == 'u'; /* as a search for the two characters would find it */
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
    const char *quote;
#if defined(__SSE2__)
    unsigned mask = 0;
    if (r->end - p > 16 && (mask = string_stops(p + 1)) != 0 && p[1 + __builtin_ctz(mask)] == '"')
        quote = p + 1 + __builtin_ctz(mask);
    else
#endif
    if ((quote = find_quote(r, p + 1)) == NULL)
        return NULL;
    /* A string is never the first character of a text, so there are two characters before its content. */
    if (quote[-1] == 'd' && quote[-2] == 'i') {
        r->pid_quotes += quote[-3] == 'p';
        r->id_quotes += quote[-3] == '"';
    } else if (quote[-1] == 'g') {
        r->quoted_g |= quote[-2] == '"';
    }
    return quote;
}

INLINE const char *skip_number(const char *p)
{
    const char *from = p;
    p += *p == '-';
    if (!is_digit(*p))
        return NULL;
    if (*p == '0')
        p++;
    else
        while (is_digit(*p))
            p++;
    if (*p == '.') {
        if (!is_digit(*++p))
            return NULL;
        while (is_digit(*p))
            p++;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '+' || *p == '-';
        const char *digits = p;
        while (is_digit(*p))
            p++;
        if (p == digits || p - digits > MOST_EXPONENT)
            return NULL;
    }
    return p - from > MOST_NUMBER || is_digit(*p) ? NULL : p;
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

/* Notes the number behind a key of arguments that ties events together: see tracekit.merge.ids. */
INLINE int note_arg_id(Reader *r, const char *key, const char *value)
{
    if (*key == 'c' ? memcmp(key, "correlation", 11) != 0 : (*key | 32) != 'e' || memcmp(key + 1, "xternal id", 10) != 0)
        return 1;
    uint64_t number = 0;
    const char *p = value;
    while (is_digit(*p) && p - value < 10)
        number = number * 10 + (uint64_t)(*p++ - '0');
    if (p == value || is_digit(*p) || *p == '.' || *p == 'e' || *p == 'E')
        return 1;
    if (r->edit_count == MOST_EDITS)
        return 0;
    r->edits[r->edit_count++] = (Edit){EDIT_ARG, {value, p}, number};
    return 1;
}

/* p is at the opening bracket of an object or array. */
static const char *skip_container(Reader *r, const char *p)
{
    uint64_t objects = 0; /* of the levels that are open, innermost last: whether it is an object */
    int depth = 0;
    for (;;) {
        /* A value begins here. */
        if (*p == '{' || *p == '[') {
            int object = *p == '{';
            p = skip_space(r, p + 1);
            if (*p == (object ? '}' : ']')) {
                p++;
            } else {
                if (++depth > MOST_NESTED)
                    return NULL;
                objects = objects << 1 | (uint64_t)object;
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
            const char *from = p + 1;
            p = skip_space(r, quote + 1);
            if (*p != ':')
                return NULL;
            p = skip_space(r, p + 1);
            if (r->arg_ids && quote - from == 11 && !note_arg_id(r, from, p))
                return NULL;
        }
    }
}

static inline const char *skip_value(Reader *r, const char *p)
{
    return *p == '{' || *p == '[' ? skip_container(r, p) : skip_scalar(r, p);
}

/* Reads a number of microseconds as ns, more than three decimals rounded, halves away from zero: see `parse_us`. */
INLINE const char *read_time(const Reader *r, const char *p, int64_t *time_ns, Column *column)
{
    int negative = *p == '-';
    p += negative;
    const char *from = p;
    uint64_t ns = 0;
    p += read_digits(r, p, &ns);
    if (p == from || is_digit(*p) || (*from == '0' && p - from > 1))
        return NULL;
    ns *= 1000;
    int decimals = 0;
    if (*p == '.') {
        static const uint64_t scale[] = {100, 10, 1};
        const char *point = p++;
        while (is_digit(*p)) {
            if (p - point <= 3)
                ns += (uint64_t)(*p - '0') * scale[p - point - 1];
            else if (p - point == 4)
                ns += *p >= '5';
            p++;
        }
        if (p == point + 1)
            return NULL;
        decimals = p - point > 4 ? 4 : (int)(p - point - 1);
        column->dot = 1;
    }
    if (*p == 'e' || *p == 'E' || ns > INT64_MAX)
        return NULL;
    *time_ns = negative ? -(int64_t)ns : (int64_t)ns;
    column->other |= decimals != 3 || negative;
    column->four |= decimals == 4;
    column->zero |= *from == '0';
    if ((int64_t)ns > column->most_ns)
        column->most_ns = (int64_t)ns;
    return p;
}

INLINE void add_column(Column *column, const Column *more)
{
    column->other |= more->other;
    column->zero |= more->zero;
    column->four |= more->four;
    column->dot |= more->dot;
    if (more->most_ns > column->most_ns)
        column->most_ns = more->most_ns;
}

/* Tells whether `parse_column_us` would return these times. */
INLINE int column_is_usable(const Column *column)
{
    if (!column->other && !column->zero)
        return 1;
    return !column->four && (column->most_ns < EXACT_US_NS || !column->dot);
}

/* Reads a pid or tid: an integer, or a text without escapes. */
static const char *read_place(Reader *r, const char *p, Span *span, unsigned char *in_order)
{
    span->at = p;
    if (*p == '"') {
        const char *quote = find_string_end(r, p);
        if (quote == NULL || memchr(p, '\\', (size_t)(quote - p)) != NULL)
            return NULL;
        if (memchr(p, 't', (size_t)(quote - p)) != NULL)
            *in_order = 0;
        p = quote + 1;
    } else {
        p += *p == '-';
        const char *digits = p;
        while (is_digit(*p))
            p++;
        if (p == digits || p - digits > 18 || (*digits == '0' && p - digits > 1) || *p == '.' || *p == 'e' || *p == 'E')
            return NULL;
    }
    span->end = p;
    return p - span->at > MOST_PLACE ? NULL : p;
}

INLINE uint32_t field_of(const char *key, ptrdiff_t length)
{
#define IS(name, field) if (memcmp(key, name, sizeof name - 1) == 0) return field
    switch (length) {
    case 1: IS("s", F_S); break;
    case 2: IS("ph", F_PH); IS("ts", F_TS); IS("id", F_ID); IS("bp", F_BP); IS("sf", F_SF); break;
    case 3: IS("pid", F_PID); IS("tid", F_TID); IS("dur", F_DUR); IS("cat", F_CAT); IS("id2", F_ID2); IS("tts", F_TTS); break;
    case 4: IS("name", F_NAME); IS("args", F_ARGS); IS("tdur", F_TDUR); break;
    case 5: IS("scope", F_SCOPE); IS("cname", F_CNAME); IS("stack", F_STACK); break;
    case 7: IS("bind_id", F_BIND_ID); IS("flow_in", F_FLOW_IN); break;
    case 8: IS("flow_out", F_FLOW_OUT); break;
    default: break;
    }
#undef IS
    return 0;
}

INLINE int note_edit(Reader *r, enum edit_kind kind, const char *at, const char *end, uint64_t number)
{
    if (r->edit_count == MOST_EDITS)
        return 0;
    r->edits[r->edit_count++] = (Edit){kind, {at, end}, number};
    return 1;
}

/* p is at the quote of the key pid. */
INLINE KnownPlace *find_known(Reader *r, const char *p)
{
    for (unsigned i = 0; i < KNOWN_PLACES; i++) {
        KnownPlace *known = &r->known[(r->next_known - 1 - i) % KNOWN_PLACES];
        if (known->size && r->end - p >= known->size && memcmp(p, known->text, known->size) == 0)
            return known;
    }
    return NULL;
}

INLINE KnownPlace *keep_known(Reader *r, const char *from, const char *end, const Event *e)
{
    if (end - from > MOST_KNOWN || *e->pid.at == '"' || *e->tid.at == '"')
        return NULL;
    KnownPlace *known = &r->known[r->next_known++ % KNOWN_PLACES];
    memcpy(known->text, from, (size_t)(end - from));
    known->size = (unsigned char)(end - from);
    known->pid_at = (unsigned char)(e->pid.at - from);
    known->pid_end = (unsigned char)(e->pid.end - from);
    known->tid_at = (unsigned char)(e->tid.at - from);
    known->tid_end = (unsigned char)(e->tid.end - from);
    known->track = -1;
    return known;
}

/* Reads an event whose keys are those of the format, each once, with a phase of one letter. */
INLINE const char *read_event(Reader *r, const char *p, Event *e, Column *times)
{
    uint32_t last = 0;
    const char *place = NULL, *pid_key = NULL; /* behind the key pid or tid; the quote of pid */
    memset(e, 0, sizeof *e);
    e->in_order = 1;
    r->edit_count = 0;
    if (*p != '{')
        return NULL;
    p = skip_space(r, p + 1);
    for (;;) {
        if (*p != '"')
            return NULL;
        if (p[1] == 'p' && p[2] == 'i' && !(e->seen & (F_PID | F_TID | F_TS)) && (e->known = find_known(r, p)) != NULL) {
            e->seen |= F_PID | F_TID | F_TS;
            e->pid = (Span){p + e->known->pid_at, p + e->known->pid_end};
            e->tid = (Span){p + e->known->tid_at, p + e->known->tid_end};
            p += e->known->size;
            r->pid_quotes++;
            const char *time = p;
            p = read_time(r, p, &e->ts_ns, times);
            if (p == NULL || (r->edits_wanted && !(note_edit(r, EDIT_PID, e->pid.at, e->pid.end, 0)
                && note_edit(r, EDIT_TID, e->tid.at, e->tid.end, 0) && note_edit(r, EDIT_TS, time, p, 0))))
                return NULL;
            last = F_TS;
            goto behind_value;
        }
        const char *key = p + 1, *quote = find_string_end(r, p);
        if (quote == NULL)
            return NULL;
        uint32_t field = field_of(key, quote - key);
        if (field == 0 || e->seen & field)
            return NULL;
        e->seen |= field;
        p = skip_space(r, quote + 1);
        if (*p != ':')
            return NULL;
        p = skip_space(r, p + 1);
        const char *value = p;
        switch (field) {
        case F_PH:
            if (p[0] != '"' || p[1] <= 32 || p[1] == '"' || p[1] == '\\' || p[2] != '"')
                return NULL;
            e->phase = p[1];
            p += 3;
            break;
        case F_PID:
            p = read_place(r, p, &e->pid, &e->in_order);
            place = quote + 1;
            pid_key = key - 1;
            if (p == NULL || (r->edits_wanted && !note_edit(r, EDIT_PID, value, p, 0)))
                return NULL;
            break;
        case F_TID:
            p = read_place(r, p, &e->tid, &e->in_order);
            e->in_order &= last == F_PID && key - place <= MOST_PLACE;
            place = quote + 1;
            if (p == NULL || (r->edits_wanted && !note_edit(r, EDIT_TID, value, p, 0)))
                return NULL;
            break;
        case F_TS:
            p = read_time(r, p, &e->ts_ns, times);
            e->in_order &= last == F_TID && key - place <= MOST_PLACE;
            if (p == NULL || (r->edits_wanted && !note_edit(r, EDIT_TS, value, p, 0)))
                return NULL;
            if (e->in_order)
                e->known = keep_known(r, pid_key, value, e);
            break;
        case F_DUR:
            if (is_digit(*p)) {
                p = read_time(r, p, &e->dur_ns, &e->dur);
                if (p == NULL)
                    return NULL;
                e->dur_usable = 1;
            } else {
                p = skip_value(r, p);
            }
            break;
        case F_ID: {
            uint64_t number = 0;
            while (is_digit(*p) && p - value < 10)
                number = number * 10 + (uint64_t)(*p++ - '0');
            if (p > value && p - value < 10 && *p != '.' && *p != 'e' && *p != 'E' && (*value != '0' || p - value == 1)) {
                e->direct_id = 1;
                if (r->edits_wanted && !note_edit(r, EDIT_ID, value, p, number))
                    return NULL;
            } else {
                p = skip_value(r, value);
            }
            break;
        }
        default:
            p = skip_value(r, p);
            if (field == F_NAME)
                e->name = (Span){value, p};
            else if (field == F_ARGS)
                e->args = (Span){value, p};
        }
        if (p == NULL)
            return NULL;
        last = field;
    behind_value:
        p = skip_space(r, p);
        if (*p == '}')
            break;
        if (*p != ',')
            return NULL;
        p = skip_space(r, p + 1);
    }
    return p + 1;
}

/* Tells whether these arguments of a counter are numbers of ordinary size: see `PLAIN_COUNTER`. They were read before. */
INLINE int is_plain_counter(const Reader *r, const char *p)
{
    if (*p != '{')
        return 0;
    do {
        p = skip_space(r, p + 1);
        if (*p != '"')
            return 0;
        for (p++; *p != '"'; p++)
            if (*p == '\\')
                return 0;
        p = skip_space(r, skip_space(r, p + 1) + 1); /* the colon is there */
        p += *p == '-';
        const char *digits = p;
        while (is_digit(*p))
            p++;
        if (p == digits || p - digits > 18)
            return 0;
        if (*p == '.') {
            digits = ++p;
            while (is_digit(*p))
                p++;
            if (p - digits > 30)
                return 0;
        }
        while (*p == 'e' || *p == 'E' || *p == '+' || *p == '-' || is_digit(*p))
            p++;
        p = skip_space(r, p);
    } while (*p == ',');
    return *p == '}';
}

#endif
