#include "tracks.h"

void free_table(Table *table)
{
    free(table->tracks.data);
    free(table->keys.data);
    free(table->index.slots);
}

static uint32_t hash_of(Span pid, Span tid)
{
    uint64_t hash = hash_part(HASH_BEGIN, pid.at, (size_t)(pid.end - pid.at));
    hash = hash_part(hash_part(hash, " ", 1), tid.at, (size_t)(tid.end - tid.at));
    return (uint32_t)(hash ^ hash >> 32);
}

static int is_track(const Table *table, uint32_t number, Span pid, Span tid)
{
    const Track *track = TRACK(table, number);
    const char *key = table->keys.data + track->key;
    return track->pid_size == (size_t)(pid.end - pid.at) && track->tid_size == (size_t)(tid.end - tid.at)
        && memcmp(key, pid.at, track->pid_size) == 0 && memcmp(key + track->pid_size, tid.at, track->tid_size) == 0;
}

int64_t find_track(Table *table, Span pid, Span tid)
{
    if (TRACK_COUNT(table) == 0)
        return -1;
    if (is_track(table, table->last, pid, tid))
        return table->last;
    uint32_t hash = hash_of(pid, tid), number;
    for (uint32_t slot = hash; (number = next_number(&table->index, hash, &slot)) != 0;)
        if (is_track(table, number - 1, pid, tid))
            return table->last = number - 1;
    return -1;
}

void clear_table(Table *table)
{
    table->tracks.size = table->keys.size = 0;
    table->last = 0;
    clear_index(&table->index);
}

int64_t add_track(Table *table, Span pid, Span tid)
{
    uint32_t number = TRACK_COUNT(table);
    Track track = {.key = table->keys.size, .pid_size = (uint32_t)(pid.end - pid.at), .tid_size = (uint32_t)(tid.end - tid.at), .log = -1};
    /* Make room first, so that a failure changes nothing. */
    if (!reserve_number(&table->index) || !reserve(&table->keys, (size_t)track.pid_size + track.tid_size)
        || !append(&table->tracks, &track, sizeof track))
        return -1;
    append(&table->keys, pid.at, track.pid_size);
    append(&table->keys, tid.at, track.tid_size);
    add_number(&table->index, hash_of(pid, tid), number + 1);
    return table->last = number;
}
