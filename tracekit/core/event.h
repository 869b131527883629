/* Events of a trace: objects with the keys of the format. Read like all JSON; see reader.h. */

#ifndef TRACEKIT_EVENT_H
#define TRACEKIT_EVENT_H

#include "reader.h"

#define MAX_PLACE 99        /* characters of a pid or tid */

enum field {
    F_PH = 1 << 0, F_CAT = 1 << 1, F_NAME = 1 << 2, F_PID = 1 << 3, F_TID = 1 << 4, F_TS = 1 << 5, F_DUR = 1 << 6,
    F_ID = 1 << 7, F_ID2 = 1 << 8, F_BIND_ID = 1 << 9, F_BP = 1 << 10, F_S = 1 << 11, F_SCOPE = 1 << 12,
    F_FLOW_IN = 1 << 13, F_FLOW_OUT = 1 << 14, F_TTS = 1 << 15, F_TDUR = 1 << 16, F_CNAME = 1 << 17, F_SF = 1 << 18,
    F_STACK = 1 << 19, F_ARGS = 1 << 20
};

/* Kinds of ids: ID_DIRECT is a number of a flow that fits a namespace of tracekit.merge.plan.plan; others are numbers or strings. */
enum id_kind { ID_ODD, ID_DIRECT, ID_NUMBER, ID_STRING };
#define DIRECT_IDS 5000000000u

enum args_mode { KEEP_ARGS, KEEP_IDS, DROP_ARGS };
#define MAX_KEPT_IDS 3 /* correlation, External id and external id */

typedef struct {
    uint32_t seen;
    char phase;
    Span name, cat, pid, tid, args;
    int64_t ts_ns, dur_ns;
    const char *ts_at;
    Span id;                             /* from its key on */
    uint64_t id_number;
    unsigned char id_kind, bind_id_kind; /* enum id_kind */
    unsigned char kept_id_count;
    Edit kept_ids[MAX_KEPT_IDS];         /* ids of arguments that are otherwise left out */
    unsigned char ts_decimals, dur_decimals; /* 4 for more than three */
    unsigned char dur_usable;
    unsigned char odd; /* a field has a type that viewers do not expect */
    KnownPlace *known; /* the place of the event, if known */
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

/* Returns true if a text is a number that `raw_number` in tracekit.formats.trace_event accepts. */
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
static const char *read_place(Reader *r, const char *p, Span *span)
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
        p = quote + 1;
    } else {
        p += *p == '-';
        const char *digits = p;
        while (is_digit(*p))
            p++;
        /* Exclude -0, which is the same track as 0. */
        int odd_zero = *digits == '0' && (p - digits > 1 || digits != span->at);
        if (p == digits || p - digits > 18 || odd_zero || *p == '.' || *p == 'e' || *p == 'E')
            return NULL;
    }
    span->end = p;
    return p - span->at > MAX_PLACE ? NULL : p;
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

/* Reads an unsigned integer of up to MAX_ID digits, or a string. */
static const char *read_id(Reader *r, const char *p, uint64_t *number, unsigned char *kind)
{
    const char *value = p;
    *kind = ID_ODD;
    *number = 0;
    if (*p == '"') {
        p = find_string_end(r, p);
        *kind = ID_STRING;
        return p == NULL ? NULL : p + 1;
    }
    while (is_digit(*p) && p - value < MAX_ID)
        *number = *number * 10 + (uint64_t)(*p++ - '0');
    int odd_zero = *value == '0' && p - value > 1;
    if (p == value || odd_zero || is_digit(*p) || *p == '.' || *p == 'e' || *p == 'E')
        return skip_value(r, value);
    *kind = *number < DIRECT_IDS ? ID_DIRECT : ID_NUMBER;
    return p;
}

/* Returns the beginning of the text in `{"local": "..."}`, which was read before; NULL for any other value. */
static const char *find_local_id(const Reader *r, const char *p, const char *end)
{
    if (*p != '{' || strncmp(p = skip_space(r, p + 1), "\"local\"", 7) != 0 || *(p = skip_space(r, p + 7)) != ':'
        || *(p = skip_space(r, p + 1)) != '"')
        return NULL;
    const char *content = p + 1;
    for (p++; *p != '"'; p++)
        p += *p == '\\';
    p = skip_space(r, p + 1);
    return *p == '}' && p + 1 == end ? content : NULL;
}

INLINE int note_edit(Reader *r, enum edit_kind kind, const char *at, const char *end, uint64_t number)
{
    if (r->edit_count == MOST_EDITS)
        return 0;
    r->edits[r->edit_count++] = (Edit){kind, {at, end}, number, NULL, 0};
    return 1;
}

/* The merge pads the tids that it writes with spaces, which belong to them when it reads them again. */
INLINE const char *behind_spaces(const char *p)
{
    while (*p == ' ')
        p++;
    return p;
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
    const char *stop = behind_spaces(e->tid.end);
    place->tid_stop = (unsigned char)(stop - from);
    place->track = -1;
    place->new_size = 0;
    return place;
}

/* Reads arguments. Arguments without changing numbers mostly repeat those of the event before. */
INLINE const char *read_args(Reader *r, const char *p)
{
    Known *known = &r->known;
    if (known->same_size && stands_at(p, r->end, known->same_args, known->same_size, MOST_SAME))
        return p + known->same_size;
    const char *from = p;
    int edits = r->edit_count;
    p = skip_value(r, p);
    /* Keep only arguments without edits, noted values and odd strings: those need no work when they repeat. */
    if (p != NULL && *from == '{' && p - from <= MOST_SAME && edits == r->edit_count && !r->noted_args && !r->odd_string) {
        known->same_size = (size_t)(p - from);
        memcpy(known->same_args, from, known->same_size);
    }
    return p;
}

/* Replaces the edits of ids in arguments by one edit that leaves out all but some ids; `from` is behind the previous value. */
static int leave_out_args(Reader *r, Event *e, const char *from, const char *end, int first_edit)
{
    e->kept_id_count = 0;
    for (int i = first_edit; i < r->edit_count && r->args_mode == KEEP_IDS; i++) {
        if (r->edits[i].depth != 1)
            continue;
        int same = 0; /* as in Python, a key keeps its first place and its last value */
        while (same < e->kept_id_count && e->kept_ids[same].key[0] != r->edits[i].key[0])
            same++;
        e->kept_ids[same] = r->edits[i];
        e->kept_id_count += same == e->kept_id_count;
    }
    r->edit_count = first_edit;
    return note_edit(r, EDIT_ARGS, from, end, 0);
}

/* The position in an event, and the last key. */
typedef struct {
    enum where where;
    unsigned last;       /* number of the field before */
    const char *from;    /* the text before the key */
    const char *key;
    /* The text before the key pid, if tid and ts follow directly. */
    const char *pid_from;
    enum where pid_where;
    int in_order;
} Place;

/* Reads a key with the text before and after it; returns the beginning of its value. `number` is the field, 0 at the end. */
INLINE const char *read_event_key(Reader *r, const char *p, KnownKey *expected, Place *place, unsigned *number)
{
    KnownKey *known = &expected[place->last];
    place->from = p;
    if (is_known_key(known, p, r->end, place->where)) {
        *number = known->field;
        place->key = p + known->key_at;
        return skip_space(r, p + known->size);
    }
    p = skip_space(r, p);
    *number = 0;
    if (place->where == BEHIND_VALUE) {
        if (*p == '}')
            return p;
        if (*p != ',')
            return NULL;
        p = skip_space(r, p + 1);
    }
    if (*p != '"')
        return NULL;
    const char *key = place->key = p + 1, *quote = find_string_end(r, p);
    if (quote == NULL)
        return NULL;
    uint32_t field = field_of(key, quote - key);
    p = skip_space(r, quote + 1);
    if (field == 0 || *p != ':')
        return NULL;
    *number = NUMBER_OF(field);
    p = skip_space(r, p + 1);
    keep_key(known, place->from, key, quote, p, place->where, *number);
    return p;
}

/* Reads the time after a known place, with pid and tid. */
INLINE const char *read_known_place(Reader *r, Event *e, const char *from)
{
    const KnownPlace *known = e->known;
    const char *time = from + known->size, *p = read_time(r, time, &e->ts_ns, &e->ts_decimals);
    e->seen |= F_TID | F_TS;
    e->pid = (Span){from + known->pid_at, from + known->pid_end};
    e->tid = (Span){from + known->tid_at, from + known->tid_end};
    e->ts_at = time;
    if (p == NULL)
        return NULL;
    int noted = 1;
    if (known->new_size)
        noted = note_edit(r, EDIT_PLACE, from, time, 0);
    else if (r->rewrites)
        noted = note_edit(r, EDIT_PID, e->pid.at, e->pid.end, 0) && note_edit(r, EDIT_TID, e->tid.at, from + known->tid_stop, 0);
    return noted && (!r->rewrites || note_edit(r, EDIT_TS, time, p, 0)) ? p : NULL;
}

/* Reads the value of pid, tid or ts. For a pid, reads all three if the place is known. */
INLINE const char *read_place_field(Reader *r, Event *e, Place *place, const char *value, unsigned *number)
{
    Known *known = &r->known;
    const char *p;
    switch (*number) {
    case NUMBER_OF(F_PID):
        if (!(e->seen & (F_TID | F_TS)) && (e->known = find_place(known, place->from, r->end, place->where)) != NULL) {
            *number = NUMBER_OF(F_TS);
            return read_known_place(r, e, place->from);
        }
        p = read_place(r, value, &e->pid);
        place->pid_from = place->from;
        place->pid_where = place->where;
        return p == NULL || (r->rewrites && !note_edit(r, EDIT_PID, value, p, 0)) ? NULL : p;
    case NUMBER_OF(F_TID):
        p = read_place(r, value, &e->tid);
        place->in_order = place->last == NUMBER_OF(F_PID);
        return p == NULL || (r->rewrites && !note_edit(r, EDIT_TID, value, behind_spaces(p), 0)) ? NULL : p;
    default:
        e->ts_at = value;
        p = read_time(r, value, &e->ts_ns, &e->ts_decimals);
        if (p == NULL || (r->rewrites && !note_edit(r, EDIT_TS, value, p, 0)))
            return NULL;
        if (place->in_order && place->last == NUMBER_OF(F_TID))
            e->known = keep_place(known, place->pid_from, value, place->pid_where, e);
        return p;
    }
}

INLINE const char *read_duration(Reader *r, Event *e, const char *value)
{
    if (!is_digit(*value)) {
        e->odd = 1;
        return skip_value(r, value);
    }
    const char *p = read_time(r, value, &e->dur_ns, &e->dur_decimals);
    e->dur_usable = 1;
    const int changes = r->rewrites && (r->moves_durations || e->dur_decimals > 3);
    return p == NULL || (changes && !note_edit(r, EDIT_DUR, value, p, 0)) ? NULL : p;
}

INLINE const char *read_event_args(Reader *r, Event *e, const Place *place, const char *value)
{
    const int edits = r->edit_count;
    r->noted_args = 0;
    r->in_args = r->wants_args;
    const char *p = e->phase == 'C' ? skip_value(r, value) : read_args(r, value); /* counts differ each time */
    r->in_args = 0;
    e->args = (Span){value, p};
    e->odd |= *value != '{';
    if (p == NULL || !r->args_mode || e->phase == 'C' || e->phase == 'M')
        return p;
    e->odd |= e->phase == 0 || place->where == BEHIND_BRACE; /* the comma after it would have to be removed */
    return leave_out_args(r, e, place->from, p, edits) ? p : NULL;
}

/* Reads the value of id, id2 or bind_id. */
INLINE const char *read_id_field(Reader *r, Event *e, const Place *place, const char *value, unsigned number)
{
    uint64_t id = 0;
    const char *p;
    switch (number) {
    case NUMBER_OF(F_ID):
        p = read_id(r, value, &id, &e->id_kind);
        e->id_number = id;
        e->id = (Span){place->key - 1, p};
        return p == NULL || (r->rewrites && !note_edit(r, EDIT_ID, value, p, id)) ? NULL : p;
    case NUMBER_OF(F_BIND_ID):
        p = read_id(r, value, &id, &e->bind_id_kind);
        return p == NULL || (r->rewrites && !note_edit(r, EDIT_BIND_ID, value, p, id)) ? NULL : p;
    default:
        p = skip_value(r, value);
        if (p == NULL || !r->rewrites)
            return p;
        const char *local = find_local_id(r, value, p);
        e->id_kind = local == NULL ? ID_ODD : ID_STRING;
        return local != NULL && !note_edit(r, EDIT_LOCAL_ID, local, local, 0) ? NULL : p;
    }
}

/* Reads the value of a field, and notes the edits of the merge in it; `number` becomes the last field that was read. */
INLINE const char *read_field(Reader *r, Event *e, Place *place, const char *value, unsigned *number)
{
    switch (*number) {
    case NUMBER_OF(F_PH):
        if (value[0] != '"' || value[1] <= 32 || value[1] == '"' || value[1] == '\\' || value[2] != '"')
            return NULL;
        e->phase = value[1];
        return value + 3;
    case NUMBER_OF(F_PID): case NUMBER_OF(F_TID): case NUMBER_OF(F_TS):
        return read_place_field(r, e, place, value, number);
    case NUMBER_OF(F_DUR):
        return read_duration(r, e, value);
    case NUMBER_OF(F_ID): case NUMBER_OF(F_ID2): case NUMBER_OF(F_BIND_ID):
        return read_id_field(r, e, place, value, *number);
    case NUMBER_OF(F_ARGS):
        return read_event_args(r, e, place, value);
    case NUMBER_OF(F_NAME): case NUMBER_OF(F_CAT): {
        Span *text = *number == NUMBER_OF(F_NAME) ? &e->name : &e->cat;
        e->odd |= *value != '"';
        *text = (Span){value, skip_value(r, value)};
        return text->end;
    }
    case NUMBER_OF(F_S):
        if (r->wants_args) /* the event table has no scopes */
            break;
        if (!r->rewrites || strncmp(value, "\"g\"", 3) != 0)
            e->odd |= strncmp(value, "\"t\"", 3) != 0 && strncmp(value, "\"p\"", 3) != 0;
        else if (!note_edit(r, EDIT_SCOPE, value + 1, value + 2, 0))
            return NULL;
        break;
    case NUMBER_OF(F_SF):
        e->odd |= r->rewrites; /* its stack frame gets another id */
        break;
    case NUMBER_OF(F_BP):
        e->odd |= strncmp(value, "\"e\"", 3) != 0;
    }
    return skip_value(r, value);
}

/* Reads an event with the keys of the format, each at most once, and a phase of one letter.
   `values`: where to note the values of the fields that are seen, by their number (pid, tid and ts not always), or NULL. */
INLINE const char *read_event(Reader *r, const char *p, Event *e, Span *values)
{
    Known *known = &r->known;
    KnownKey *expected = known->of_events[0]; /* by the number of the field before */
    Place place = {.where = BEHIND_BRACE, .last = 0, .in_order = 0};
    /* Other members are valid only if their bit in `seen` is set. Clearing all of them takes as long as reading a key. */
    e->seen = 0;
    e->phase = 0;
    e->dur_usable = e->dur_decimals = e->odd = 0;
    e->name.at = e->args.at = NULL;
    e->known = NULL;
    r->edit_count = 0;
    if (*p++ != '{')
        return NULL;
    for (;;) {
        unsigned number;
        const char *value = read_event_key(r, p, expected, &place, &number);
        if (value == NULL)
            return NULL;
        if (number == 0)
            return value + 1;
        uint32_t bit = 1u << (number - 1);
        if (e->seen & bit)
            return NULL;
        e->seen |= bit;
        p = read_field(r, e, &place, value, &number);
        if (p == NULL)
            return NULL;
        if (bit == F_PH)
            expected = known->of_events[(unsigned char)e->phase % PHASE_GROUPS];
        if (values != NULL)
            values[number] = (Span){value, p};
        place.last = number;
        place.where = BEHIND_VALUE;
    }
}

/* Returns true if the arguments of a counter, read before, are numbers of ordinary size: see `PLAIN_COUNTER`. */
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
