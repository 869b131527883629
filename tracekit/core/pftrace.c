/* Events of a merged trace as packets of a native Perfetto trace: byte for byte the output of tracekit.merge.write.pftrace_events.
   Other events are returned to Python. The loop calls no Python code, so that the interpreter lock can be released. */

#include <errno.h>

#include "packets.h"
#include "scan.h"

#define MAX_DEPTH 32
#define NEXT_KEYS 1024

typedef struct {
    PyObject_HEAD
    Store store;
    Reader reader;
    Span values[FIELDS];        /* of the event that is read, by the numbers of the fields that were seen */
    Buffer fields, text, title; /* of the event that is read: its fields, a text without escapes, the name of a counter */
    Buffer marks;               /* by number of a key: the object that it was last in */
    uint32_t object;
    uint16_t next_key[NEXT_KEYS]; /* by key: the key that followed */
    uint64_t flow_offset;
    int64_t base_ns;
    int busy, failed;
} Encoder;

typedef struct {
    const char *name;
    size_t size;
} Name;

/* Texts. */

/* Reads a string, which was read before, without its escapes. Returns 0 where Python must read it, or without memory. */
static int read_text(Encoder *self, const char *p, Span *span, const char **behind)
{
    const char *quote = find_string_end(&self->reader, p++);
    *span = (Span){p, quote};
    *behind = quote + 1;
    const char *slash = memchr(p, '\\', (size_t)(quote - p));
    if (slash == NULL)
        return 1;
    self->text.size = 0;
    if (!reserve(&self->text, (size_t)(quote - p) + 1))
        return self->failed = 1, 0;
    *span = (Span){self->text.data, write_unescaped(self->text.data, p, quote)};
    return span->end != NULL;
}

/* Appends a text as its number in a table, or as it is. Returns NULL without memory. */
static char *write_text(Encoder *self, char *out, enum table table, unsigned number_field, unsigned text_field, Span span, int64_t *number)
{
    size_t size = (size_t)(span.end - span.at);
    const TextTable *known = &self->store.tables[table];
    const Text *last = known->last ? (const Text *)(void *)known->texts.data + (known->last - 1) : NULL;
    if (last != NULL && last->size == size && memcmp(known->bytes.data + last->at, span.at, size) == 0)
        *number = known->last;
    else
        *number = intern_text(&self->store, table, span.at, size);
    if (*number < 0)
        return self->failed = 1, NULL;
    if (*number)
        return write_varint(write_varint(out, number_field << 3), (uint64_t)*number);
    out = write_varint(write_varint(out, text_field << 3 | 2), size);
    memcpy(out, span.at, size);
    return out + size;
}

/* Appends a category or a name, if it is not empty. */
static char *write_title(Encoder *self, char *out, int is_name, Span text)
{
    int64_t number;
    if (text.at == text.end)
        return out;
    return is_name ? write_text(self, out, NAMES, 10, 23, text, &number) : write_text(self, out, CATEGORIES, 3, 22, text, &number);
}

/* Ends a message; the byte before it is reserved for its size. */
INLINE char *close_message(char *message, char *out)
{
    size_t size = (size_t)(out - message);
    size_t more = varint_size(size) - 1;
    if (more)
        memmove(message + more, message, size);
    write_varint(message - 1, size);
    return out + more;
}

/* Arguments. Every function returns NULL where Python must encode them, or without memory. */

static const char *write_value(Encoder *self, const char *p, char **out, int depth);

/* Reads the key before a value, with the colon. Most keys follow the same key as in earlier events. */
static const char *write_key(Encoder *self, const char *p, char **out, unsigned *before, uint32_t object, Span *name)
{
    TextTable *keys = &self->store.tables[KEYS];
    const Text *texts = (const Text *)(void *)keys->texts.data;
    unsigned expected = self->next_key[*before];
    int64_t number = 0;
    if (expected && texts[expected - 1].size < (size_t)(self->reader.end - p)) {
        size_t size = texts[expected - 1].size;
        const char *text = keys->bytes.data + texts[expected - 1].at;
        if (p[1 + size] == '"' && memcmp(p + 1, text, size) == 0) {
            number = expected;
            *name = (Span){p + 1, p + 1 + size};
            p += size + 2;
            *out = write_varint(write_varint(*out, 1 << 3), (uint64_t)number);
        }
    }
    if (number == 0) {
        if (!read_text(self, p, name, &p))
            return NULL;
        *out = write_text(self, *out, KEYS, 1, 10, *name, &number);
        if (*out == NULL)
            return NULL;
        /* Only a key without escapes: with an escape, the same bytes would be another key. */
        if (number < NEXT_KEYS && name->at != self->text.data)
            self->next_key[*before] = (uint16_t)number;
    }
    if (number) {
        /* A duplicate key counts once. */
        if (self->marks.size < ((size_t)number + 1) * sizeof(uint32_t)) {
            size_t size = ((size_t)number + 64) * sizeof(uint32_t);
            if (!reserve(&self->marks, size - self->marks.size))
                return self->failed = 1, NULL;
            memset(self->marks.data + self->marks.size, 0, size - self->marks.size);
            self->marks.size = size;
        }
        uint32_t *mark = (uint32_t *)(void *)self->marks.data + number;
        if (*mark == object)
            return NULL;
        *mark = object;
    }
    *before = number < NEXT_KEYS ? (unsigned)number : 0;
    return skip_space(&self->reader, skip_space(&self->reader, p) + 1);
}

static const char *write_json_number(Encoder *self, const char *p, char **out, unsigned integer_field, unsigned double_field)
{
    const char *from = p;
    uint64_t number = 0;
    int negative = *p == '-', digits;
    p += negative;
    digits = read_digits(&self->reader, p, &number);
    p += digits;
    for (; digits < 18 && is_digit(*p); digits++)
        number = number * 10 + (uint64_t)(*p++ - '0');
    if (is_digit(*p))
        return NULL;
    if (*p != '.' && *p != 'e' && *p != 'E') {
        *out = write_varint(*out, integer_field << 3);
        *out = write_varint(*out, negative ? 0 - number : number);
        return p;
    }
    /* A few decimals are exact as they are, with one division. The rest is for strtod, in a locale with a decimal point. */
    static const double powers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    double value;
    const char *point = p++;
    uint64_t decimals = 0;
    int more = *point == '.' ? read_digits(&self->reader, p, &decimals) : 16;
    p += more;
    if (digits + more <= 15 && *p != 'e' && *p != 'E') {
        value = ((double)number * powers[more] + (double)decimals) / powers[more];
        value = negative ? -value : value;
    } else {
        char *end;
        value = strtod(from, &end);
        p = skip_number(from);
        if (end != p || value - value != 0)
            return NULL;
    }
    *out = write_varint(*out, double_field << 3 | 1);
    memcpy(*out, &value, 8); /* as on all machines that have this core: little-endian */
    *out += 8;
    return p;
}

static const char *write_string(Encoder *self, const char *p, char **out)
{
    Span span;
    int64_t number;
    if (!read_text(self, p, &span, &p))
        return NULL;
    *out = write_text(self, *out, TEXTS, 17, 6, span, &number);
    return *out == NULL ? NULL : p;
}

static const char *write_item(Encoder *self, const char *p, char **out, int depth)
{
    /* Write null, [] and {} as text with a mark, because they have no value in an array; see `Arguments._item`. */
    const char *inner = *p == '[' || *p == '{' ? skip_space(&self->reader, p + 1) : p;
    int is_empty = inner != p && (*inner == ']' || *inner == '}');
    if (*p != 'n' && !is_empty)
        return write_value(self, p, out, depth);
    static const char texts[] = "null[]{}";
    const char *text = *p == 'n' ? texts : *p == '[' ? texts + 4 : texts + 6;
    int64_t number;
    *(*out)++ = 13 << 3;
    *(*out)++ = 1;
    *out = write_text(self, *out, TEXTS, 17, 6, (Span){text, text + (*p == 'n' ? 4 : 2)}, &number);
    return *out == NULL ? NULL : *p == 'n' ? p + 4 : inner + 1;
}

/* The arguments that identify the collective operation of an event; NULL for a missing one. */
typedef struct {
    Span group, ranks, number;
} Collective;

static void note_collective(Collective *found, Span name, Span value)
{
    size_t size = (size_t)(name.end - name.at);
    if (size == 18 && memcmp(name.at, "Process Group Name", size) == 0)
        found->group = value;
    else if (size == 19 && memcmp(name.at, "Process Group Ranks", size) == 0)
        found->ranks = value;
    else if (size == 3 && memcmp(name.at, "Seq", size) == 0)
        found->number = value;
}

/* Writes the entries of an object, each as a message of a field; `found` may be NULL. */
static const char *write_entries(Encoder *self, const char *p, char **out, unsigned field, int depth, Collective *found)
{
    unsigned before = 0;
    uint32_t object = ++self->object;
    for (p = skip_space(&self->reader, p + 1); *p != '}'; p = skip_space(&self->reader, p + (*p == ','))) {
        Span name;
        *out = write_varint(*out, field << 3 | 2);
        char *message = ++*out;
        const char *value = write_key(self, p, out, &before, object, &name);
        p = value == NULL ? NULL : write_value(self, value, out, depth);
        if (p == NULL)
            return NULL;
        if (found != NULL)
            note_collective(found, name, (Span){value, p});
        *out = close_message(message, *out);
        p = skip_space(&self->reader, p);
    }
    return p + 1;
}

/* Writes the items of an array that is not empty. */
static const char *write_items(Encoder *self, const char *p, char **out, int depth)
{
    for (p = skip_space(&self->reader, p + 1); *p != ']'; p = skip_space(&self->reader, p + (*p == ','))) {
        *(*out)++ = 12 << 3 | 2;
        char *message = ++*out;
        p = write_item(self, p, out, depth);
        if (p == NULL)
            return NULL;
        *out = close_message(message, *out);
        p = skip_space(&self->reader, p);
    }
    return p + 1;
}

static const char *write_value(Encoder *self, const char *p, char **out, int depth)
{
    const char *inner;
    switch (*p) {
    case '"':
        return write_string(self, p, out);
    case 't': case 'f':
        *(*out)++ = 2 << 3;
        *(*out)++ = *p == 't';
        return p + (*p == 't' ? 4 : 5);
    case 'n':
        return p + 4;
    case '{': case '[':
        inner = skip_space(&self->reader, p + 1);
        if (*inner == ']' || *inner == '}') {
            memcpy(*out, *p == '{' ? "\x42\x02\x08\x01" : "\x42\x02\x08\x02", 4);
            *out += 4;
            return inner + 1;
        }
        if (depth >= MAX_DEPTH)
            return NULL;
        return *p == '{' ? write_entries(self, p, out, 11, depth + 1, NULL) : write_items(self, p, out, depth + 1);
    default:
        return write_json_number(self, p, out, 4, 5);
    }
}

/* Returns true if a value is a string without escapes or a plain integer: its text is the one that Python's str returns. */
static int is_word(Span value)
{
    if (*value.at == '"')
        return memchr(value.at, '\\', (size_t)(value.end - value.at)) == NULL;
    return is_number_text(value.at, value.end);
}

/* Writes the arguments of an event, and a text that names its collective operation. */
static char *write_arguments(Encoder *self, const char *p, char *out)
{
    Collective found = {{NULL, NULL}, {NULL, NULL}, {NULL, NULL}};
    if (*p != '{' || write_entries(self, p, &out, 4, 0, &found) == NULL)
        return NULL;
    if (found.group.at == NULL || found.number.at == NULL)
        return out;
    *out++ = (char)0xAA;
    *out++ = 0x03;
    char *message = ++out;
    const Span words[] = {found.group, found.ranks, found.number};
    for (int i = 0; i < 3; i++) {
        if (i)
            *out++ = ' ';
        if (words[i].at == NULL)
            continue;
        if (!is_word(words[i]))
            return NULL;
        int quoted = *words[i].at == '"';
        size_t size = (size_t)(words[i].end - words[i].at) - 2 * (size_t)quoted;
        memcpy(out, words[i].at + quoted, size);
        out += size;
    }
    return close_message(message, out);
}

/* Writes fields that have no place in a native trace as an argument; see `_OTHER_FIELDS`. */
static char *write_other(Encoder *self, const Event *event, uint32_t wanted, char *out)
{
    static const struct {
        uint32_t field;
        const char *name;
    } others[] = {{F_ID, "id"}, {F_ID2, "id2"}, {F_SCOPE, "scope"}, {F_TTS, "tts"}, {F_TDUR, "tdur"}, {F_CNAME, "cname"}, {F_SF, "sf"}, {F_STACK, "stack"}};
    int64_t number;
    *out++ = 4 << 3 | 2;
    char *message = ++out;
    static const char title[] = "trace_event";
    out = write_text(self, out, KEYS, 1, 10, (Span){title, title + 11}, &number);
    for (size_t i = 0; out != NULL && i < sizeof others / sizeof *others; i++) {
        if (!(event->seen & wanted & others[i].field))
            continue;
        *out++ = 11 << 3 | 2;
        char *entry = ++out;
        out = write_text(self, out, KEYS, 1, 10, (Span){others[i].name, others[i].name + strlen(others[i].name)}, &number);
        if (out == NULL || write_value(self, self->values[NUMBER_OF(others[i].field)].at, &out, 1) == NULL)
            return NULL;
        out = close_message(entry, out);
    }
    return out == NULL ? NULL : close_message(message, out);
}

/* Events. Every function returns 0 where Python must do it, or without memory. */

static int read_number(Span span, uint64_t *number)
{
    *number = 0;
    if (span.end - span.at > 18)
        return 0;
    for (const char *p = span.at; p < span.end; p++) {
        if (!is_digit(*p))
            return 0;
        *number = *number * 10 + (uint64_t)(*p - '0');
    }
    return span.end > span.at;
}

/* Hashes JSON without the spaces between its tokens. */
static uint64_t hash_json(uint64_t hash, Span value)
{
    int quoted = 0;
    for (const char *p = value.at; p < value.end; p++) {
        if (!quoted && is_space(*p))
            continue;
        if (*p == '"')
            quoted = !quoted;
        hash = hash_part(hash, p, 1);
        if (quoted && *p == '\\')
            hash = hash_part(hash, ++p, 1);
    }
    return hash;
}

#define HASH_END(hash) (FIRST_HASHED | (hash) >> 1)

static uint64_t hash_number(uint64_t hash, uint64_t number)
{
    char digits[24];
    return hash_part(hash, digits, (size_t)(write_number(digits, number) - digits));
}

/* The track of an async event. */
static uint64_t async_uuid(const Encoder *self, const Event *event, uint64_t pid)
{
    static const uint32_t fields[] = {F_CAT, F_ID2, F_ID};
    uint64_t hash = hash_number(hash_part(HASH_BEGIN, "async", 6), self->flow_offset);
    hash = hash_number(hash_part(hash, "", 1), pid);
    for (int i = 0; i < 3; i++) {
        hash = hash_part(hash, "", 1);
        if (event->seen & fields[i])
            hash = hash_json(hash, self->values[NUMBER_OF(fields[i])]);
    }
    return HASH_END(hash);
}

/* Endings of series names, and their units; see `unit_of` in tracekit.merge.write.pftrace_events. */
static const char *const units[][2] = {{"bytes_per_s", "bytes/s"}, {"bytes", "bytes"}, {"percent", "%"}, {"ns", "ns"}, {"us", "us"},
    {"\xC2\xB5s", "\xC2\xB5s"}, {"ms", "ms"}, {"s", "s"}};
#define UNITS (sizeof units / sizeof *units)

static const char *unit_of(Span key)
{
    size_t size = (size_t)(key.end - key.at);
    for (size_t i = 0; i < UNITS; i++) {
        size_t ending = strlen(units[i][0]);
        if (size >= ending && memcmp(key.end - ending, units[i][0], ending) == 0 && (size == ending || key.end[-1 - (ptrdiff_t)ending] == '_'))
            return units[i][1];
    }
    return "";
}

/* Reads the values of a counter in a first turn, and keeps them in a second one: an event for Python must leave no values. */
static int keep_counter(Encoder *self, const Event *event, uint64_t pid, int64_t start)
{
    if (!(event->seen & F_ARGS) || *event->args.at != '{' || event->seen & F_ID || event->name.at == NULL || *event->name.at != '"')
        return 0;
    for (int turn = 0; turn < 2; turn++) {
        const char *p = skip_space(&self->reader, event->args.at + 1), *behind;
        Span name, key;
        self->title.size = 0;
        if (!read_text(self, event->name.at, &name, &behind) || !reserve(&self->title, (size_t)(event->args.end - event->args.at) + (size_t)(name.end - name.at) + 2))
            return 0;
        append(&self->title, name.at, (size_t)(name.end - name.at));
        append(&self->title, " ", 1);
        size_t name_size = self->title.size;
        while (*p != '}') {
            char value[16], *out = value;
            if (!read_text(self, p, &key, &p))
                return 0;
            p = skip_space(&self->reader, skip_space(&self->reader, p) + 1);
            self->title.size = name_size;
            append(&self->title, key.at, (size_t)(key.end - key.at));
            if (!(*p == '-' || is_digit(*p)) || (p = write_json_number(self, p, &out, 30, 44)) == NULL)
                return 0;
            if (turn) {
                uint64_t hash = hash_number(hash_part(HASH_BEGIN, "counter", 8), pid);
                hash = hash_part(hash_part(hash, "", 1), self->title.data, self->title.size);
                int64_t track = track_number(&self->store, HASH_END(hash), pid);
                Span shown = {self->title.data + name_size, self->title.data + self->title.size};
                const char *const fields[3] = {"", "", value};
                const size_t sizes[3] = {0, 0, (size_t)(out - value)};
                if (track < 0 || !name_counter(&self->store, (uint32_t)track, self->title.data, self->title.size, unit_of(shown))
                    || !keep_packet_record(&self->store, (uint32_t)track, COUNTER, start, start, fields, sizes, "", 0))
                    return self->failed = 1, 0;
            }
            p = skip_space(&self->reader, p);
            if (*p == ',')
                p = skip_space(&self->reader, p + 1);
        }
    }
    return 1;
}

/* Track, time and record kind of an event. */
typedef struct {
    enum kind kind;
    uint64_t pid, tid, uuid;
    int64_t track; /* -1: to be found by `uuid` */
    int64_t start, end;
    uint32_t other; /* fields that become the argument `trace_event` */
    int is_flow, is_async;
} Kept;

INLINE int is_value(const Encoder *self, const Event *event, uint32_t field, const char *text)
{
    return event->seen & field && strncmp(self->values[NUMBER_OF(field)].at, text, 3) == 0;
}

static int place_event(const Encoder *self, const Event *event, Kept *kept)
{
    const uint32_t places = F_PH | F_PID | F_TID | F_TS;
    *kept = (Kept){.track = event->known == NULL ? -1 : event->known->track};
    if ((event->seen & places) != places)
        return 0;
    if (kept->track < 0 || (event->phase != 'X' && event->phase != 's' && event->phase != 'f')) {
        if (!read_number(event->pid, &kept->pid) || !read_number(event->tid, &kept->tid) || kept->pid > UINT32_MAX || kept->tid > UINT32_MAX)
            return 0;
        kept->track = -1;
    }
    if (event->ts_ns < -self->base_ns || event->ts_ns >= LAST_NS - self->base_ns)
        return 0;
    kept->start = kept->end = self->base_ns + event->ts_ns;
    kept->uuid = kept->pid << 32 | kept->tid;
    kept->other = F_ID | F_ID2 | F_SCOPE | F_TTS | F_TDUR | F_CNAME | F_SF | F_STACK;
    switch (event->phase) {
    case 'X':
        kept->kind = SLICE;
        if (!(event->seen & F_DUR))
            return 1;
        kept->end = event->dur_ns > LAST_NS - kept->start ? LAST_NS : kept->start + event->dur_ns;
        return event->dur_usable;
    case 's': case 't': case 'f':
        kept->is_flow = 1;
        kept->kind = event->phase != 'f' || is_value(self, event, F_BP, "\"e\"") ? FLOW : NEXT_FLOW;
        return 1;
    case 'B': case 'E':
        kept->kind = event->phase == 'B' ? BEGIN_HALF : END_HALF;
        return 1;
    case 'b': case 'S': case 'e': case 'F': case 'n': case 'T': case 'p':
        kept->is_async = 1;
        kept->kind = event->phase == 'b' || event->phase == 'S' ? BEGIN_HALF : event->phase == 'e' || event->phase == 'F' ? END_HALF : INSTANT;
        kept->uuid = async_uuid(self, event, kept->pid);
        kept->other &= ~(uint32_t)(F_ID | F_ID2);
        return 1;
    case 'i': case 'I': case 'R':
        kept->kind = INSTANT;
        if (is_value(self, event, F_S, "\"p\""))
            kept->uuid = kept->pid << 32;
        return 1;
    case 'C':
        kept->kind = COUNTER;
        return 1;
    default:
        return 0;
    }
}

/* Makes room for a message, and restarts the numbers of objects before they overflow. */
static int prepare_fields(Encoder *self, size_t text_size)
{
    /* A message takes at most nine times the bytes of its JSON: items of one digit in nested arrays. */
    size_t room = 9 * text_size + 1024;
    self->fields.size = 0;
    if (self->object > UINT32_MAX / 2) {
        if (self->marks.size)
            memset(self->marks.data, 0, self->marks.size);
        self->object = 0;
    }
    if (room > UINT32_MAX / 2 || !reserve(&self->fields, room))
        return self->failed = room <= UINT32_MAX / 2, 0;
    return 1;
}

/* Writes category and name; `ends` is where each ends, `name` its text. */
static char *write_titles(Encoder *self, const Event *event, char *out, char *ends[2], Span *name)
{
    static const char empty[] = "";
    for (int i = 0; i < 2; i++) {
        uint32_t field = i ? F_NAME : F_CAT;
        const char *behind;
        *name = (Span){empty, empty};
        if (event->seen & field) {
            const char *value = self->values[NUMBER_OF(field)].at;
            if (*value != '"' || !read_text(self, value, name, &behind))
                return NULL;
        }
        out = ends[i] = write_title(self, out, i, *name);
        if (out == NULL)
            return NULL;
    }
    return out;
}

/* Copies the name of a track, because later steps overwrite it. */
static int keep_title(Encoder *self, Span *name)
{
    size_t size = (size_t)(name->end - name->at);
    self->title.size = 0;
    if (!reserve(&self->title, size + 1) || !append(&self->title, name->at, size))
        return self->failed = 1, 0;
    *name = (Span){self->title.data, self->title.data + size};
    return 1;
}

static char *write_flow(const Encoder *self, const Event *event, enum kind kind, char *out)
{
    uint64_t id;
    if (!(event->seen & F_ID) || !read_number(self->values[NUMBER_OF(F_ID)], &id))
        return NULL;
    *out++ = 6 << 3 | 2;
    char *message = ++out;
    *out++ = 2 << 3;
    *out++ = event->phase;
    *out++ = 6 << 3;
    out = write_varint(out, self->flow_offset + id);
    if (kind == FLOW && event->phase == 'f') {
        *out++ = 12 << 3;
        *out++ = 1;
    }
    return close_message(message, out);
}

/* Writes the flow that `bind_id` ties an event to. */
static char *write_bound_flow(const Encoder *self, const Event *event, char *out)
{
    uint64_t id;
    int in = event->seen & F_FLOW_IN ? *self->values[NUMBER_OF(F_FLOW_IN)].at : 'f';
    int from = event->seen & F_FLOW_OUT ? *self->values[NUMBER_OF(F_FLOW_OUT)].at : 'f';
    if ((in != 't' && in != 'f') || (from != 't' && from != 'f') || !read_number(self->values[NUMBER_OF(F_BIND_ID)], &id))
        return NULL;
    if (in == 'f' && from == 'f')
        return out;
    *out++ = 6 << 3 | 2;
    char *message = ++out;
    *out++ = 8 << 3;
    out = write_varint(out, self->flow_offset + id);
    *out++ = 13 << 3;
    *out++ = (char)((in == 't') + 2 * (from == 't'));
    return close_message(message, out);
}

static int keep_event(Encoder *self, Event *event, size_t text_size)
{
    Kept kept;
    if (!place_event(self, event, &kept))
        return 0;
    if (kept.kind == COUNTER)
        return keep_counter(self, event, kept.pid, kept.start);
    char *ends[2];
    Span name;
    if (!prepare_fields(self, text_size))
        return 0;
    char *out = write_titles(self, event, self->fields.data, ends, &name);
    if (out == NULL || (kept.is_async && name.at == self->text.data && !keep_title(self, &name)))
        return 0;
    if (kept.is_flow) {
        out = write_flow(self, event, kept.kind, out);
    } else {
        if (event->seen & F_ARGS)
            out = write_arguments(self, event->args.at, out);
        if (out != NULL && event->seen & kept.other)
            out = write_other(self, event, kept.other, out);
        if (out != NULL && event->seen & F_BIND_ID)
            out = write_bound_flow(self, event, out);
    }
    if (out == NULL)
        return 0;
    if (kept.track < 0) {
        kept.track = track_number(&self->store, kept.uuid, kept.pid);
        if (event->known != NULL && kept.uuid == (kept.pid << 32 | kept.tid))
            event->known->track = kept.track;
    }
    const char *const fields[3] = {self->fields.data, ends[0], ends[1]};
    const size_t sizes[3] = {(size_t)(ends[0] - self->fields.data), (size_t)(ends[1] - ends[0]), (size_t)(out - ends[1])};
    if (kept.track < 0 || !keep_packet_record(&self->store, (uint32_t)kept.track, kept.kind, kept.start, kept.end, fields, sizes, name.at, (size_t)(name.end - name.at)))
        return self->failed = 1, 0;
    return 1;
}

/* Keeps the events of a text; returns the first event that Python must read, and sets *odd_end to its end. */
static const char *encode_text(Encoder *self, const char *p, const char *end, const char **odd_end)
{
    Event event;
    self->reader.end = end;
    for (;;) {
        while (p < end && (is_space(*p) || *p == ','))
            p++;
        *odd_end = p;
        if (p == end)
            return p;
        const char *behind = read_event(&self->reader, p, &event, self->values);
        /* The reader stops at the NUL after the text; only events that end before it count. */
        if (behind == NULL || behind > end || !keep_event(self, &event, (size_t)(behind - p))) {
            *odd_end = *p == '{' && !self->failed ? find_object_end(p, end) : NULL;
            return p;
        }
        p = behind;
    }
}

static PyObject *fail(const Encoder *self)
{
    if (self->store.scratch.error == 0)
        return PyErr_NoMemory();
    errno = self->store.scratch.error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *Encoder_encode(PyObject *object, PyObject *args)
{
    Encoder *self = (Encoder *)object;
    PyObject *bytes;
    Py_ssize_t from, size;
    char *text;
    const char *odd, *odd_end;
    if (!PyArg_ParseTuple(args, "Sn", &bytes, &from) || PyBytes_AsStringAndSize(bytes, &text, &size) < 0)
        return NULL;
    if (from < 0 || from > size || self->store.stage != TAKING) {
        PyErr_SetString(PyExc_ValueError, "a place outside of the text, or the packets were written before");
        return NULL;
    }
    if (!enter(&self->busy))
        return NULL;
    self->failed = 0;
    Py_BEGIN_ALLOW_THREADS
    odd = encode_text(self, text + from, text + size, &odd_end);
    Py_END_ALLOW_THREADS
    self->busy = 0;
    if (self->failed)
        return fail(self);
    if (odd_end == NULL) {
        PyErr_SetString(PyExc_ValueError, "the text is no run of events");
        return NULL;
    }
    return Py_BuildValue("(nn)", (Py_ssize_t)(odd - text), (Py_ssize_t)(odd_end - text));
}

static PyObject *Encoder_intern(PyObject *object, PyObject *args)
{
    Encoder *self = (Encoder *)object;
    int table;
    const char *text;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "iy#", &table, &text, &size) || !enter(&self->busy))
        return NULL;
    enum table which = table == 1 ? CATEGORIES : table == 2 ? NAMES : table == 3 ? KEYS : TEXTS;
    int64_t number = size > UINT32_MAX / 4 ? 0 : intern_text(&self->store, which, text, (size_t)size);
    self->busy = 0;
    return number < 0 ? PyErr_NoMemory() : PyLong_FromLongLong(number);
}

static int add_record(Encoder *self, int kind, uint64_t uuid, uint64_t pid, int64_t start, int64_t end, const Span given[3])
{
    Span texts[3] = {given[0], given[1], given[2]};
    int64_t track = track_number(&self->store, uuid, pid);
    if (track < 0)
        return 0;
    if (kind == COUNTER) {
        const char *unit = "";
        for (size_t i = 0; i < UNITS; i++)
            if (strcmp(units[i][1], given[0].at) == 0)
                unit = units[i][1];
        if (!name_counter(&self->store, (uint32_t)track, given[1].at, (size_t)(given[1].end - given[1].at), unit))
            return 0;
        texts[0] = texts[1] = (Span){given[0].at, given[0].at};
    }
    size_t room = (size_t)(texts[0].end - texts[0].at) + (size_t)(texts[1].end - texts[1].at) + 64;
    self->fields.size = 0;
    if (!reserve(&self->fields, room))
        return 0;
    char *out = self->fields.data, *ends[2];
    for (int i = 0; i < 2; i++)
        if ((out = ends[i] = write_title(self, out, i, texts[i])) == NULL)
            return 0;
    const char *const fields[3] = {self->fields.data, ends[0], texts[2].at};
    const size_t sizes[3] = {(size_t)(ends[0] - self->fields.data), (size_t)(ends[1] - ends[0]), (size_t)(texts[2].end - texts[2].at)};
    return keep_packet_record(&self->store, (uint32_t)track, (enum kind)kind, start, end, fields, sizes, given[1].at, (size_t)(given[1].end - given[1].at));
}

static PyObject *Encoder_add(PyObject *object, PyObject *args)
{
    Encoder *self = (Encoder *)object;
    int kind;
    unsigned long long uuid, pid;
    long long start, end;
    const char *texts[3];
    Py_ssize_t sizes[3];
    if (!PyArg_ParseTuple(args, "iKKLLy#y#y#", &kind, &uuid, &pid, &start, &end, texts, sizes, texts + 1, sizes + 1, texts + 2, sizes + 2))
        return NULL;
    if (kind < SLICE || kind > COUNTER || start < 0 || end < start || end > LAST_NS || sizes[0] > INT32_MAX / 4 || sizes[1] > INT32_MAX / 4
        || sizes[2] > INT32_MAX / 4 || self->store.stage != TAKING) {
        PyErr_SetString(PyExc_ValueError, "a record that there cannot be");
        return NULL;
    }
    if (!enter(&self->busy))
        return NULL;
    Span spans[3];
    for (int i = 0; i < 3; i++)
        spans[i] = (Span){texts[i], texts[i] + sizes[i]};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = add_record(self, kind, uuid, pid, start, end, spans);
    Py_END_ALLOW_THREADS
    self->busy = 0;
    if (!done)
        return fail(self);
    Py_RETURN_NONE;
}

static PyObject *Encoder_packets(PyObject *object, PyObject *unused)
{
    (void)unused;
    Encoder *self = (Encoder *)object;
    int done;
    if (!enter(&self->busy))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = write_packets(&self->store);
    Py_END_ALLOW_THREADS
    PyObject *result = NULL;
    if (!done)
        result = fail(self);
    else if (self->store.stage == WRITTEN && self->store.out.size == 0)
        result = Py_NewRef(Py_None);
    else
        result = PyBytes_FromStringAndSize(self->store.out.data, (Py_ssize_t)self->store.out.size);
    self->busy = 0;
    return result;
}

static int Encoder_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Encoder *self = (Encoder *)object;
    unsigned int sequence, max_texts;
    long long base_ns;
    unsigned long long flow_offset, memory_bytes;
    char folder[MAX_FOLDER];
    if (kwargs != NULL || !PyArg_ParseTuple(args, "ILKIKO&", &sequence, &base_ns, &flow_offset, &max_texts, &memory_bytes, convert_folder, folder))
        return -1;
    if (sequence == 0 || base_ns < 0 || base_ns > LAST_NS || self->store.sequence) {
        PyErr_SetString(PyExc_ValueError, "a sequence or time that there cannot be");
        return -1;
    }
    self->base_ns = base_ns;
    self->flow_offset = flow_offset;
    prepare_store(&self->store, sequence, max_texts, memory_bytes, folder);
    return 0;
}

static void Encoder_dealloc(PyObject *object)
{
    Encoder *self = (Encoder *)object;
    free_store(&self->store);
    free(self->fields.data);
    free(self->text.data);
    free(self->title.data);
    free(self->marks.data);
    free_object(object);
}

static PyMethodDef encoder_methods[] = {
    {"encode", Encoder_encode, METH_VARARGS, "See _merge.pyi."},
    {"intern", Encoder_intern, METH_VARARGS, "See _merge.pyi."},
    {"add", Encoder_add, METH_VARARGS, "See _merge.pyi."},
    {"packets", Encoder_packets, METH_NOARGS, "See _merge.pyi."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot encoder_slots[] = {
    {Py_tp_init, (void *)Encoder_init},
    {Py_tp_dealloc, (void *)Encoder_dealloc},
    {Py_tp_methods, encoder_methods},
    {0, NULL},
};
PyType_Spec pftrace_encoder_spec = {"tracekit.core._merge.PftraceEncoder", sizeof(Encoder), 0, Py_TPFLAGS_DEFAULT, encoder_slots};
