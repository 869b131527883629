#include "lane_log.h"

#include "numbers.h"

static uint32_t hash_of_text(const char *at, const char *end)
{
    if (end - at <= 2) /* none, or "" */
        return 0;
    uint32_t hash = 0x811c9dc5u;
    for (; at < end; at++)
        hash = (hash ^ (unsigned char)*at) * 0x01000193u;
    return hash ? hash : 1;
}

uint64_t label_of(const char *name, const char *name_end, const char *category, const char *category_end)
{
    return (uint64_t)hash_of_text(name, name_end) << 32 | hash_of_text(category, category_end);
}

/* Perfetto's rule: what the E does not say, it does not ask for. */
int label_matches(uint64_t begin, uint64_t end)
{
    uint32_t name = (uint32_t)(end >> 32), category = (uint32_t)end;
    return (name == 0 || name == (uint32_t)(begin >> 32)) && (category == 0 || category == (uint32_t)begin);
}

/* Follows the slices of a track in the order in which they come; sets `tangled` where it is not sure that they nest. */
static enum outcome follow_slice(LaneLog *log, int64_t start, int64_t end, uint64_t label)
{
    OpenSlice *open = (OpenSlice *)(void *)log->open.data;
    size_t count = log->open.size / sizeof *open;
    if (start < log->slice_ns) {
        log->tangled = 1;
        return DONE;
    }
    log->slice_ns = start;
    while (count && open[count - 1].end <= start)
        count--;
    log->open.size = count * sizeof *open;
    /* At the same start, an X comes before any B. The end of a B is looked at when it is known. */
    const OpenSlice *top = count ? &open[count - 1] : NULL;
    int overlaps = top != NULL && end != OPEN_END && (end > top->end || (top->end == OPEN_END && top->start == start));
    if (overlaps || count >= MAX_DEPTH) {
        log->tangled = 1;
        log->overlaps = overlaps && top->end != OPEN_END && top->start < start;
        return DONE;
    }
    OpenSlice slice = {start, end, label};
    return append(&log->open, &slice, sizeof slice) ? DONE : NO_MEMORY;
}

static enum outcome follow_end(LaneLog *log, int64_t time, uint64_t label)
{
    OpenSlice *open = (OpenSlice *)(void *)log->open.data;
    size_t count = log->open.size / sizeof *open;
    if (time < log->slice_ns) {
        log->tangled = 1;
        return DONE;
    }
    log->slice_ns = time;
    while (count && open[count - 1].end <= time)
        count--;
    if (count == 0 || open[count - 1].end != OPEN_END || !label_matches(open[count - 1].label, label)
        || (count > 1 && open[count - 2].end < time))
        log->tangled = 1;
    else
        log->open.size = (count - 1) * sizeof *open;
    return DONE;
}

enum outcome add_entry(LaneLog *log, const Entry *entry)
{
    if (!reserve(&log->bytes, MAX_ENTRY))
        return NO_MEMORY;
    if (!log->tangled) {
        enum outcome outcome = DONE;
        if (entry->kind == ENTRY_SLICE)
            outcome = follow_slice(log, entry->time_ns, entry->time_ns + entry->duration_ns, 0);
        else if (entry->kind == ENTRY_BEGIN)
            outcome = follow_slice(log, entry->time_ns, OPEN_END, entry->label);
        else if (entry->kind == ENTRY_END)
            outcome = follow_end(log, entry->time_ns, entry->label);
        if (outcome != DONE)
            return outcome;
    }
    log->pairs |= entry->kind == ENTRY_BEGIN || entry->kind == ENTRY_END;
    char *out = log->bytes.data + log->bytes.size;
    int64_t step = entry->time_ns - log->last_ns;
    uint64_t folded = (uint64_t)step << 1 ^ (uint64_t)(step >> 63);
    log->last_ns = entry->time_ns;
    *out++ = (char)((uint64_t)entry->kind | (folded & 31) << 2 | (folded >= 32 ? 128u : 0));
    if (folded >= 32)
        out = write_varint(out, folded >> 5);
    out = write_varint(out, entry->at - log->last_at);
    log->last_at = entry->at;
    if (entry->kind == ENTRY_SLICE) {
        out = write_varint(out, (uint64_t)entry->duration_ns);
        if (log->durations) {
            out = write_varint(out, entry->dur_size);
            int64_t by = (int64_t)(entry->dur_at - entry->at);
            if (entry->dur_size)
                out = write_varint(out, (uint64_t)by << 1 ^ (uint64_t)(by >> 63));
        }
    } else if (entry->kind != ENTRY_FLOW) {
        memcpy(out, &entry->label, sizeof entry->label);
        out += sizeof entry->label;
        if (entry->kind == ENTRY_END) {
            out = write_varint(out, entry->at - entry->event_at);
            out = write_varint(out, entry->event_size);
        }
    }
    log->bytes.size = (size_t)(out - log->bytes.data);
    log->count++;
    return DONE;
}

void end_log(LaneLog *log)
{
    /* A B that never ends must not lie in a slice that does. */
    const OpenSlice *open = (const OpenSlice *)(const void *)log->open.data;
    size_t count = log->open.size / sizeof *open;
    for (size_t i = 1; i < count; i++)
        if (open[i].end == OPEN_END && open[i - 1].end != OPEN_END)
            log->tangled = 1;
    free_buffer(&log->open);
}

enum outcome spill_log(LaneLog *log, ScratchFile *scratch)
{
    if (log->bytes.size == 0)
        return DONE;
    SpilledStretch stretch = {0, log->bytes.size};
    if (!reserve(&log->spilled, sizeof stretch))
        return NO_MEMORY;
    enum outcome outcome = write_scratch(scratch, log->bytes.data, log->bytes.size, &stretch.offset);
    if (outcome != DONE)
        return outcome;
    append(&log->spilled, &stretch, sizeof stretch);
    free_buffer(&log->bytes);
    return DONE;
}

void open_log(LogReader *reader, const LaneLog *log, ScratchFile *scratch)
{
    memset(reader, 0, sizeof *reader);
    reader->log = log;
    reader->scratch = scratch;
    reader->at = reader->end = NULL;
}

/* Goes on to the next stretch: a stretch in the file is whole entries. */
static int next_stretch(LogReader *reader)
{
    const LaneLog *log = reader->log;
    size_t count = log->spilled.size / sizeof(SpilledStretch);
    if (reader->stretch > count)
        return 0;
    if (reader->stretch == count) {
        reader->at = log->bytes.data;
        reader->end = reader->at + log->bytes.size;
    } else {
        const SpilledStretch *stretch = (const SpilledStretch *)(const void *)log->spilled.data + reader->stretch;
        reader->window.size = 0;
        if (!reserve(&reader->window, (size_t)stretch->size)) {
            reader->outcome = NO_MEMORY;
            return 0;
        }
        reader->outcome = read_scratch(reader->scratch, stretch->offset, reader->window.data, (size_t)stretch->size);
        if (reader->outcome != DONE)
            return 0;
        reader->at = reader->window.data;
        reader->end = reader->at + stretch->size;
    }
    reader->stretch++;
    return 1;
}

static uint64_t take_varint(LogReader *reader)
{
    uint64_t number = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char some = (unsigned char)*reader->at++;
        number |= (uint64_t)(some & 127) << shift;
        if (some < 128)
            return number;
    }
}

static int64_t unfolded(uint64_t number)
{
    return (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
}

int next_entry(LogReader *reader, Entry *entry)
{
    while (reader->at == reader->end)
        if (!next_stretch(reader))
            return 0;
    unsigned char first = (unsigned char)*reader->at++;
    uint64_t folded = first >> 2 & 31;
    if (first & 128)
        folded |= take_varint(reader) << 5;
    entry->dur_at = entry->dur_size = 0;
    entry->kind = (enum entry_kind)(first & 3);
    entry->time_ns = reader->last_ns += unfolded(folded);
    entry->at = reader->last_at += take_varint(reader);
    if (entry->kind == ENTRY_SLICE) {
        entry->duration_ns = (int64_t)take_varint(reader);
        if (reader->log->durations && (entry->dur_size = (uint32_t)take_varint(reader)) != 0)
            entry->dur_at = entry->at + (uint64_t)unfolded(take_varint(reader));
    } else if (entry->kind != ENTRY_FLOW) {
        memcpy(&entry->label, reader->at, sizeof entry->label);
        reader->at += sizeof entry->label;
        if (entry->kind == ENTRY_END) {
            entry->event_at = entry->at - take_varint(reader);
            entry->event_size = (uint32_t)take_varint(reader);
        }
    }
    return 1;
}

void close_log(LogReader *reader)
{
    free_buffer(&reader->window);
}

void free_log(LaneLog *log)
{
    free_buffer(&log->bytes);
    free_buffer(&log->spilled);
    free_buffer(&log->open);
    free_buffer(&log->tids);
}
