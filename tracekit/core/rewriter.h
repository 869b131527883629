/* The one pass of the merge over the events of a unit: see `Rewriter` in _merge.pyi. */

#ifndef TRACEKIT_REWRITER_H
#define TRACEKIT_REWRITER_H

#include "lanes.h"
#include "object.h"
#include "scan.h"
#include "tracks.h"

#define MAX_NOTED_NAME 32
#define MAX_KNOTS 1024
#define MAX_PREFIX 24
#define PHASES 128
#define MAX_DURATION_NS 1000000000000000000
#define TID_SIZE 10              /* characters, so that a lane can be written over it */
#define KEEP_OFFSET (-1)         /* of ids: all ids stay unchanged */

typedef struct {
    int64_t time_ns, offset_ns;
} Knot;

typedef struct {
    PyObject_HEAD
    int busy;

    /* Of the input. */
    Reader reader;
    Table table;                 /* its tracks */
    enum place place;
    int64_t shift_ns, least_ns, most_ns;
    int64_t id_offset;
    int moves_arg_ids;
    size_t prefix_size;
    char prefix[MAX_PREFIX];     /* of the ids of asynchronous events */
    Knot knots[MAX_KNOTS];
    size_t knot_count;
    uint64_t written[PHASES];

    /* Of the unit. */
    Buffer out;
    uint64_t taken;              /* bytes of the output before those in `out` */
    Buffer logs;                 /* LaneLog by number */
    size_t log_bytes, most_log_bytes;
    ScratchFile scratch;
    int64_t snap_ns;
    Buffer metadata, noted;      /* texts of events, each with a comma behind it */
    char noted_name[MAX_NOTED_NAME]; /* the beginning of names of events that are noted */
    size_t noted_name_size;
    Buffer new_track;            /* pid, tid and category of an event on an unknown track */
    size_t new_sizes[3];

    /* Of the end. */
    int finished;
    LaneCounts counts;
    Sorter patches;
    Buffer patch;                /* the text of the next one */
    uint64_t patch_at;
    int has_patch;
} Rewriter;

#define LOGS(self) ((LaneLog *)(void *)(self)->logs.data)
#define LOG_COUNT(self) ((self)->logs.size / sizeof(LaneLog))

/* Leaves the place where it stopped in the window. */
enum stop rewrite_events(Rewriter *self, Window *window);
enum outcome note_entry(Rewriter *self, uint32_t log, const Entry *entry);

extern PyType_Spec rewriter_spec;

#endif
