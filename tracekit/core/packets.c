/* Records as packets; see packets.h. */

#include <stdio.h>

#include "packets.h"

#define DEFINED_AT_ONCE 500
/* Fields of the old format: the mark of a slice that exists only for a flow event. */
#define FLOW_PLACE "\x32\x02\x30\x00"
/* The mark of an instant that is a slice of zero duration. */
#define NO_DURATION "\x32\x02\x18\x00"

/* Returns the fields of a record apart from the memory of records, which moves when it grows. */
static const char *copy_fields(Store *store, const PacketRecord *record, const char *fields)
{
    size_t size = RECORD_SIZE(record) - sizeof(PacketRecord);
    store->copy.size = 0;
    return reserve(&store->copy, size + 1) && append(&store->copy, fields, size) ? store->copy.data : NULL;
}

/* Begins and ends that become slices. */

typedef struct {
    PacketRecord record;
    char *fields;
} Half;

static int put_slice(Store *store, uint32_t track, const Half *begin, int64_t end, const PacketRecord *ending, const char *fields)
{
    PacketRecord record = begin->record;
    record.end = end;
    Stream *stream = &PACKET_TRACK(&store->tracks, track)->stream;
    size_t more = ending == NULL ? 0 : ending->rest_size;
    const char *name = begin->fields + record.category_size, *rest = name + record.name_size;
    if (more > UINT32_MAX - record.rest_size)
        return 0;
    char *joined = NULL;
    if (more) {
        joined = tracekit_realloc(NULL, more + record.rest_size);
        if (joined == NULL)
            return 0;
        memcpy(joined, rest, record.rest_size);
        memcpy(joined + record.rest_size, fields + ending->category_size + ending->name_size, more);
        record.rest_size += (uint32_t)more;
        rest = joined;
    }
    int done = put_packet_record(store, stream, &record, (const char *const[]){begin->fields, name, rest});
    free(joined);
    if (!done || end > record.start)
        return done;
    /* Slices between the two are inside of the slice, although all have the same time. */
    PacketRecord closing = {end, end, ending->order, 0, 0, 0, 0, END_HALF};
    return put_packet_record(store, stream, &closing, (const char *const[]){"", "", ""});
}

static int is_same_text(const char *a, size_t a_size, const char *b, size_t b_size)
{
    return a_size == 0 || (a_size == b_size && memcmp(a, b, a_size) == 0);
}

static int join_half(Store *store, uint32_t target, const PacketRecord *record, const char *fields)
{
    if (record->kind == BEGIN_HALF) {
        size_t size = RECORD_SIZE(record) - sizeof(PacketRecord);
        Half half = {*record, tracekit_realloc(NULL, size + 1)};
        if (half.fields == NULL || !append(&store->open, &half, sizeof half)) {
            free(half.fields);
            return 0;
        }
        memcpy(half.fields, fields, size);
        return 1;
    }
    Half *halves = (Half *)(void *)store->open.data;
    size_t count = store->open.size / sizeof(Half);
    for (size_t i = count; i-- > 0;) {
        const PacketRecord *begin = &halves[i].record;
        if (!is_same_text(fields, record->category_size, halves[i].fields, begin->category_size)
            || !is_same_text(fields + record->category_size, record->name_size, halves[i].fields + begin->category_size, begin->name_size))
            continue;
        if (!put_slice(store, target, &halves[i], record->start, record, fields))
            return 0;
        free(halves[i].fields);
        memmove(halves + i, halves + i + 1, (count - i - 1) * sizeof(Half));
        store->open.size -= sizeof(Half);
        return 1;
    }
    /* The end of a slice that began before the recording. */
    fields = copy_fields(store, record, fields);
    if (fields == NULL)
        return 0;
    PacketRecord instant = *record;
    instant.kind = INSTANT;
    const char *name = fields + record->category_size;
    return put_packet_record(store, &PACKET_TRACK(&store->tracks, target)->stream, &instant, (const char *const[]){fields, name, name + record->name_size});
}

void forget_halves(Store *store)
{
    const Half *halves = (const Half *)(void *)store->open.data;
    for (size_t i = 0; i < store->open.size / sizeof(Half); i++)
        free(halves[i].fields);
    store->open.size = 0;
}

static int join_halves(Store *store)
{
    if (store->at == PACKET_TRACKS(&store->halves)) {
        store->at = 0;
        store->stage = DEFINING;
        return 1;
    }
    PacketTrack *track = PACKET_TRACK(&store->halves, store->at);
    if (!store->merging && !begin_merge(store, &track->stream))
        return 0;
    for (;;) {
        PacketRecord record;
        const char *fields = next_packet_record(store, &record);
        if (fields == NULL) {
            if (store->merge.failed)
                return 0;
            while (store->open.size) {
                const Half *last = (const Half *)(void *)(store->open.data + store->open.size) - 1;
                if (!put_slice(store, track->target, last, NEVER_NS, NULL, NULL))
                    return 0;
                free(last->fields);
                store->open.size -= sizeof(Half);
            }
            end_merge(store);
            store->at++;
            return 1;
        }
        if (!join_half(store, track->target, &record, fields))
            return 0;
    }
}

/* Packets. */

static char *write_field(char *out, unsigned field, uint64_t number)
{
    return write_varint(write_varint(out, field << 3), number);
}

static char *write_block(char *out, unsigned field, const char *content, size_t size)
{
    out = write_varint(write_varint(out, field << 3 | 2), size);
    if (size)
        memcpy(out, content, size);
    return out + size;
}

/* Appends a packet of two parts. */
static int put_packet(Store *store, const char *content, size_t size, const char *more, size_t more_size)
{
    Buffer *buffer = &store->out;
    if (!reserve(buffer, size + more_size + 16))
        return 0;
    char *out = buffer->data + buffer->size;
    *out++ = 0x0A;
    out = write_varint(out, size + more_size);
    memcpy(out, content, size);
    memcpy(out + size, more, more_size);
    buffer->size = (size_t)(out + size + more_size - buffer->data);
    return 1;
}

/* Appends an event: its type (0: none) and its fields. */
static int put_event(Store *store, int64_t time, char type, const char *fields, size_t size, const char *more, size_t more_size)
{
    Buffer *buffer = &store->out;
    uint64_t passed = (uint64_t)(time - store->clock);
    size_t event = size + more_size + (type ? 2 : 0), content = 2 + varint_size(passed) + store->stamp_size + varint_size(event) + event;
    if (!reserve(buffer, content + 16))
        return 0;
    char *out = buffer->data + buffer->size;
    *out++ = 0x0A;
    out = write_varint(out, content);
    *out++ = 8 << 3;
    out = write_varint(out, passed);
    memcpy(out, store->stamp, 8);
    out += store->stamp_size;
    *out++ = 11 << 3 | 2;
    out = write_varint(out, event);
    if (type) {
        *out++ = 9 << 3;
        *out++ = type;
    }
    memcpy(out, fields, size);
    memcpy(out + size, more, more_size);
    buffer->size = (size_t)(out + size + more_size - buffer->data);
    store->clock = time;
    return 1;
}

static int define_texts(Store *store)
{
    static const unsigned char fields[TABLES] = {1, 2, 3, 29};
    char flags[16], *out = write_field(write_field(flags, 10, store->sequence), 13, 1);
    if (!put_packet(store, flags, (size_t)(out - flags), "", 0))
        return 0;
    for (int which = 0; which < TABLES; which++) {
        const TextTable *table = &store->tables[which];
        const Text *texts = (const Text *)(void *)table->texts.data;
        for (uint32_t first = 0; first < table->index.count; first += DEFINED_AT_ONCE) {
            uint32_t end = first + DEFINED_AT_ONCE < table->index.count ? first + DEFINED_AT_ONCE : table->index.count;
            Buffer entries = {0};
            int done = reserve(&entries, 32); /* the key and size of all entries go first */
            entries.size = 32;
            for (uint32_t i = first; done && i < end; i++) {
                size_t inner = 2 + varint_size(i + 1) + varint_size(texts[i].size) + texts[i].size;
                if (!(done = reserve(&entries, inner + 16)))
                    break;
                char *at = entries.data + entries.size;
                at = write_varint(write_varint(at, (unsigned)fields[which] << 3 | 2), inner);
                at = write_field(at, 1, i + 1);
                at = write_block(at, 2, table->bytes.data + texts[i].at, texts[i].size);
                entries.size = (size_t)(at - entries.data);
            }
            if (done) {
                char head[32];
                memcpy(head, store->stamp, 8);
                char *at = write_varint(write_varint(head + store->stamp_size, 12 << 3 | 2), entries.size - 32);
                done = put_packet(store, head, (size_t)(at - head), entries.data + 32, entries.size - 32);
            }
            free(entries.data);
            if (!done)
                return 0;
        }
    }
    store->stage = WRITING;
    return 1;
}

/* Appends the description of a track that no process describes. */
static int describe_track(Store *store, const PacketTrack *track)
{
    Buffer text = {0};
    size_t room = track->name_size + 128;
    if (!reserve(&text, 2 * room))
        return 0;
    char *out = text.data, *outer = text.data + room;
    out = write_field(out, 1, track->uuid);
    out = write_field(out, 5, track->parent);
    out = write_block(out, 2, store->names.data + track->name_at, track->name_size);
    if (track->unit == NULL) {
        out = write_field(out, 11, 3);
        out = write_field(out, 12, 1 << 22);
    } else {
        char counter[32], *end = counter;
        if (strcmp(track->unit, "bytes") == 0 || strcmp(track->unit, "ns") == 0)
            end = write_field(end, 3, *track->unit == 'b' ? 3 : 1);
        else if (*track->unit)
            end = write_block(end, 6, track->unit, strlen(track->unit));
        out = write_block(out, 8, counter, (size_t)(end - counter));
        out = write_field(out, 12, 1 << 21);
    }
    char *end = write_block(outer, 60, text.data, (size_t)(out - text.data));
    int done = put_packet(store, outer, (size_t)(end - outer), store->stamp, store->stamp_size);
    free(text.data);
    return done;
}

/* Sets the track of the events that follow, and the clock of the sequence to 0. */
static int begin_packets(Store *store, const PacketTrack *track)
{
    static const char clocks[] = "\x32\x0E\x0A\x04\x08\x06\x10\x00\x0A\x06\x08\x40\x10\x00\x18\x01";
    char defaults[32], event[16];
    char *end = write_field(event, 11, track->uuid);
    char *out = write_field(defaults, 58, 64);
    out = write_block(out, 11, event, (size_t)(end - event));
    char content[96];
    memcpy(content, clocks, sizeof clocks - 1);
    end = write_block(content + sizeof clocks - 1, 59, defaults, (size_t)(out - defaults));
    store->clock = 0;
    store->held_ns = store->instant_ns = -1;
    if (track->uuid >= FIRST_HASHED && !describe_track(store, track))
        return 0;
    return put_packet(store, content, (size_t)(end - content), store->stamp, store->stamp_size);
}

#define OPEN_ENDS(store) ((const int64_t *)(void *)((store)->open.data + (store)->open.size))

static int end_slices(Store *store, int64_t before)
{
    while (store->open.size && OPEN_ENDS(store)[-1] < before) {
        if (!put_event(store, OPEN_ENDS(store)[-1], 2, "", 0, "", 0))
            return 0;
        store->open.size -= sizeof(int64_t);
    }
    return 1;
}

/* Moves a slice to another track, because it overlaps the open slices of this one without nesting. */
static int put_aside(Store *store, const PacketRecord *record, const char *fields)
{
    PacketTrack *track = PACKET_TRACK(&store->tracks, store->at);
    if (track->lane < 0) {
        char text[32] = "lane";
        size_t size = 5 + (size_t)snprintf(text + 5, 26, "%llu", (unsigned long long)track->uuid);
        uint64_t hash = hash_part(HASH_BEGIN, text, size);
        int64_t lane = add_packet_track(&store->tracks, FIRST_HASHED | hash >> 1);
        if (lane < 0)
            return 0;
        track = PACKET_TRACK(&store->tracks, store->at);
        track->lane = lane;
        PacketTrack *added = PACKET_TRACK(&store->tracks, lane);
        added->parent = track->uuid >= FIRST_HASHED ? track->parent : track->uuid;
        if (track->uuid >= FIRST_HASHED) {
            added->name_at = track->name_at;
            added->name_size = track->name_size;
        } else if (!set_name(store, added, "overlap", 7)) {
            return 0;
        }
    }
    fields = copy_fields(store, record, fields);
    if (fields == NULL)
        return 0;
    const char *name = fields + record->category_size;
    return put_packet_record(store, &PACKET_TRACK(&store->tracks, track->lane)->stream, record, (const char *const[]){fields, name, name + record->name_size});
}

static int write_record(Store *store, const PacketRecord *record, const char *fields)
{
    static const char types[] = {[SLICE] = 1, [INSTANT] = 3, [BEGIN_HALF] = 1, [COUNTER] = 4};
    size_t title = (size_t)record->category_size + record->name_size;
    int is_flow = record->kind == FLOW || record->kind == NEXT_FLOW;
    if (is_flow && !is_first_start(store, record, fields))
        return 1;
    if (!end_slices(store, record->start + !(is_flow || record->start == store->held_ns)))
        return 0;
    if (record->kind == END_HALF) {
        if (store->open.size == 0 || OPEN_ENDS(store)[-1] != record->end)
            return 1;
        store->open.size -= sizeof(int64_t);
        return put_event(store, record->end, 2, "", 0, "", 0);
    }
    if (record->kind == SLICE && record->end == record->start) {
        store->instant_ns = record->start;
        return put_event(store, record->start, 3, NO_DURATION, 4, fields, title + record->rest_size);
    }
    if (record->kind == SLICE || record->kind == BEGIN_HALF) {
        if (store->open.size && record->end > OPEN_ENDS(store)[-1])
            return put_aside(store, record, fields);
        if (!append(&store->open, &record->end, sizeof record->end))
            return 0;
        if (record->end == record->start)
            store->held_ns = record->end;
    } else if (record->kind == INSTANT) {
        store->instant_ns = record->start;
    }
    int has_place = record->kind != FLOW || store->open.size || record->start == store->instant_ns;
    return (has_place || put_event(store, record->start, 1, fields, title, FLOW_PLACE, 4))
        && put_event(store, record->start, types[record->kind], fields, title + record->rest_size, "", 0)
        && (has_place || put_event(store, record->start, 2, FLOW_PLACE, 4, "", 0));
}

static int write_tracks(Store *store)
{
    if (store->at == PACKET_TRACKS(&store->tracks)) {
        store->stage = WRITTEN;
        return 1;
    }
    PacketTrack *track = PACKET_TRACK(&store->tracks, store->at);
    if (!store->merging && !(begin_merge(store, &track->stream) && begin_packets(store, track)))
        return 0;
    while (store->out.size < PIECE_BYTES) {
        PacketRecord record;
        const char *fields = next_packet_record(store, &record);
        if (fields == NULL) {
            if (store->merge.failed || !end_slices(store, NEVER_NS))
                return 0;
            store->open.size = 0;
            end_merge(store);
            store->at++;
            return 1;
        }
        if (!write_record(store, &record, fields))
            return 0;
    }
    return 1;
}

int write_packets(Store *store)
{
    store->out.size = 0;
    if (store->stage == TAKING)
        store->stage = PACKET_TRACKS(&store->tracks) ? JOINING : WRITTEN;
    while (store->out.size < PIECE_BYTES && store->stage != WRITTEN) {
        int done = store->stage == JOINING ? join_halves(store) : store->stage == DEFINING ? define_texts(store) : write_tracks(store);
        if (!done) {
            if (store->stage == JOINING)
                forget_halves(store);
            store->stage = WRITTEN;
            return 0;
        }
    }
    return 1;
}

void prepare_store(Store *store, uint32_t sequence, uint32_t max_texts, uint64_t memory_bytes, const char *folder)
{
    store->sequence = sequence;
    store->max_texts = max_texts;
    store->memory_bytes = memory_bytes;
    strcpy(store->scratch.folder, folder);
    char *out = write_field(store->stamp, 10, sequence);
    *out++ = 13 << 3;
    *out++ = 2;
    store->stamp_size = (unsigned)(out - store->stamp);
}

