/* What both passes of the merge need: memory that grows, tracks by their names, objects that one thread uses at a time. */

#ifndef TRACEKIT_TRACKS_H
#define TRACEKIT_TRACKS_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include "event.h"
#include "memory.h"

#define MOST_TEXT INT32_MAX /* so that no count of anything in a run is larger */
#define CHECKSUM_MASK INT64_MAX
#define PLAIN_PHASES "XstfiIC" /* see tracekit.merge.plain */

/* Memory that grows. */
typedef struct {
    char *data;
    size_t size, room;
} Buffer;

INLINE int reserve(Buffer *buffer, size_t more)
{
    if (more <= buffer->room - buffer->size)
        return 1;
    if (more > (size_t)PTRDIFF_MAX / 4 - buffer->size)
        return 0;
    size_t room = (buffer->size + more) * 2;
    char *data = tracekit_realloc(buffer->data, room);
    if (data == NULL)
        return 0;
    buffer->data = data;
    buffer->room = room;
    return 1;
}

INLINE int append(Buffer *buffer, const void *data, size_t size)
{
    if (!reserve(buffer, size))
        return 0;
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
    return 1;
}

/* Tracks by their pid and tid as they are written. */
typedef struct {
    size_t key;
    uint32_t pid_size, tid_size;
    uint32_t rows;           /* Scanner: how many in this run */
    uint32_t at;             /* Scanner: where its next row goes */
    unsigned char told;      /* Scanner: whether Python knows it */
    unsigned char stays[2];  /* Patcher: whether its pid and tid are the same there */
    unsigned char new_sizes[2];
    char new_texts[2][24];   /* Patcher: its pid and tid in the merged trace */
    int32_t lanes;           /* Patcher: number of what some of its slices take, -1 for none */
} Track;

typedef struct {
    Buffer tracks, keys;
    uint32_t *slots;         /* number of a track + 1, 0 for none */
    uint32_t slot_count;     /* a power of two */
    uint32_t last;
} Table;

#define TRACK(table, number) ((Track *)(void *)(table)->tracks.data + (number))
#define TRACK_COUNT(table) ((uint32_t)((table)->tracks.size / sizeof(Track)))

INLINE void free_table(Table *table)
{
    free(table->tracks.data);
    free(table->keys.data);
    free(table->slots);
}

INLINE uint32_t hash_of(Span pid, Span tid)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *p = pid.at; p < pid.end; p++)
        hash = (hash ^ (unsigned char)*p) * 0x100000001b3u;
    hash = (hash ^ 256) * 0x100000001b3u;
    for (const char *p = tid.at; p < tid.end; p++)
        hash = (hash ^ (unsigned char)*p) * 0x100000001b3u;
    return (uint32_t)(hash ^ hash >> 32);
}

INLINE int is_track(const Table *table, uint32_t number, Span pid, Span tid)
{
    const Track *track = TRACK(table, number);
    const char *key = table->keys.data + track->key;
    return track->pid_size == (size_t)(pid.end - pid.at) && track->tid_size == (size_t)(tid.end - tid.at)
        && memcmp(key, pid.at, track->pid_size) == 0 && memcmp(key + track->pid_size, tid.at, track->tid_size) == 0;
}

INLINE int64_t find_track(Table *table, Span pid, Span tid)
{
    if (TRACK_COUNT(table) == 0)
        return -1;
    if (is_track(table, table->last, pid, tid))
        return table->last;
    for (uint32_t slot = hash_of(pid, tid);; slot++) {
        uint32_t found = table->slots[slot & (table->slot_count - 1)];
        if (found == 0)
            return -1;
        if (is_track(table, found - 1, pid, tid))
            return table->last = found - 1;
    }
}

/* The same for an event. */
INLINE int64_t track_of(Table *table, const Event *event)
{
    if (event->known == NULL)
        return find_track(table, event->pid, event->tid);
    if (event->known->track < 0)
        event->known->track = find_track(table, event->pid, event->tid);
    return event->known->track;
}

INLINE int grow_slots(Table *table)
{
    uint32_t count = table->slot_count ? table->slot_count * 2 : 64;
    if (count > 1u << 30)
        return 0;
    uint32_t *slots = tracekit_calloc(count, sizeof *slots);
    if (slots == NULL)
        return 0;
    for (uint32_t number = 0; number < TRACK_COUNT(table); number++) {
        const Track *track = TRACK(table, number);
        const char *key = table->keys.data + track->key;
        Span pid = {key, key + track->pid_size}, tid = {pid.end, pid.end + track->tid_size};
        uint32_t slot = hash_of(pid, tid);
        while (slots[slot & (count - 1)])
            slot++;
        slots[slot & (count - 1)] = number + 1;
    }
    free(table->slots);
    table->slots = slots;
    table->slot_count = count;
    return 1;
}

/* Returns the number of the new track, -1 without memory. */
INLINE int64_t add_track(Table *table, Span pid, Span tid)
{
    uint32_t number = TRACK_COUNT(table);
    if (number + 1 > table->slot_count / 2 && !grow_slots(table))
        return -1;
    Track track = {.key = table->keys.size, .pid_size = (uint32_t)(pid.end - pid.at), .tid_size = (uint32_t)(tid.end - tid.at), .lanes = -1};
    /* Room first, so that nothing is half done. */
    if (!reserve(&table->keys, (size_t)track.pid_size + track.tid_size) || !append(&table->tracks, &track, sizeof track))
        return -1;
    append(&table->keys, pid.at, track.pid_size);
    append(&table->keys, tid.at, track.tid_size);
    uint32_t slot = hash_of(pid, tid);
    while (table->slots[slot & (table->slot_count - 1)])
        slot++;
    table->slots[slot & (table->slot_count - 1)] = number + 1;
    return table->last = number;
}

/* One run at a time: without the interpreter lock, another thread could come. Python's own checks would be too late. */
INLINE int enter(int *busy)
{
    if (*busy) {
        PyErr_SetString(PyExc_RuntimeError, "used from two threads at once");
        return 0;
    }
    return *busy = 1;
}

enum outcome { DONE, GIVEN_BACK, NO_MEMORY, UNKNOWN_PLACE };

INLINE void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

extern PyType_Spec scanner_spec, patcher_spec;

#endif
