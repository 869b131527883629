#include "nesting.h"

#define OPEN_ROWS(stack) ((OpenRow *)(void *)(stack)->data)
#define SIGN (UINT64_C(1) << 63)

void open_nesting(Nesting *nesting, ScratchFile *scratch, size_t limit_bytes)
{
    memset(nesting, 0, sizeof *nesting);
    open_sorter(&nesting->slices, scratch, limit_bytes);
    open_sorter(&nesting->rows, scratch, limit_bytes);
}

static void close_tracks(Nesting *nesting)
{
    Buffer *stacks = (Buffer *)(void *)nesting->tracks.data;
    for (size_t i = 0; i < nesting->tracks.size / sizeof *stacks; i++)
        free_buffer(&stacks[i]);
    free_buffer(&nesting->tracks);
}

void close_nesting(Nesting *nesting)
{
    close_sorter(&nesting->slices);
    close_sorter(&nesting->rows);
    close_tracks(nesting);
}

enum outcome add_slice(Nesting *nesting, uint64_t track, int64_t start, int64_t duration, uint64_t row, int64_t begin)
{
    /* Times as numbers without a sign, in the same order; later ends come first. */
    uint64_t from = (uint64_t)start ^ SIGN, to = ~((uint64_t)(start + duration) ^ SIGN);
    if (begin == NO_BEGIN)
        return add_record(&nesting->slices, (Record){{from, to, row, track}});
    /* A second record, which comes right behind it, has the row. */
    uint64_t order = SIGN | (uint64_t)begin;
    enum outcome outcome = add_record(&nesting->slices, (Record){{from, to, order, track}});
    return outcome == DONE ? add_record(&nesting->slices, (Record){{from, to, order, SIGN | row}}) : outcome;
}

static enum outcome close_row(Nesting *nesting, const OpenRow *row)
{
    return add_record(&nesting->rows, (Record){{row->row, row->parent, (uint64_t)row->self, row->depth}});
}

/* Closes the slices that have ended before a slice begins. Those below an open one that crosses them may have ended too. */
static enum outcome close_ended(Nesting *nesting, Buffer *stack, int64_t start)
{
    size_t count = stack->size / sizeof(OpenRow), kept = 0;
    OpenRow *rows = OPEN_ROWS(stack);
    enum outcome outcome = DONE;
    for (; count && rows[count - 1].end <= start && outcome == DONE; count--)
        outcome = close_row(nesting, &rows[count - 1]);
    stack->size = count * sizeof(OpenRow);
    if (count == 0 || (rows[0].end > start && count < MAX_OPEN))
        return outcome;
    for (size_t i = 0; i < count && outcome == DONE; i++) {
        if (rows[i].end > start)
            rows[kept++] = rows[i];
        else
            outcome = close_row(nesting, &rows[i]);
    }
    stack->size = kept * sizeof(OpenRow);
    return outcome;
}

static Buffer *stack_of(Nesting *nesting, uint64_t track)
{
    while (nesting->tracks.size / sizeof(Buffer) <= track)
        if (!append(&nesting->tracks, &(Buffer){NULL, 0, 0}, sizeof(Buffer)))
            return NULL;
    return (Buffer *)(void *)nesting->tracks.data + track;
}

static enum outcome open_row(Nesting *nesting, Buffer *stack, int64_t start, int64_t end, uint64_t row)
{
    OpenRow added = {end, start, end - start, row, 0, 0};
    OpenRow *rows = OPEN_ROWS(stack);
    size_t count = stack->size / sizeof added;
    for (size_t i = count; i-- > 0;) {
        if (rows[i].end < end || rows[i].end <= start)
            continue;
        int64_t from = start > rows[i].covered_end ? start : rows[i].covered_end;
        if (end > from) {
            rows[i].self -= end - from;
            rows[i].covered_end = end;
        }
        added.parent = rows[i].row + 1;
        added.depth = rows[i].depth + 1;
        break;
    }
    if (count >= MAX_OPEN)
        return close_row(nesting, &added);
    return append(stack, &added, sizeof added) ? DONE : NO_MEMORY;
}

enum outcome nest(Nesting *nesting)
{
    enum outcome outcome = sort_records(&nesting->slices);
    const Record *slice;
    while (outcome == DONE && (slice = next_record(&nesting->slices)) != NULL) {
        int64_t start = (int64_t)(slice->words[0] ^ SIGN), end = (int64_t)(~slice->words[1] ^ SIGN);
        uint64_t row = slice->words[2];
        Buffer *stack = stack_of(nesting, slice->words[3]);
        if (row & SIGN) {
            if ((slice = next_record(&nesting->slices)) == NULL)
                break;
            row = slice->words[3] ^ SIGN;
        }
        if (stack == NULL)
            return NO_MEMORY;
        outcome = close_ended(nesting, stack, start);
        if (outcome == DONE)
            outcome = open_row(nesting, stack, start, end, row);
    }
    if (outcome == DONE)
        outcome = nesting->slices.outcome;
    for (size_t i = 0; outcome == DONE && i < nesting->tracks.size / sizeof(Buffer); i++)
        outcome = close_ended(nesting, (Buffer *)(void *)nesting->tracks.data + i, INT64_MAX);
    close_sorter(&nesting->slices);
    close_tracks(nesting);
    if (outcome != DONE || (outcome = sort_records(&nesting->rows)) != DONE)
        return outcome;
    nesting->next = next_record(&nesting->rows);
    return nesting->rows.outcome;
}

int nested_row(Nesting *nesting, uint64_t row, Record *found)
{
    if (nesting->next == NULL || nesting->next->words[0] != row)
        return 0;
    *found = *nesting->next;
    nesting->next = next_record(&nesting->rows);
    return 1;
}
