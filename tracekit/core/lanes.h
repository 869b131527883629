/* Slices that overlap without nesting, moved to lanes of their own: see `Lanes` in tracekit.merge.rewrite.rewriter. */

#ifndef TRACEKIT_LANES_H
#define TRACEKIT_LANES_H

#include "lane_log.h"

/* What a patch writes over the output; the rest of the number says what exactly. */
#define PATCH_KINDS (UINT64_C(3) << 62)
#define PATCH_LANE (UINT64_C(0) << 62)     /* the tid of a lane: number of the log << 31 | lane */
#define PATCH_BLANK (UINT64_C(1) << 62)    /* so many spaces */
#define PATCH_DURATION (UINT64_C(2) << 62) /* characters << 57 | ns */
#define MAX_LANES 0x7FFFFFFFu
#define MAX_SNAPPED_NS ((INT64_C(1) << 57) - 1)

typedef struct {
    uint64_t moved;          /* X, B and E that leave their track */
    uint64_t lost_ends;      /* E without B */
    uint64_t snapped;        /* slices that were shortened */
    int64_t largest_snap_ns;
} LaneCounts;

/* Finds out which events of a track leave it; adds a patch for each, as records (position, patch), in any order. */
enum outcome assign_lanes(LaneLog *log, uint32_t number, ScratchFile *scratch, size_t limit_bytes, int64_t snap_ns, Sorter *patches,
                          LaneCounts *counts);

#endif
