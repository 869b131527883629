/* Sorting of records of four words, in memory up to a limit, and with a scratch file beyond it. */

#ifndef TRACEKIT_RECORD_SORT_H
#define TRACEKIT_RECORD_SORT_H

#include "scratch_file.h"

typedef struct {
    uint64_t words[4]; /* compared in this order */
} Record;

/* A sorted stretch of records, in memory or in the scratch file. */
typedef struct {
    uint64_t offset;       /* in the scratch file, of the first record that is not in memory */
    size_t left;           /* number of records there */
    const Record *at, *end;
    Record *window;        /* NULL: all is in memory */
} SortedRun;

typedef struct {
    ScratchFile *scratch;
    size_t limit;          /* records in memory */
    Buffer rows, runs;
    size_t *heap;          /* numbers of runs that have records left, the least first */
    size_t heap_size;
    int taken;             /* the first of the heap was returned */
    enum outcome outcome;  /* of `next_record` */
} Sorter;

void open_sorter(Sorter *sorter, ScratchFile *scratch, size_t limit_bytes);
/* Makes room for a number of records, which costs less than growing. */
int reserve_records(Sorter *sorter, size_t count);
void close_sorter(Sorter *sorter);
enum outcome add_record(Sorter *sorter, Record record);
/* Called once after the last record. */
enum outcome sort_records(Sorter *sorter);
/* Returns the next record in order, NULL at the end or where `outcome` is not DONE. It is valid until the next call. */
const Record *next_record(Sorter *sorter);

#endif
