#include "batch.h"

#define BLOCKS(table) ((StoredBlock *)(void *)(table)->blocks.data)
#define BLOCK_COUNT(table) ((table)->blocks.size / sizeof(StoredBlock))

static size_t width_of(enum column_kind kind)
{
    return kind == COLUMN_TEXT ? sizeof(int32_t) : kind == COLUMN_LONG_TEXT ? 0 : sizeof(int64_t);
}

int open_batches(BatchTable *table, const TableSpec *spec)
{
    table->batch.spec = spec;
    for (int i = 0; i < spec->count; i++) {
        size_t width = spec->columns[i].is_late ? 0 : width_of(spec->columns[i].kind);
        if (width && (table->batch.data[i] = tracekit_calloc(BATCH_ROWS, width)) == NULL)
            return 0;
    }
    return 1;
}

void close_batches(BatchTable *table)
{
    for (int i = 0; i < MAX_COLUMNS; i++) {
        free(table->batch.data[i]);
        free(table->batch.texts[i].index.slots);
        free_buffer(&table->batch.texts[i].offsets);
        free_buffer(&table->batch.texts[i].bytes);
    }
    for (size_t i = 0; i < BLOCK_COUNT(table); i++)
        free(BLOCKS(table)[i].block);
    free_buffer(&table->blocks);
    free_buffer(&table->staging);
    memset(table, 0, sizeof *table);
}

static int add_text(Texts *texts, const char *text, size_t size)
{
    if (size > INT32_MAX / 2 - texts->bytes.size || !reserve(&texts->offsets, sizeof(int32_t)) || !reserve(&texts->bytes, size + 1))
        return 0;
    int32_t begin = (int32_t)texts->bytes.size;
    append(&texts->offsets, &begin, sizeof begin);
    append(&texts->bytes, text, size);
    return 1;
}

static int is_text_at(const Texts *texts, uint32_t number, const char *text, size_t size)
{
    const int32_t *begins = (const int32_t *)(const void *)texts->offsets.data;
    size_t begin = (size_t)begins[number - 1], count = texts->offsets.size / sizeof(int32_t);
    size_t end = number < count ? (size_t)begins[number] : texts->bytes.size;
    return end - begin == size && memcmp(texts->bytes.data + begin, text, size) == 0;
}

int32_t intern_column(Batch *batch, int column, const char *text, size_t size)
{
    Texts *texts = &batch->texts[column];
    size_t count = texts->offsets.size / sizeof(int32_t);
    if (batch->spec->columns[column].kind == COLUMN_LONG_TEXT)
        return add_text(texts, text, size) ? (int32_t)count : -1;
    if (texts->last && is_text_at(texts, texts->last, text, size))
        return (int32_t)texts->last - 1;
    uint32_t hash = (uint32_t)hash_bytes(text, size), number;
    for (uint32_t slot = hash; (number = next_number(&texts->index, hash, &slot)) != 0;)
        if (is_text_at(texts, number, text, size))
            return (int32_t)(texts->last = number) - 1;
    if (!reserve_number(&texts->index) || !add_text(texts, text, size))
        return -1;
    add_number(&texts->index, hash, texts->last = (uint32_t)count + 1);
    return (int32_t)count;
}

static uint64_t padded(uint64_t size)
{
    return (size + 7) & ~UINT64_C(7);
}

/* Returns true if a column that may be NULL is NULL in all rows: then it has no place in the block. */
static int is_empty(const Batch *batch, int column)
{
    const ColumnSpec *spec = &batch->spec->columns[column];
    if (!spec->is_nullable || spec->is_late)
        return 0;
    if (spec->kind == COLUMN_TEXT)
        return batch->texts[column].offsets.size == 0;
    const int64_t *values = batch->data[column];
    for (size_t i = 0; i < batch->rows; i++)
        if (values[i] != NO_VALUE)
            return 0;
    return 1;
}

/* Lays out the current batch, and returns the size of its block. */
static uint64_t lay_out(const Batch *batch, Block *block)
{
    uint64_t at = padded(sizeof *block);
    memset(block, 0, sizeof *block);
    block->rows = batch->rows;
    for (int i = 0; i < batch->spec->count; i++) {
        const Texts *texts = &batch->texts[i];
        BlockColumn *column = &block->columns[i];
        if (is_empty(batch, i))
            continue;
        if (batch->data[i] != NULL) {
            column->data = at;
            at += padded(batch->rows * width_of(batch->spec->columns[i].kind));
        }
        if (batch->spec->columns[i].kind == COLUMN_TEXT || batch->spec->columns[i].kind == COLUMN_LONG_TEXT) {
            column->texts = texts->offsets.size / sizeof(int32_t);
            column->size = texts->bytes.size;
            column->offsets = at;
            at += padded((column->texts + 1) * sizeof(int32_t));
            column->bytes = at;
            at += padded(column->size + 1);
        }
    }
    return block->size = at;
}

static void fill_block(const Batch *batch, Block *block)
{
    for (int i = 0; i < batch->spec->count; i++) {
        const Texts *texts = &batch->texts[i];
        const BlockColumn *column = &block->columns[i];
        if (column->data)
            memcpy(BLOCK_PART(block, column->data), batch->data[i], batch->rows * width_of(batch->spec->columns[i].kind));
        if (!column->offsets)
            continue;
        int32_t end = (int32_t)texts->bytes.size;
        if (column->texts)
            memcpy(BLOCK_PART(block, column->offsets), texts->offsets.data, texts->offsets.size);
        memcpy(BLOCK_PART(block, column->offsets) + texts->offsets.size, &end, sizeof end);
        if (column->size)
            memcpy(BLOCK_PART(block, column->bytes), texts->bytes.data, texts->bytes.size);
    }
}

static void clear_batch(Batch *batch)
{
    batch->rows = 0;
    for (int i = 0; i < batch->spec->count; i++) {
        clear_index(&batch->texts[i].index);
        batch->texts[i].offsets.size = batch->texts[i].bytes.size = batch->texts[i].last = 0;
    }
}

enum outcome store_batch(BatchTable *table, ScratchFile *scratch, int to_file, uint64_t *stored_bytes)
{
    Block head;
    StoredBlock stored = {.size = lay_out(&table->batch, &head)};
    if (table->batch.rows == 0)
        return DONE;
    if (!reserve(&table->blocks, sizeof stored))
        return NO_MEMORY;
    if (to_file) {
        /* Reuse the same memory, because touching new pages takes longer than writing them. */
        if (!reserve(&table->staging, stored.size))
            return NO_MEMORY;
        Block *block = (Block *)(void *)table->staging.data;
        *block = head;
        fill_block(&table->batch, block);
        enum outcome outcome = write_scratch(scratch, block, stored.size, &stored.offset);
        if (outcome != DONE)
            return outcome;
    } else {
        if ((stored.block = tracekit_realloc(NULL, stored.size)) == NULL)
            return NO_MEMORY;
        *stored.block = head;
        fill_block(&table->batch, stored.block);
        *stored_bytes += stored.size;
    }
    append(&table->blocks, &stored, sizeof stored);
    for (int i = 0; i < table->batch.spec->count; i++)
        if (head.columns[i].data || head.columns[i].offsets || table->batch.spec->columns[i].is_late)
            table->used |= 1u << i;
    table->rows += table->batch.rows;
    clear_batch(&table->batch);
    return DONE;
}

Block *take_block(BatchTable *table, size_t number, ScratchFile *scratch, enum outcome *outcome)
{
    *outcome = DONE;
    if (number >= BLOCK_COUNT(table))
        return NULL;
    StoredBlock *stored = &BLOCKS(table)[number];
    Block *block = stored->block;
    stored->block = NULL;
    if (block != NULL)
        return block;
    *outcome = NO_MEMORY;
    block = tracekit_realloc(NULL, stored->size);
    if (block == NULL)
        return NULL;
    *outcome = read_scratch(scratch, stored->offset, block, stored->size);
    if (*outcome != DONE) {
        free(block);
        return NULL;
    }
    return block;
}
