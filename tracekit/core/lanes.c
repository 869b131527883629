#include "lanes.h"

/* A slice or a flow, as a record that sorts in Perfetto's order: by start, X before B, the longer first, by the order of the output.
   A flow comes after all slices of its time.

   words: start, order, position of the tid, and
   - X: position of its duration << 8 | its size, 0 where it is not snapped
   - B: position of the tid of its E, UNCLOSED for none
   - flow: FLOW. */
#define BEGIN_BIT (UINT64_C(1) << 63)
#define FLOW UINT64_MAX
#define UNCLOSED (UINT64_MAX - 1)

#define NO_NODE UINT32_MAX

/* An open slice, linked to the one around it on its lane. */
typedef struct {
    int64_t start, end;
    uint64_t duration_at; /* as in a record of an X; 0 for B */
    uint32_t below, depth;
} Node;

/* The lanes of a track, as the leaves of a tree that finds in log n steps the next end, and the first lane where a slice fits. */
typedef struct {
    Buffer nodes;
    uint32_t free_node;
    uint32_t *tops;           /* innermost open node of each lane, NO_NODE for none */
    int64_t *next_ends;       /* of each part of the tree, the earliest end */
    int64_t *capacities;      /* the latest end that fits */
    uint32_t count, room;     /* lanes; a power of two */
} Lanes;

#define NODE(lanes, number) ((Node *)(void *)(lanes)->nodes.data + (number))

static void free_lanes(Lanes *lanes)
{
    free_buffer(&lanes->nodes);
    free(lanes->tops);
    free(lanes->next_ends);
    free(lanes->capacities);
}

static void update_lane(Lanes *lanes, uint32_t lane)
{
    int64_t next_end = INT64_MAX, capacity = INT64_MAX;
    if (lanes->tops[lane] != NO_NODE) {
        const Node *top = NODE(lanes, lanes->tops[lane]);
        next_end = top->end;
        capacity = top->depth < MAX_DEPTH ? top->end : INT64_MIN;
    }
    uint32_t at = lanes->room + lane;
    lanes->next_ends[at] = next_end;
    lanes->capacities[at] = capacity;
    while ((at /= 2) != 0) {
        int64_t left = lanes->next_ends[2 * at], right = lanes->next_ends[2 * at + 1];
        lanes->next_ends[at] = left < right ? left : right;
        left = lanes->capacities[2 * at];
        right = lanes->capacities[2 * at + 1];
        lanes->capacities[at] = left > right ? left : right;
    }
}

static enum outcome add_lane(Lanes *lanes)
{
    if (lanes->count == lanes->room) {
        uint32_t room = lanes->room ? lanes->room * 2 : 2;
        if (room > MAX_LANES / 2)
            return NO_MEMORY;
        uint32_t *tops = tracekit_realloc(lanes->tops, room * sizeof *tops);
        if (tops == NULL)
            return NO_MEMORY;
        lanes->tops = tops;
        int64_t *next_ends = tracekit_realloc(lanes->next_ends, 2 * (size_t)room * sizeof *next_ends);
        if (next_ends == NULL)
            return NO_MEMORY;
        lanes->next_ends = next_ends;
        int64_t *capacities = tracekit_realloc(lanes->capacities, 2 * (size_t)room * sizeof *capacities);
        if (capacities == NULL)
            return NO_MEMORY;
        lanes->capacities = capacities;
        lanes->room = room;
        for (uint32_t at = 0; at < 2 * room; at++) {
            next_ends[at] = INT64_MAX;
            capacities[at] = INT64_MIN;
        }
        for (uint32_t lane = 0; lane < lanes->count; lane++)
            update_lane(lanes, lane);
    }
    lanes->tops[lanes->count++] = NO_NODE;
    update_lane(lanes, lanes->count - 1);
    return DONE;
}

static void pop_node(Lanes *lanes, uint32_t lane)
{
    uint32_t number = lanes->tops[lane];
    Node *node = NODE(lanes, number);
    lanes->tops[lane] = node->below;
    node->below = lanes->free_node;
    lanes->free_node = number;
}

/* Closes all slices that have ended at a time. */
static void close_until(Lanes *lanes, int64_t time)
{
    while (lanes->next_ends[1] <= time) {
        uint32_t at = 1;
        while (at < lanes->room)
            at = 2 * at + (lanes->next_ends[2 * at] > time);
        uint32_t lane = at - lanes->room;
        while (lanes->tops[lane] != NO_NODE && NODE(lanes, lanes->tops[lane])->end <= time)
            pop_node(lanes, lane);
        update_lane(lanes, lane);
    }
}

/* Puts a slice on the first lane where it fits, a new one if need be; returns the lane. */
static enum outcome place_slice(Lanes *lanes, Node slice, uint32_t *lane)
{
    if (lanes->count == 0 || lanes->capacities[1] < slice.end) {
        enum outcome outcome = add_lane(lanes);
        if (outcome != DONE)
            return outcome;
    }
    uint32_t at = 1;
    while (at < lanes->room)
        at = 2 * at + (lanes->capacities[2 * at] < slice.end);
    *lane = at - lanes->room;
    slice.below = lanes->tops[*lane];
    slice.depth = slice.below == NO_NODE ? 1 : NODE(lanes, slice.below)->depth + 1;
    uint32_t number = lanes->free_node;
    if (number != NO_NODE) {
        lanes->free_node = NODE(lanes, number)->below;
        *NODE(lanes, number) = slice;
    } else {
        number = (uint32_t)(lanes->nodes.size / sizeof slice);
        if (number == NO_NODE || !append(&lanes->nodes, &slice, sizeof slice))
            return NO_MEMORY;
    }
    lanes->tops[*lane] = number;
    update_lane(lanes, *lane);
    return DONE;
}

/* ---- Which E ends which B. ---- */

typedef struct {
    int64_t start;
    uint64_t at, label;
} OpenBegin;

static Record slice_record(int64_t start, int64_t end, int begin, uint64_t at, uint64_t more)
{
    uint64_t order = (uint64_t)(INT64_MAX - end) | (begin ? BEGIN_BIT : 0);
    return (Record){{(uint64_t)start, order, at, more}};
}

static enum outcome blank_event(Sorter *patches, uint64_t at, uint64_t size)
{
    return add_record(patches, (Record){{at, PATCH_BLANK | size, 0, 0}});
}

/* An E ends the innermost open B of its name and category, as in Perfetto (slice_tracker.cc). */
static enum outcome pair_ends(Sorter *pairs, Sorter *slices, Sorter *patches, LaneCounts *counts)
{
    enum outcome outcome = sort_records(pairs);
    Buffer open = {NULL, 0, 0};
    const Record *record;
    while (outcome == DONE && (record = next_record(pairs)) != NULL) {
        int64_t time = (int64_t)record->words[0];
        uint64_t at = record->words[1], label = record->words[2], event = record->words[3];
        OpenBegin *begins = (OpenBegin *)(void *)open.data;
        size_t count = open.size / sizeof *begins, found = count;
        if (event == 0) {
            OpenBegin begin = {time, at, label};
            outcome = append(&open, &begin, sizeof begin) ? DONE : NO_MEMORY;
            continue;
        }
        while (found && !label_matches(begins[found - 1].label, label))
            found--;
        if (found == 0) {
            counts->lost_ends++;
            outcome = blank_event(patches, at - (event >> 32), event & UINT32_MAX);
            continue;
        }
        OpenBegin begin = begins[--found];
        memmove(begins + found, begins + found + 1, (count - found - 1) * sizeof *begins);
        open.size -= sizeof *begins;
        outcome = add_record(slices, slice_record(begin.start, time, 1, begin.at, at));
    }
    if (outcome == DONE)
        outcome = pairs->outcome;
    for (size_t i = 0; outcome == DONE && i < open.size / sizeof(OpenBegin); i++) {
        const OpenBegin *begin = (const OpenBegin *)(const void *)open.data + i;
        outcome = add_record(slices, slice_record(begin->start, OPEN_END, 1, begin->at, UNCLOSED));
    }
    free_buffer(&open);
    return outcome;
}

/* Reads the log: X and flows become records; so do B and E, once they are paired. */
static enum outcome read_log(LaneLog *log, ScratchFile *scratch, Sorter *slices, Sorter *pairs, Sorter *patches, LaneCounts *counts)
{
    LogReader reader;
    Entry entry;
    enum outcome outcome = DONE;
    open_log(&reader, log, scratch);
    while (outcome == DONE && next_entry(&reader, &entry)) {
        switch (entry.kind) {
        case ENTRY_SLICE:
            outcome = add_record(slices, slice_record(entry.time_ns, entry.time_ns + entry.duration_ns, 0, entry.at,
                                                      entry.dur_at << 8 | entry.dur_size));
            break;
        case ENTRY_FLOW:
            outcome = add_record(slices, (Record){{(uint64_t)entry.time_ns, UINT64_MAX, entry.at, FLOW}});
            break;
        case ENTRY_BEGIN:
            outcome = add_record(pairs, (Record){{(uint64_t)entry.time_ns, entry.at, entry.label, 0}});
            break;
        case ENTRY_END:
            outcome = add_record(pairs, (Record){{(uint64_t)entry.time_ns, entry.at, entry.label,
                                                  (entry.at - entry.event_at) << 32 | entry.event_size}});
        }
    }
    if (outcome == DONE)
        outcome = reader.outcome;
    close_log(&reader);
    return outcome == DONE ? pair_ends(pairs, slices, patches, counts) : outcome;
}

/* Shortens slices of the first lane that reach into a later one by little, if then nothing is in its way. */
static enum outcome snap_before(Lanes *lanes, int64_t start, int64_t end, int64_t snap_ns, Sorter *patches, LaneCounts *counts)
{
    if (lanes->count == 0)
        return DONE;
    uint32_t first = lanes->tops[0], keeps = first;
    for (; keeps != NO_NODE && NODE(lanes, keeps)->end < end; keeps = NODE(lanes, keeps)->below) {
        const Node *node = NODE(lanes, keeps);
        int64_t shortened = start - node->start;
        if (node->duration_at == 0 || node->end - start > snap_ns || shortened <= 0 || shortened > MAX_SNAPPED_NS)
            return DONE;
    }
    while (lanes->tops[0] != keeps) {
        const Node *node = NODE(lanes, lanes->tops[0]);
        uint64_t patch = PATCH_DURATION | (node->duration_at & 31) << 57 | (uint64_t)(start - node->start);
        enum outcome outcome = add_record(patches, (Record){{node->duration_at >> 8, patch, 0, 0}});
        if (outcome != DONE)
            return outcome;
        counts->snapped++;
        if (node->end - start > counts->largest_snap_ns)
            counts->largest_snap_ns = node->end - start;
        pop_node(lanes, 0);
    }
    if (first != keeps)
        update_lane(lanes, 0);
    return DONE;
}

static enum outcome sweep(LaneLog *log, uint32_t number, Sorter *slices, int64_t snap_ns, Sorter *patches, LaneCounts *counts)
{
    Lanes lanes = {.free_node = NO_NODE};
    int64_t time = INT64_MIN;
    uint32_t lane_at_time = 0; /* of the slice that begins last at this time, if none stays */
    int one_stays = 0;
    const Record *record;
    enum outcome outcome = DONE;
    while (outcome == DONE && (record = next_record(slices)) != NULL) {
        int64_t start = (int64_t)record->words[0];
        uint64_t order = record->words[1], at = record->words[2], more = record->words[3];
        uint32_t lane = 0;
        if (start != time) {
            time = start;
            lane_at_time = 0;
            one_stays = 0;
        }
        if (more == FLOW) {
            if (!one_stays)
                lane = lane_at_time;
        } else {
            int begin = (order & BEGIN_BIT) != 0;
            int64_t end = INT64_MAX - (int64_t)(order & ~BEGIN_BIT);
            if (lanes.count)
                close_until(&lanes, start);
            if (log->snaps && !begin)
                outcome = snap_before(&lanes, start, end, snap_ns, patches, counts);
            if (outcome == DONE)
                outcome = place_slice(&lanes, (Node){start, end, begin || (more & 255) == 0 ? 0 : more, 0, 0}, &lane);
            if (outcome != DONE)
                break;
            if (lane == 0) {
                one_stays = 1;
            } else {
                lane_at_time = lane;
                counts->moved += begin && more != UNCLOSED ? 2 : 1;
            }
        }
        if (lane == 0)
            continue;
        uint64_t patch = PATCH_LANE | (uint64_t)number << 31 | lane;
        outcome = add_record(patches, (Record){{at, patch, 0, 0}});
        if (outcome == DONE && more != FLOW && (order & BEGIN_BIT) && more != UNCLOSED)
            outcome = add_record(patches, (Record){{more, patch, 0, 0}});
    }
    if (outcome == DONE)
        outcome = slices->outcome;
    log->lanes = lanes.count;
    free_lanes(&lanes);
    return outcome;
}

enum outcome assign_lanes(LaneLog *log, uint32_t number, ScratchFile *scratch, size_t limit_bytes, int64_t snap_ns, Sorter *patches,
                          LaneCounts *counts)
{
    Sorter slices, pairs;
    open_sorter(&slices, scratch, limit_bytes);
    open_sorter(&pairs, scratch, log->pairs ? limit_bytes : 0);
    enum outcome outcome = NO_MEMORY;
    if (reserve_records(&slices, log->count))
        outcome = read_log(log, scratch, &slices, &pairs, patches, counts);
    close_sorter(&pairs);
    if (outcome == DONE)
        outcome = sort_records(&slices);
    if (outcome == DONE)
        outcome = sweep(log, number, &slices, snap_ns, patches, counts);
    close_sorter(&slices);
    return outcome;
}
