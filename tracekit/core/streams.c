/* Interned texts, tracks, and the records of each in order, in bounded memory; see packets.h. */

#include <stddef.h>

#include "packets.h"

#define WINDOW_BYTES (1 << 16)
#define FIRST_RECORD 8 /* 0 is not a valid place of a record */
#define MAX_TEXT_BYTES 200
#define MAX_TABLE_BYTES (16 << 20)
#define MAX_AT_ONCE (1 << 26)
#define MAX_STARTS (1 << 19)

/* Interned texts. */

int64_t intern_text(Store *store, enum table which, const char *text, size_t size)
{
    TextTable *table = &store->tables[which];
    if (which == TEXTS && size > MAX_TEXT_BYTES)
        return 0;
    uint32_t hash = (uint32_t)hash_bytes(text, size), number;
    for (uint32_t slot = hash; (number = next_number(&table->index, hash, &slot)) != 0;) {
        const Text *known = (const Text *)(void *)table->texts.data + (number - 1);
        if (known->size == size && memcmp(table->bytes.data + known->at, text, size) == 0)
            return table->last = number;
    }
    if (table->index.count >= store->max_texts || table->bytes.size + size > MAX_TABLE_BYTES)
        return 0;
    Text added = {table->bytes.size, (uint32_t)size};
    if (!reserve_number(&table->index) || !reserve(&table->bytes, size + 1) || !append(&table->texts, &added, sizeof added))
        return -1;
    append(&table->bytes, text, size);
    add_number(&table->index, hash, table->index.count + 1);
    return table->index.count;
}

/* Tracks. */

static uint32_t hash_track(uint64_t uuid)
{
    uint64_t hash = uuid * 0x9E3779B97F4A7C15u;
    return (uint32_t)(hash >> 32);
}

int64_t add_packet_track(TrackMap *map, uint64_t uuid)
{
    PacketTrack track = {.uuid = uuid, .first_ns = NEVER_NS, .lane = -1};
    return append(&map->tracks, &track, sizeof track) ? (int64_t)PACKET_TRACKS(map) - 1 : -1;
}

static int64_t find_packet_track(TrackMap *map, uint64_t uuid)
{
    uint32_t hash = hash_track(uuid), found;
    for (uint32_t slot = hash; (found = next_number(&map->index, hash, &slot)) != 0;)
        if (PACKET_TRACK(map, found - 1)->uuid == uuid)
            return found - 1;
    int64_t number = reserve_number(&map->index) ? add_packet_track(map, uuid) : -1;
    if (number >= 0)
        add_number(&map->index, hash, (uint32_t)number + 1);
    return number;
}

int64_t track_number(Store *store, uint64_t uuid, uint64_t pid)
{
    uint32_t before = PACKET_TRACKS(&store->tracks);
    int64_t number = find_packet_track(&store->tracks, uuid);
    if (number >= before)
        PACKET_TRACK(&store->tracks, number)->parent = pid << 32;
    return number;
}

int set_name(Store *store, PacketTrack *track, const char *name, size_t size)
{
    track->name_at = store->names.size;
    track->name_size = size;
    return reserve(&store->names, size + 1) && append(&store->names, name, size);
}

int name_counter(Store *store, uint32_t track, const char *name, size_t size, const char *unit)
{
    PacketTrack *named = PACKET_TRACK(&store->tracks, track);
    if (named->unit != NULL)
        return 1;
    named->unit = unit;
    return set_name(store, named, name, size);
}

/* Starts of flows: the engine takes the first one of a flow, and counts further ones as errors. */

static FlowStart *find_start(const Store *store, uint64_t key)
{
    uint32_t number;
    for (uint32_t slot = (uint32_t)key; (number = next_number(&store->start_index, (uint32_t)key, &slot)) != 0;) {
        FlowStart *start = (FlowStart *)(void *)store->starts.data + (number - 1);
        if (start->key == key)
            return start;
    }
    return NULL;
}

static uint64_t key_of_flow(const PacketRecord *record, const char *const fields[3])
{
    uint64_t key = hash_bytes(fields[0], record->category_size) ^ hash_bytes(fields[2], record->rest_size) * 0x9E3779B97F4A7C15u;
    return (key ^ key >> 32) * 0xFF51AFD7ED558CCDu ^ hash_bytes(fields[1], record->name_size);
}

static int note_start(Store *store, const PacketRecord *record, const char *const fields[3])
{
    FlowStart added = {key_of_flow(record, fields), record->order, record->start}, *start = find_start(store, added.key);
    if (start != NULL && record->start < start->start)
        *start = added;
    if (start != NULL || store->start_index.count >= MAX_STARTS)
        return 1;
    if (!reserve_number(&store->start_index) || !append(&store->starts, &added, sizeof added))
        return 0;
    add_number(&store->start_index, (uint32_t)added.key, store->start_index.count + 1);
    return 1;
}

int keep_packet_record(Store *store, uint32_t number, enum kind kind, int64_t start, int64_t end, const char *const fields[3],
    const size_t sizes[3], const char *title, size_t title_size)
{
    PacketTrack *track = PACKET_TRACK(&store->tracks, number);
    PacketRecord record = {start, end, ++store->order, 0, (uint32_t)sizes[0], (uint32_t)sizes[1], (uint32_t)sizes[2], kind};
    if (kind != COUNTER && track->uuid >= FIRST_HASHED && start < track->first_ns) {
        /* An async track has the name of its first event. */
        track->first_ns = start;
        if (!set_name(store, track, title, title_size))
            return 0;
    }
    if (kind == BEGIN_HALF || kind == END_HALF) {
        int64_t half = find_packet_track(&store->halves, track->uuid);
        if (half < 0)
            return 0;
        PACKET_TRACK(&store->halves, half)->target = number;
        return put_packet_record(store, &PACKET_TRACK(&store->halves, half)->stream, &record, fields);
    }
    if (IS_START(&record, fields[2]) && !note_start(store, &record, fields))
        return 0;
    return put_packet_record(store, &track->stream, &record, fields);
}

/* Streams of records: linked lists in one block of memory, which is moved to a file when it is full. */

/* Whole slices come before the begins of their time, longer ones first, as in Perfetto's JSON importer. Instants and flow events
   of that time follow. */
INLINE int64_t place_of(const PacketRecord *record)
{
    switch (record->kind) {
    case SLICE:
        return record->start - record->end;
    case BEGIN_HALF: case END_HALF: case COUNTER:
        return 0;
    default:
        return 1;
    }
}

INLINE int is_before(const PacketRecord *a, const PacketRecord *b)
{
    if (a->start != b->start)
        return a->start < b->start;
    int64_t place = place_of(a), other = place_of(b);
    return place != other ? place < other : a->order < b->order;
}

INLINE PacketRecord record_at(const char *at)
{
    PacketRecord record;
    memcpy(&record, at, sizeof record);
    return record;
}

int is_first_start(const Store *store, const PacketRecord *record, const char *fields)
{
    const char *name = fields + record->category_size, *rest = name + record->name_size;
    if (!IS_START(record, rest))
        return 1;
    const FlowStart *first = find_start(store, key_of_flow(record, (const char *const[]){fields, name, rest}));
    return first == NULL || first->order == record->order;
}

static int compare_records(const void *a, const void *b)
{
    const PacketRecord *first = a, *second = b;
    return is_before(first, second) ? -1 : is_before(second, first);
}

/* Returns the heads of a stream's records in memory, in order, without their fields; `next` is the offset of each. */
static PacketRecord *sort_stream(const Store *store, const Stream *stream)
{
    if (stream->count > SIZE_MAX / sizeof(PacketRecord))
        return NULL;
    PacketRecord *index = tracekit_realloc(NULL, stream->count * sizeof(PacketRecord));
    size_t at = stream->first;
    for (size_t i = 0; index != NULL && i < stream->count; i++) {
        size_t here = at;
        index[i] = record_at(store->memory.data + at);
        at = index[i].next;
        index[i].next = here;
    }
    if (index != NULL && stream->unsorted)
        qsort(index, stream->count, sizeof *index, compare_records);
    return index;
}

static int write_stretch(Store *store, Buffer *stretch)
{
    uint64_t offset;
    int done = write_scratch(&store->scratch, stretch->data, stretch->size, &offset) == DONE;
    stretch->size = 0;
    return done;
}

static int spill_stream(Store *store, Stream *stream, Buffer *stretch)
{
    if (stream->first == 0)
        return 1;
    Run run = {store->scratch.size, 0};
    PacketRecord *index = sort_stream(store, stream);
    int done = index != NULL && reserve(&stream->runs, sizeof run);
    for (size_t i = 0; done && i < stream->count; i++) {
        size_t size = RECORD_SIZE(&index[i]);
        run.size += size;
        done = append(stretch, store->memory.data + index[i].next, size) && (stretch->size < PIECE_BYTES || write_stretch(store, stretch));
    }
    free(index);
    if (!done || !write_stretch(store, stretch))
        return 0;
    append(&stream->runs, &run, sizeof run);
    stream->first = stream->count = 0;
    return 1;
}

/* Moves all records to the scratch file. */
static int spill_store(Store *store)
{
    TrackMap *maps[] = {&store->tracks, &store->halves};
    Buffer stretch = {0};
    int done = 1;
    for (int i = 0; i < 2; i++)
        for (uint32_t j = 0; done && j < PACKET_TRACKS(maps[i]); j++)
            done = spill_stream(store, &PACKET_TRACK(maps[i], j)->stream, &stretch);
    free_buffer(&stretch);
    if (done)
        store->memory.size = 0;
    return done;
}

int put_packet_record(Store *store, Stream *stream, const PacketRecord *record, const char *const fields[3])
{
    size_t size = RECORD_SIZE(record), at = store->memory.size ? store->memory.size : FIRST_RECORD;
    /* Reserve all memory now: pages that are never written cost nothing. */
    size_t whole = store->memory.data == NULL && store->memory_bytes < MAX_AT_ONCE ? store->memory_bytes : 0;
    if (!reserve(&store->memory, whole + size + FIRST_RECORD))
        return 0;
    char *data = store->memory.data, *out = data + at;
    memcpy(out, record, sizeof *record);
    memset(out + offsetof(PacketRecord, next), 0, sizeof record->next);
    out += sizeof *record;
    const uint32_t sizes[3] = {record->category_size, record->name_size, record->rest_size};
    for (int i = 0; i < 3; i++) {
        memcpy(out, fields[i], sizes[i]);
        out += sizes[i];
    }
    store->memory.size = (size_t)(out - data);
    if (stream->first == 0) {
        stream->first = at;
        stream->unsorted = 0;
    } else {
        PacketRecord last = record_at(data + stream->last);
        stream->unsorted |= is_before(record, &last);
        memcpy(data + stream->last + offsetof(PacketRecord, next), &at, sizeof at);
    }
    stream->last = at;
    stream->count++;
    /* Records that are read must stay in memory. */
    const int stays = store->merging && store->merge.in_memory;
    return stays || store->memory.size <= store->memory_bytes || spill_store(store);
}

/* Streams read in order. */

/* Reads the next record of a run into its window. Returns 0 at its end, or on failure. */
static int fill_window(Store *store, Merge *merge, Source *source)
{
    for (;;) {
        size_t here = (size_t)(source->end - source->at), wanted = sizeof(PacketRecord);
        if (here >= wanted) {
            PacketRecord record = record_at(source->at);
            wanted = RECORD_SIZE(&record);
        }
        if (here >= wanted)
            return 1;
        if (source->left == 0)
            return 0;
        char *window = source->window;
        if (wanted > source->room) {
            source->room = wanted > WINDOW_BYTES ? wanted : WINDOW_BYTES;
            window = tracekit_realloc(NULL, source->room);
            if (window == NULL) {
                merge->failed = 1;
                return 0;
            }
        }
        if (here)
            memmove(window, source->at, here);
        if (window != source->window)
            free(source->window);
        source->at = source->window = window;
        source->end = window + here;
        size_t more = source->room - here < source->left ? source->room - here : source->left;
        if (read_scratch(&store->scratch, source->offset, source->end, more) != DONE) {
            merge->failed = 1;
            return 0;
        }
        source->end += more;
        source->offset += more;
        source->left -= more;
    }
}

int begin_merge(Store *store, Stream *stream)
{
    size_t runs = stream->runs.size / sizeof(Run);
    Merge merge = {.count = runs + 1, .in_memory = stream->count, .index = sort_stream(store, stream), .sources = tracekit_calloc(runs + 1, sizeof(Source))};
    if ((stream->count && merge.index == NULL) || merge.sources == NULL) {
        free(merge.index);
        free(merge.sources);
        return 0;
    }
    for (size_t i = 0; i < runs; i++) {
        const Run *run = (const Run *)(void *)stream->runs.data + i;
        merge.sources[i].offset = run->offset;
        merge.sources[i].left = run->size;
    }
    free(stream->runs.data);
    stream->runs = (Buffer){0};
    stream->first = stream->count = 0;
    store->merge = merge;
    store->merging = 1;
    return 1;
}

void end_merge(Store *store)
{
    Merge *merge = &store->merge;
    for (size_t i = 0; store->merging && i < merge->count; i++)
        free(merge->sources[i].window);
    if (store->merging) {
        free(merge->sources);
        free(merge->index);
    }
    store->merging = 0;
}

/* Returns the next record of a source; the last source is in memory. NULL at its end, or on failure. */
static const char *peek(Store *store, Merge *merge, size_t number)
{
    if (number == merge->count - 1)
        return merge->next < merge->in_memory ? store->memory.data + merge->index[merge->next].next : NULL;
    return fill_window(store, merge, &merge->sources[number]) ? merge->sources[number].at : NULL;
}

const char *next_packet_record(Store *store, PacketRecord *record)
{
    Merge *merge = &store->merge;
    const char *found = peek(store, merge, merge->current);
    if (found != NULL)
        *record = record_at(found);
    if (merge->count > 1 && (found == NULL || !merge->has_limit || !is_before(record, &merge->limit))) {
        /* Another source comes first: find it, and the first record of all others as its limit. */
        found = NULL;
        merge->has_limit = 1;
        merge->limit = (PacketRecord){.start = INT64_MAX, .end = INT64_MAX, .order = UINT64_MAX};
        for (size_t i = 0; i < merge->count && !merge->failed; i++) {
            const char *at = peek(store, merge, i);
            PacketRecord other = at == NULL ? merge->limit : record_at(at);
            if (at != NULL && (found == NULL || is_before(&other, record))) {
                if (found != NULL)
                    merge->limit = *record;
                *record = other;
                found = at;
                merge->current = i;
            } else if (is_before(&other, &merge->limit)) {
                merge->limit = other;
            }
        }
    }
    if (found == NULL || merge->failed)
        return NULL;
    if (merge->current == merge->count - 1)
        merge->next++;
    else
        merge->sources[merge->current].at += RECORD_SIZE(record);
    return found + sizeof *record;
}

static void free_map(TrackMap *map)
{
    for (uint32_t i = 0; i < PACKET_TRACKS(map); i++)
        free(PACKET_TRACK(map, i)->stream.runs.data);
    free(map->tracks.data);
    free(map->index.slots);
}

void free_store(Store *store)
{
    for (int i = 0; i < TABLES; i++) {
        free(store->tables[i].bytes.data);
        free(store->tables[i].texts.data);
        free(store->tables[i].index.slots);
    }
    if (store->stage == JOINING)
        forget_halves(store);
    end_merge(store);
    free_map(&store->tracks);
    free_map(&store->halves);
    free(store->starts.data);
    free(store->start_index.slots);
    free(store->memory.data);
    free(store->names.data);
    free(store->open.data);
    free(store->out.data);
    free(store->copy.data);
    close_scratch(&store->scratch);
}
