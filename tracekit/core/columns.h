/* The event table of one file: see `Columns` in _merge.pyi. */

#ifndef TRACEKIT_COLUMNS_H
#define TRACEKIT_COLUMNS_H

#include "batch.h"
#include "nesting.h"
#include "object.h"
#include "scan.h"
#include "tracks.h"

enum table_number { EVENTS, COUNTERS, FLOWS, ARGS, TABLE_COUNT };
enum event_column {
    E_TRACK, E_CATEGORY, E_NAME, E_PHASE, E_START, E_DURATION, E_DEPTH, E_PARENT, E_SELF, E_STEP, E_CORRELATION, E_FLOW, E_STREAM,
    E_DEVICE, E_BYTES, E_GROUP
};
enum counter_column { C_TRACK, C_NAME, C_SERIES, C_TIME, C_VALUE };
enum flow_column { F_TRACK, F_PHASE, F_TIME, F_CATEGORY, F_NAME_TEXT, F_IDENTITY };
enum args_column { A_ROW, A_ARGS };

#define MAX_LAUNCHES (4 << 20)  /* whose step the events on a GPU get; those of later launches get that of their own time */
#define MAX_CATEGORIES 32
#define MAX_CATEGORY 48
#define MAX_TIME (INT64_C(1) << 61)
#define MAX_BEGUN 200000        /* slices that have begun and not ended */
#define MAX_SEARCH 100          /* innermost slices among which the begin of an end is searched */
#define MAX_SERIES 32           /* of a counter; Python takes an event with more */

enum kept_args { NO_ARGS, ALL_ARGS, KEY_ARGS };

typedef struct {
    uint64_t correlation; /* + 1; 0: the slot is free */
    int64_t start;
} Launch;

/* A slice that has begun: the text of its B, which is read again when it ends. */
typedef struct {
    char *text;               /* NULL without memory only */
    size_t size;
    int64_t start, number;    /* number: of begins in the file */
    size_t name_at, name_size, category_at, category_size; /* in the text, as JSON; size 0 for none */
    int odd;                  /* Python must read it */
} Begin;

/* A step of the processes of one group. */
typedef struct {
    int64_t group, start, end, number;
} Step;

typedef struct {
    PyObject_HEAD
    int busy, finished, keeps_args;
    Reader reader;
    Table tracks;
    enum place place;
    BatchTable tables[TABLE_COUNT];
    ScratchFile scratch;
    uint64_t stored_bytes, max_bytes; /* of finished batches in memory */
    Nesting nesting;
    Buffer unescaped;                 /* a text without escapes */
    Buffer metadata, noted;           /* texts of events, each behind an int64_t and its size as a size_t */
    Buffer begun;                     /* Buffer of Begin by track, innermost last */
    size_t begun_count;
    int64_t begins;                   /* the number of begins so far */
    int64_t first, last;              /* the least start of an event, and the latest end */
    struct {
        char text[MAX_CATEGORY];
        size_t size;
    } gpu[MAX_CATEGORIES];            /* categories of events on a device */
    int gpu_count;
    Launch *launches;
    size_t launch_room, launch_count; /* room: a power of two, or 0 */
    /* After the last event. */
    Buffer groups, steps;             /* int64_t by track; Step in order */
    size_t next_block[TABLE_COUNT];
    uint64_t next_row;                /* of the events that are read */
    int taken[TABLE_COUNT];
} Columns;

extern const TableSpec table_specs[TABLE_COUNT];
extern PyType_Spec columns_spec;

int64_t launch_start(const Columns *self, int64_t correlation, int64_t otherwise);
/* Returns the next block of a table with its late columns in `late`, which has room for BATCH_ROWS each; NULL at the end. */
Block *next_columns(Columns *self, enum table_number table, int64_t *late[MAX_COLUMNS], enum outcome *outcome);
/* Arrow. */
PyObject *export_schema(PyObject *module, PyObject *args);
PyObject *export_stream(PyObject *module, PyObject *args);

#endif
