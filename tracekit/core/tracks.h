/* Tracks of an input by their pid and tid. */

#ifndef TRACEKIT_TRACKS_H
#define TRACEKIT_TRACKS_H

#include "event.h"
#include "growing.h"
#include "index.h"

/* Tracks by the text of their pid and tid. */
typedef struct {
    size_t key;
    uint32_t pid_size, tid_size;
    unsigned char new_size;   /* of the new pid; a tid always has TID_SIZE characters */
    unsigned char work;       /* the kinds of work seen there, as in merge/plan/titles.py */
    char new_pid[24], new_tid[24];
    int32_t log;              /* number of its log of slices */
} Track;

typedef struct {
    Buffer tracks, keys;
    Index index;             /* number of a track + 1 */
    uint32_t last;
} Table;

#define TRACK(table, number) ((Track *)(void *)(table)->tracks.data + (number))
#define TRACK_COUNT(table) ((uint32_t)((table)->tracks.size / sizeof(Track)))

void free_table(Table *table);
/* Forgets all tracks. */
void clear_table(Table *table);
/* Returns the number of a track, -1 for none. */
int64_t find_track(Table *table, Span pid, Span tid);
/* Returns the number of the new track, -1 without memory. */
int64_t add_track(Table *table, Span pid, Span tid);

/* Returns the number of the track of an event, -1 for none. */
INLINE int64_t track_of(Table *table, const Event *event)
{
    if (event->known == NULL)
        return find_track(table, event->pid, event->tid);
    if (event->known->track < 0)
        event->known->track = find_track(table, event->pid, event->tid);
    return event->known->track;
}

#endif
