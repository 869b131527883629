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

/* Finds how narrow the numbers of a column can be. Returns 0 if it is NULL in all rows: then it has no place in the block. */
static int measure(const Batch *batch, int number, BlockColumn *column)
{
    const ColumnSpec *spec = &batch->spec->columns[number];
    const int64_t *values = batch->data[number];
    int64_t most = NO_VALUE, before = INT64_MAX; /* before: the least one - 1, so that NO_VALUE is the greatest */
    column->width = width_of(spec->kind);
    if (spec->is_late || values == NULL || spec->kind == COLUMN_NUMBER)
        return 1;
    if (spec->kind == COLUMN_TEXT) {
        most = (int64_t)(batch->texts[number].offsets.size / sizeof(int32_t)) - 1;
        before = -1;
    }
    for (size_t i = 0; i < batch->rows && spec->kind == COLUMN_INTEGER; i++) {
        const int64_t below = (int64_t)((uint64_t)values[i] - 1);
        most = values[i] > most ? values[i] : most;
        before = below < before ? below : before;
    }
    if (most == NO_VALUE || (spec->kind == COLUMN_TEXT && most < 0))
        return !spec->is_nullable;
    const uint64_t codes = (uint64_t)most - (uint64_t)before; /* one is left for NULL */
    column->least = before + 1;
    column->width = codes <= UINT8_MAX ? 1 : codes <= UINT16_MAX ? 2 : codes <= UINT32_MAX ? 4 : 8;
    return 1;
}

INLINE void pack_as(char *out, const void *values, size_t rows, size_t width, int is_text, int64_t least)
{
    for (size_t i = 0; i < rows; i++) {
        const int64_t value = is_text ? ((const int32_t *)values)[i] : ((const int64_t *)values)[i];
        const uint64_t code = value == (is_text ? NO_TEXT : NO_VALUE) ? UINT64_MAX : (uint64_t)value - (uint64_t)least;
        memcpy(out + i * width, &code, width); /* little-endian */
    }
}

INLINE void unpack_as(void *out, const char *codes, size_t rows, size_t width, int is_text, int64_t least)
{
    for (size_t i = 0; i < rows; i++) {
        uint64_t code = 0;
        memcpy(&code, codes + i * width, width);
        const int is_null = code == UINT64_MAX >> (64 - 8 * width);
        if (is_text)
            ((int32_t *)out)[i] = is_null ? NO_TEXT : (int32_t)(code + (uint64_t)least);
        else
            ((int64_t *)out)[i] = is_null ? NO_VALUE : (int64_t)(code + (uint64_t)least);
    }
}

/* Calls one of them with a constant width, so that the compiler makes a loop for each. */
#define BY_WIDTH(call, to, from, rows, column, is_text) do { \
    switch ((column)->width) { \
    case 1: call(to, from, rows, 1, is_text, (column)->least); break; \
    case 2: call(to, from, rows, 2, is_text, (column)->least); break; \
    case 4: call(to, from, rows, 4, is_text, (column)->least); break; \
    default: memcpy(to, from, (rows) * 8); \
    } \
} while (0)

/* Lays out the columns of a block, packed or with the widths of Arrow; returns its size. */
static uint64_t lay_out(const TableSpec *spec, Block *block, int is_packed)
{
    uint64_t at = padded(sizeof *block);
    for (int i = 0; i < spec->count; i++) {
        BlockColumn *column = &block->columns[i];
        const size_t width = is_packed ? column->width : width_of(spec->columns[i].kind);
        if (column->data) {
            column->data = at;
            at += padded(block->rows * width);
        }
        if (column->offsets) {
            column->offsets = at;
            at += padded((column->texts + 1) * sizeof(int32_t));
            column->bytes = at;
            at += padded(column->size + 1);
        }
    }
    return block->size = at;
}

/* Describes the current batch as a block without its data. */
static void describe(const Batch *batch, Block *block)
{
    memset(block, 0, sizeof *block);
    block->rows = batch->rows;
    for (int i = 0; i < batch->spec->count; i++) {
        BlockColumn *column = &block->columns[i];
        const enum column_kind kind = batch->spec->columns[i].kind;
        if (!measure(batch, i, column))
            continue;
        column->data = batch->data[i] != NULL;
        if (kind == COLUMN_TEXT || kind == COLUMN_LONG_TEXT) {
            column->texts = batch->texts[i].offsets.size / sizeof(int32_t);
            column->size = batch->texts[i].bytes.size;
            column->offsets = 1;
        }
    }
    lay_out(batch->spec, block, 1);
}

static void fill_block(const Batch *batch, Block *block)
{
    for (int i = 0; i < batch->spec->count; i++) {
        const Texts *texts = &batch->texts[i];
        const BlockColumn *column = &block->columns[i];
        const int is_text = batch->spec->columns[i].kind == COLUMN_TEXT;
        if (column->data)
            BY_WIDTH(pack_as, BLOCK_PART(block, column->data), batch->data[i], batch->rows, column, is_text);
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

/* Returns a stored block with the layout of Arrow; NULL without memory. */
static Block *unpacked(const TableSpec *spec, const Block *stored)
{
    Block head = *stored, *block = tracekit_realloc(NULL, lay_out(spec, &head, 0));
    if (block == NULL)
        return NULL;
    *block = head;
    for (int i = 0; i < spec->count; i++) {
        const BlockColumn *from = &stored->columns[i], *to = &block->columns[i];
        if (to->data)
            BY_WIDTH(unpack_as, (void *)BLOCK_PART(block, to->data), BLOCK_PART(stored, from->data), stored->rows, from,
                     spec->columns[i].kind == COLUMN_TEXT);
        if (to->offsets) /* with the texts behind them */
            memcpy(BLOCK_PART(block, to->offsets), BLOCK_PART(stored, from->offsets), from->bytes + from->size - from->offsets);
    }
    return block;
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
    if (table->batch.rows == 0)
        return DONE;
    describe(&table->batch, &head);
    StoredBlock stored = {.size = head.size};
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
    *outcome = NO_MEMORY;
    if (block == NULL) {
        if (!reserve(&table->staging, stored->size))
            return NULL;
        block = (Block *)(void *)table->staging.data;
        *outcome = read_scratch(scratch, stored->offset, block, stored->size);
        if (*outcome != DONE)
            return NULL;
    }
    Block *taken = unpacked(table->batch.spec, block);
    free(stored->block);
    stored->block = NULL;
    *outcome = taken == NULL ? NO_MEMORY : DONE;
    return taken;
}
