/* Events of a trace: objects whose keys are those of the format. Read like all JSON; see reader.h. */

#ifndef TRACEKIT_EVENT_H
#define TRACEKIT_EVENT_H

#include "reader.h"

#define MOST_PLACE 99       /* characters between the keys pid, tid and ts; see tracekit.merge.plain */

enum field {
    F_PH = 1 << 0, F_CAT = 1 << 1, F_NAME = 1 << 2, F_PID = 1 << 3, F_TID = 1 << 4, F_TS = 1 << 5, F_DUR = 1 << 6,
    F_ID = 1 << 7, F_ID2 = 1 << 8, F_BIND_ID = 1 << 9, F_BP = 1 << 10, F_S = 1 << 11, F_SCOPE = 1 << 12,
    F_FLOW_IN = 1 << 13, F_FLOW_OUT = 1 << 14, F_TTS = 1 << 15, F_TDUR = 1 << 16, F_CNAME = 1 << 17, F_SF = 1 << 18,
    F_STACK = 1 << 19, F_ARGS = 1 << 20
};

typedef struct {
    uint32_t seen;
    char phase;
    unsigned char direct_id, in_order; /* id is a number of up to 9 digits; pid, tid and ts stand as `TextPatcher` wants them */
    Span name, pid, tid, args;
    int64_t ts_ns, dur_ns;
    unsigned char ts_decimals, dur_decimals; /* 4 for more than three */
    unsigned char dur_usable;
    unsigned char odd; /* a field has another type than viewers expect: see `is_usual` in tracekit.formats.event_fields */
    KnownPlace *known; /* that it has */
} Event;

/* Reads a number of microseconds as ns, more than three decimals rounded, halves away from zero: see `parse_us`. */
INLINE const char *read_time(const Reader *r, const char *p, int64_t *time_ns, unsigned char *decimals_read)
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
        if (is_digit(p[0]) && is_digit(p[1]) && is_digit(p[2]) && !is_digit(p[3])) {
            ns += (uint64_t)(p[0] - '0') * 100 + (uint64_t)(p[1] - '0') * 10 + (uint64_t)(p[2] - '0');
            p += 3;
        }
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
    }
    if (*p == 'e' || *p == 'E' || ns > INT64_MAX)
        return NULL;
    *time_ns = negative ? -(int64_t)ns : (int64_t)ns;
    *decimals_read = (unsigned char)decimals;
    return p;
}

/* Tells whether a text is a number as `raw_number` in tracekit.formats.event_fields takes it. */
INLINE int is_number_text(const char *p, const char *end)
{
    if (*p == '0')
        return end - p == 1;
    p += *p == '-';
    const char *digits = p;
    while (is_digit(*p))
        p++;
    return p == end && *digits != '0' && p > digits && p - digits <= 18;
}

/* Reads a pid or tid: an integer, or a text without escapes. The span of a number in a text is without its quotes. */
static const char *read_place(Reader *r, const char *p, Span *span, unsigned char *in_order)
{
    span->at = p;
    if (*p == '"') {
        const char *quote = find_string_end(r, p);
        if (quote == NULL || memchr(p, '\\', (size_t)(quote - p)) != NULL)
            return NULL;
        if (is_number_text(p + 1, quote)) {
            *span = (Span){p + 1, quote};
            return quote + 1;
        }
        if (memchr(p, 't', (size_t)(quote - p)) != NULL)
            *in_order = 0;
        p = quote + 1;
    } else {
        p += *p == '-';
        const char *digits = p;
        while (is_digit(*p))
            p++;
        /* Not -0, which is the same track as 0. */
        int odd_zero = *digits == '0' && (p - digits > 1 || digits != span->at);
        if (p == digits || p - digits > 18 || odd_zero || *p == '.' || *p == 'e' || *p == 'E')
            return NULL;
    }
    span->end = p;
    return p - span->at > MOST_PLACE ? NULL : p;
}

#define NUMBER_OF(field) (1 + __builtin_ctz(field))

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

INLINE KnownPlace *keep_place(Known *known, const char *from, const char *end, enum where where, const Event *e)
{
    if (end - from > MOST_PLACE_TEXT || *e->pid.end == '"' || *e->tid.end == '"' || *e->pid.at == '"' || *e->tid.at == '"')
        return NULL;
    known->last_place = known->next_place++ % KNOWN_PLACES;
    KnownPlace *place = &known->places[known->last_place];
    memcpy(place->text, from, (size_t)(end - from));
    place->size = (unsigned char)(end - from);
    place->where = (unsigned char)where;
    place->pid_at = (unsigned char)(e->pid.at - from);
    place->pid_end = (unsigned char)(e->pid.end - from);
    place->tid_at = (unsigned char)(e->tid.at - from);
    place->tid_end = (unsigned char)(e->tid.end - from);
    place->track = -1;
    return place;
}

/* Reads arguments, of which mostly the same stand again where they hold no number that changes. */
INLINE const char *read_args(Reader *r, const char *p)
{
    Known *known = &r->known;
    if (known->same_size && stands_at(p, r->end, known->same_args, known->same_size, MOST_SAME))
        return p + known->same_size;
    const char *from = p;
    uint64_t quotes = r->pid_quotes + r->id_quotes;
    int edits = r->edit_count;
    p = skip_value(r, p);
    /* Only those that count for nothing. */
    if (p != NULL && *from == '{' && p - from <= MOST_SAME && edits == r->edit_count && quotes == r->pid_quotes + r->id_quotes
        && !r->escape_u && !r->quoted_g) {
        known->same_size = (size_t)(p - from);
        memcpy(known->same_args, from, known->same_size);
    }
    return p;
}

/* Reads an event whose keys are those of the format, each once, with a phase of one letter. */
INLINE const char *read_event(Reader *r, const char *p, Event *e)
{
    Known *known = &r->known;
    KnownKey *expected = known->of_events[0]; /* by the number of the field before */
    unsigned last = 0;
    const char *place = NULL, *pid_from = NULL; /* behind the key pid or tid; what stands before pid */
    enum where where = BEHIND_BRACE, pid_where = NOWHERE;
    /* The rest is read only where `seen` says so. To clear all of it takes as long as to read a key. */
    e->seen = 0;
    e->phase = 0;
    e->direct_id = e->dur_usable = e->dur_decimals = e->odd = 0;
    e->in_order = 1;
    e->name.at = e->args.at = NULL;
    e->known = NULL;
    r->edit_count = 0;
    if (*p != '{')
        return NULL;
    p++;
    for (;;) {
        /* Behind the brace, or behind a value. */
        const char *from = p, *key, *quote;
        unsigned number;
        if (is_known_key(&expected[last], p, r->end, where)) {
            number = expected[last].field;
            key = p + expected[last].key_at;
            quote = key + expected[last].key_size;
            p = skip_space(r, p + expected[last].size);
        } else {
            p = skip_space(r, p);
            if (where == BEHIND_VALUE) {
                if (*p == '}')
                    break;
                if (*p != ',')
                    return NULL;
                p = skip_space(r, p + 1);
            }
            if (*p != '"')
                return NULL;
            key = p + 1;
            uint64_t pids = r->pid_quotes, ids = r->id_quotes; /* counted below */
            quote = find_string_end(r, p);
            if (quote == NULL)
                return NULL;
            r->pid_quotes = pids;
            r->id_quotes = ids;
            uint32_t field = field_of(key, quote - key);
            if (field == 0)
                return NULL;
            number = NUMBER_OF(field);
            p = skip_space(r, quote + 1);
            if (*p != ':')
                return NULL;
            p = skip_space(r, p + 1);
            keep_key(&expected[last], from, key, quote, p, where, number);
        }
        uint32_t bit = 1u << (number - 1);
        if (e->seen & bit)
            return NULL;
        e->seen |= bit;
        const char *value = p;
        switch (number) {
        case NUMBER_OF(F_PH):
            if (p[0] != '"' || p[1] <= 32 || p[1] == '"' || p[1] == '\\' || p[2] != '"')
                return NULL;
            e->phase = p[1];
            expected = known->of_events[(unsigned char)e->phase % PHASE_GROUPS];
            p += 3;
            break;
        case NUMBER_OF(F_PID):
            r->pid_quotes++;
            if (!(e->seen & (F_TID | F_TS)) && (e->known = find_place(known, from, r->end, where)) != NULL) {
                e->seen |= F_TID | F_TS;
                e->pid = (Span){from + e->known->pid_at, from + e->known->pid_end};
                e->tid = (Span){from + e->known->tid_at, from + e->known->tid_end};
                const char *time = from + e->known->size;
                p = read_time(r, time, &e->ts_ns, &e->ts_decimals);
                if (p == NULL || (r->edits_wanted && !(note_edit(r, EDIT_PID, e->pid.at, e->pid.end, 0)
                    && note_edit(r, EDIT_TID, e->tid.at, e->tid.end, 0) && note_edit(r, EDIT_TS, time, p, 0))))
                    return NULL;
                number = NUMBER_OF(F_TS);
                break;
            }
            p = read_place(r, p, &e->pid, &e->in_order);
            place = quote + 1;
            pid_from = from;
            pid_where = where;
            if (p == NULL || (r->edits_wanted && !note_edit(r, EDIT_PID, value, p, 0)))
                return NULL;
            break;
        case NUMBER_OF(F_TID):
            p = read_place(r, p, &e->tid, &e->in_order);
            e->in_order &= last == NUMBER_OF(F_PID) && key - place <= MOST_PLACE;
            place = quote + 1;
            if (p == NULL || (r->edits_wanted && !note_edit(r, EDIT_TID, value, p, 0)))
                return NULL;
            break;
        case NUMBER_OF(F_TS):
            p = read_time(r, p, &e->ts_ns, &e->ts_decimals);
            e->in_order &= last == NUMBER_OF(F_TID) && key - place <= MOST_PLACE;
            if (p == NULL || (r->edits_wanted && !note_edit(r, EDIT_TS, value, p, 0)))
                return NULL;
            if (e->in_order)
                e->known = keep_place(known, pid_from, value, pid_where, e);
            break;
        case NUMBER_OF(F_DUR):
            if (is_digit(*p)) {
                p = read_time(r, p, &e->dur_ns, &e->dur_decimals);
                if (p == NULL)
                    return NULL;
                e->dur_usable = 1;
            } else {
                e->odd = 1;
                p = skip_value(r, p);
            }
            break;
        case NUMBER_OF(F_ID): {
            uint64_t id = 0;
            r->id_quotes++;
            while (is_digit(*p) && p - value < 10)
                id = id * 10 + (uint64_t)(*p++ - '0');
            if (p > value && p - value < 10 && *p != '.' && *p != 'e' && *p != 'E' && (*value != '0' || p - value == 1)) {
                e->direct_id = 1;
                if (r->edits_wanted && !note_edit(r, EDIT_ID, value, p, id))
                    return NULL;
            } else {
                p = skip_value(r, value);
            }
            break;
        }
        case NUMBER_OF(F_ARGS):
            p = e->phase == 'C' ? skip_value(r, p) : read_args(r, p); /* counts differ each time */
            e->args = (Span){value, p};
            e->odd |= *value != '{';
            break;
        case NUMBER_OF(F_NAME): case NUMBER_OF(F_CAT):
            e->odd |= *value != '"';
            p = skip_value(r, p);
            if (number == NUMBER_OF(F_NAME))
                e->name = (Span){value, p};
            break;
        case NUMBER_OF(F_S):
            e->odd |= strncmp(value, "\"t\"", 3) != 0 && strncmp(value, "\"p\"", 3) != 0;
            p = skip_value(r, p);
            break;
        case NUMBER_OF(F_BP):
            e->odd |= strncmp(value, "\"e\"", 3) != 0;
            p = skip_value(r, p);
            break;
        default:
            p = skip_value(r, p);
        }
        if (p == NULL)
            return NULL;
        last = number;
        where = BEHIND_VALUE;
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
