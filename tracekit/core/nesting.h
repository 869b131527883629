/* Which slice encloses which: slices in any order in, parents, depths and self times in the order of rows out.

   Slices of a track are taken in the order of start, longer ones first, then whole ones in the order of rows before those of begins
   and ends in the order of begins, as Perfetto does. The parent of a slice is the one that began
   last of those that are open and end no earlier. The self time is what no child covers. Memory is bounded: what is
   too much for it goes to the scratch file. */

#ifndef TRACEKIT_NESTING_H
#define TRACEKIT_NESTING_H

#include "record_sort.h"

#define NO_BEGIN (-1)
#define MAX_OPEN 512 /* slices of a track; a slice that is deeper is no parent */

typedef struct {
    int64_t end, covered_end, self;
    uint64_t row, parent; /* parent: a row + 1, 0 for none */
    uint32_t depth;
} OpenRow;

typedef struct {
    Sorter slices, rows;
    Buffer tracks; /* Buffer of OpenRow by track, innermost last */
    const Record *next; /* of `rows` */
} Nesting;

void open_nesting(Nesting *nesting, ScratchFile *scratch, size_t limit_bytes);
void close_nesting(Nesting *nesting);
/* `begin`: the number of its begin in the file; NO_BEGIN for a whole slice. */
enum outcome add_slice(Nesting *nesting, uint64_t track, int64_t start, int64_t duration, uint64_t row, int64_t begin);
/* Called once after the last slice. */
enum outcome nest(Nesting *nesting);
/* Tells of a row, which must be above that of the last call; returns 0 for one that is no slice. Words: row, parent + 1, self time,
   depth. Look at `rows.outcome` after the last row. */
int nested_row(Nesting *nesting, uint64_t row, Record *found);

#endif
