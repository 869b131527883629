/* What is kept of the slices and flows of one track of the merged trace while its events are written: enough to move those to
   lanes that overlap, once all are known. An entry takes 5 to 20 bytes. Whether slices nest is seen while they come. */

#ifndef TRACEKIT_LANE_LOG_H
#define TRACEKIT_LANE_LOG_H

#include "record_sort.h"

#define MAX_DEPTH 512          /* see tracekit.formats.trace_event */
#define MAX_ENTRY 96           /* bytes */
#define MAX_TIME_NS (INT64_MAX - 1)
#define OPEN_END INT64_MAX     /* the end of a B that no E has ended yet */

enum entry_kind { ENTRY_SLICE, ENTRY_FLOW, ENTRY_BEGIN, ENTRY_END };

typedef struct {
    enum entry_kind kind;
    int64_t time_ns, duration_ns; /* of the merged trace */
    uint64_t at;                  /* where its tid is in the output */
    uint64_t label;               /* B and E: hashes of name and category, 0 for none: see `label_of` */
    uint64_t event_at;            /* E: where the event begins */
    uint32_t event_size;          /* with the comma behind it */
    uint64_t dur_at;              /* X of a track that is snapped: where its duration is */
    uint32_t dur_size;            /* 0: it cannot be patched */
} Entry;

typedef struct {
    int64_t start, end;
    uint64_t label;
} OpenSlice;

typedef struct {
    Buffer bytes, spilled, open;  /* spilled: where older entries are in the scratch file; open: OpenSlice, innermost last */
    int64_t last_ns, slice_ns;    /* times of the last entry, of the last slice */
    uint64_t last_at;
    size_t count;                 /* entries */
    uint32_t lanes;               /* found by `assign_lanes`: 1 for those of a track that nests */
    unsigned char tangled, pairs; /* not known to nest; has B or E */
    unsigned char overlaps;       /* two X are known to overlap */
    unsigned char durations, snaps; /* places of durations are noted; small overlaps are snapped */
    Buffer tids;                  /* of the lanes from 1 on */
} LaneLog;

typedef struct {
    uint64_t offset, size;
} SpilledStretch;

/* Reads the entries of a log again. */
typedef struct {
    const LaneLog *log;
    ScratchFile *scratch;
    size_t stretch;
    Buffer window;
    const char *at, *end;
    int64_t last_ns;
    uint64_t last_at;
    enum outcome outcome;
} LogReader;

/* Hashes a name and a category, which are JSON; an empty one counts as none, as in Perfetto. */
uint64_t label_of(const char *name, const char *name_end, const char *category, const char *category_end);
int label_matches(uint64_t begin, uint64_t end);
/* Appends an entry that is no simple X; room for it must be there: see `add_entry`. */
enum outcome add_entry(LaneLog *log, const Entry *entry);
/* Called after the last entry. */
void end_log(LaneLog *log);
enum outcome spill_log(LaneLog *log, ScratchFile *scratch);
void open_log(LogReader *reader, const LaneLog *log, ScratchFile *scratch);
/* Returns 1 with the next entry, 0 at the end or where `outcome` is not DONE. */
int next_entry(LogReader *reader, Entry *entry);
void close_log(LogReader *reader);
void free_log(LaneLog *log);

#endif
