/* Rows of the event table as columns: a batch in memory, and finished batches, in memory or in a scratch file.

   A finished batch is one block: a Block, then the data of each column, each part at a multiple of 8. It is stored with numbers as
   narrow as they can be, since to move the bytes costs more than to pack them, and is taken out with the layout of Arrow. */

#ifndef TRACEKIT_BATCH_H
#define TRACEKIT_BATCH_H

#include "index.h"
#include "scratch_file.h"

#define BATCH_ROWS 65536
#define MAX_TEXT_BYTES (8 << 20) /* of a batch; a longer text ends it */
#define MAX_COLUMNS 16
#define NO_VALUE INT64_MIN       /* NULL in a column of integers */
#define NO_TEXT (-1)             /* NULL in a column of texts */

enum column_kind { COLUMN_INTEGER, COLUMN_NUMBER, COLUMN_TEXT, COLUMN_LONG_TEXT };

typedef struct {
    const char *name;
    enum column_kind kind;
    int is_nullable;
    int is_late;     /* filled when the table is read */
} ColumnSpec;

typedef struct {
    const char *name;
    const ColumnSpec *columns;
    int count;
} TableSpec;

/* The different texts of a column; with COLUMN_LONG_TEXT, all of them. */
typedef struct {
    Index index;
    Buffer offsets, bytes; /* int32_t: the beginning of each text, and the end */
    uint32_t last;         /* the number + 1 of the text that was interned last, 0 for none: many rows in turn have the same */
} Texts;

typedef struct {
    const TableSpec *spec;
    size_t rows;
    void *data[MAX_COLUMNS]; /* int64_t, double or int32_t (a number in `texts`); NULL for late and long ones */
    Texts texts[MAX_COLUMNS];
} Batch;

/* Offsets of the parts of a column in a block, all 0 if the column is NULL in all rows; `size` is the size of all its texts. Stored
   numbers have `width` bytes (1, 2, 4 or 8) and count from `least`; narrow ones with all bits set are NULL. */
typedef struct {
    uint64_t data, offsets, bytes, texts, size, width;
    int64_t least;
} BlockColumn;

typedef struct {
    uint64_t rows, size;
    BlockColumn columns[MAX_COLUMNS];
} Block;

typedef struct {
    Block *block; /* NULL: it is in the scratch file */
    uint64_t offset, size;
} StoredBlock;

typedef struct {
    Batch batch;
    Buffer blocks;        /* StoredBlock */
    Buffer staging;       /* a block on its way to the file, or from there */
    uint64_t rows;        /* of all blocks */
    unsigned used;        /* a bit for each column that is not NULL everywhere */
} BatchTable;

#define BLOCK_PART(block, offset) ((char *)(block) + (offset))

int open_batches(BatchTable *table, const TableSpec *spec);
void close_batches(BatchTable *table);
/* Returns the number of a text in the current batch, -1 without memory. */
int32_t intern_column(Batch *batch, int column, const char *text, size_t size);
/* Finishes the current batch, and moves it to the file if `to_file`. */
enum outcome store_batch(BatchTable *table, ScratchFile *scratch, int to_file, uint64_t *stored_bytes);
/* Finishes the row that was filled; call `store_batch` if `is_full` is then set. */
INLINE int end_row(BatchTable *table)
{
    return ++table->batch.rows == BATCH_ROWS;
}
/* Takes a block out of the table; NULL if `outcome` is set: without memory, or if the file cannot be read. */
Block *take_block(BatchTable *table, size_t number, ScratchFile *scratch, enum outcome *outcome);

#endif
