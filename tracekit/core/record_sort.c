#include "record_sort.h"

#define WINDOW_RECORDS 2048 /* of a run that is in the file */
#define MIN_LIMIT 64

static int is_less(const Record *one, const Record *other)
{
    for (int i = 0; i < 3; i++)
        if (one->words[i] != other->words[i])
            return one->words[i] < other->words[i];
    return one->words[3] < other->words[3];
}

void open_sorter(Sorter *sorter, ScratchFile *scratch, size_t limit_bytes)
{
    memset(sorter, 0, sizeof *sorter);
    sorter->scratch = scratch;
    sorter->limit = limit_bytes / sizeof(Record) < MIN_LIMIT ? MIN_LIMIT : limit_bytes / sizeof(Record);
}

int reserve_records(Sorter *sorter, size_t count)
{
    return reserve(&sorter->rows, (count < sorter->limit ? count : sorter->limit) * sizeof(Record) / 2);
}

#define RUNS(sorter) ((SortedRun *)(void *)(sorter)->runs.data)
#define RUN_COUNT(sorter) ((sorter)->runs.size / sizeof(SortedRun))

void close_sorter(Sorter *sorter)
{
    for (size_t i = 0; i < RUN_COUNT(sorter); i++)
        free(RUNS(sorter)[i].window);
    free(sorter->heap);
    free_buffer(&sorter->rows);
    free_buffer(&sorter->runs);
    memset(sorter, 0, sizeof *sorter);
}

/* Returns how many records of a sorted stretch come before one, or are not after it. */
static size_t count_before(const Record *rows, size_t count, const Record *one, int or_same)
{
    size_t low = 0;
    while (low < count) {
        size_t middle = low + (count - low) / 2;
        int before = or_same ? !is_less(one, &rows[middle]) : is_less(&rows[middle], one);
        if (before)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

/* Merges two neighbouring stretches, moving only records in the range where they overlap. Stretches of different training steps
   hardly overlap. */
static int merge_two(Record *rows, size_t middle, size_t end, Buffer *spare)
{
    size_t begin = count_before(rows, middle, &rows[middle], 1);
    rows += begin;
    middle -= begin;
    end -= begin;
    if (middle == 0)
        return 1;
    end = middle + count_before(rows + middle, end - middle, &rows[middle - 1], 0);
    spare->size = 0;
    if (!append(spare, rows, middle * sizeof *rows))
        return 0;
    const Record *left = (const Record *)(const void *)spare->data, *left_end = left + middle, *right = rows + middle;
    const Record *right_end = rows + end;
    while (left < left_end && right < right_end)
        *rows++ = is_less(right, left) ? *right++ : *left++;
    memcpy(rows, left, (size_t)(left_end - left) * sizeof *rows);
    return 1;
}

/* Sorts the records in memory: merges sorted stretches, two by two. A trace has few of them. */
static enum outcome sort_rows_in_memory(Sorter *sorter)
{
    Record *rows = (Record *)(void *)sorter->rows.data;
    size_t count = sorter->rows.size / sizeof *rows;
    Buffer ends = {NULL, 0, 0}, spare = {NULL, 0, 0};
    int done = 1;
    for (size_t i = 1; done && i <= count; i++)
        if (i == count || is_less(&rows[i], &rows[i - 1]))
            done = append(&ends, &i, sizeof i);
    size_t *stretch_ends = (size_t *)(void *)ends.data, stretches = ends.size / sizeof(size_t);
    while (done && stretches > 1) {
        size_t from = 0, kept = 0;
        for (size_t i = 0; done && i < stretches; i += 2) {
            size_t middle = stretch_ends[i], end = i + 1 < stretches ? stretch_ends[i + 1] : middle;
            if (end > middle)
                done = merge_two(rows + from, middle - from, end - from, &spare);
            from = stretch_ends[kept++] = end;
        }
        stretches = kept;
    }
    free_buffer(&ends);
    free_buffer(&spare);
    return done ? DONE : NO_MEMORY;
}

static enum outcome write_run(Sorter *sorter)
{
    enum outcome outcome = sort_rows_in_memory(sorter);
    SortedRun run = {.left = sorter->rows.size / sizeof(Record)};
    if (outcome == DONE)
        outcome = write_scratch(sorter->scratch, sorter->rows.data, sorter->rows.size, &run.offset);
    if (outcome == DONE && !append(&sorter->runs, &run, sizeof run))
        outcome = NO_MEMORY;
    sorter->rows.size = 0;
    return outcome;
}

enum outcome add_record(Sorter *sorter, Record record)
{
    if (sorter->rows.size / sizeof record >= sorter->limit) {
        enum outcome outcome = write_run(sorter);
        if (outcome != DONE)
            return outcome;
    }
    return append(&sorter->rows, &record, sizeof record) ? DONE : NO_MEMORY;
}

/* ---- Merging runs. ---- */

/* Reads more of a run where its window is empty; `at` is at `end` afterwards only if the run has ended. */
static enum outcome fill_window(Sorter *sorter, SortedRun *run)
{
    if (run->at < run->end || run->left == 0)
        return DONE;
    size_t count = run->left < WINDOW_RECORDS ? run->left : WINDOW_RECORDS;
    enum outcome outcome = read_scratch(sorter->scratch, run->offset, run->window, count * sizeof(Record));
    if (outcome != DONE)
        return outcome;
    run->at = run->window;
    run->end = run->window + count;
    run->offset += count * sizeof(Record);
    run->left -= count;
    return DONE;
}

static void sink(Sorter *sorter, size_t place)
{
    SortedRun *runs = RUNS(sorter);
    size_t *heap = sorter->heap;
    for (;;) {
        size_t child = 2 * place + 1;
        if (child >= sorter->heap_size)
            return;
        if (child + 1 < sorter->heap_size && is_less(runs[heap[child + 1]].at, runs[heap[child]].at))
            child++;
        if (!is_less(runs[heap[child]].at, runs[heap[place]].at))
            return;
        size_t number = heap[place];
        heap[place] = heap[child];
        heap[child] = number;
        place = child;
    }
}

enum outcome sort_records(Sorter *sorter)
{
    enum outcome outcome = sort_rows_in_memory(sorter);
    if (outcome != DONE)
        return outcome;
    const Record *rows = (const Record *)(const void *)sorter->rows.data;
    SortedRun run = {.at = rows, .end = rows + sorter->rows.size / sizeof(Record)};
    if (!append(&sorter->runs, &run, sizeof run))
        return NO_MEMORY;
    sorter->heap = tracekit_calloc(RUN_COUNT(sorter), sizeof *sorter->heap);
    if (sorter->heap == NULL)
        return NO_MEMORY;
    for (size_t i = 0; i < RUN_COUNT(sorter); i++) {
        SortedRun *each = &RUNS(sorter)[i];
        if (each->left && (each->window = tracekit_calloc(WINDOW_RECORDS, sizeof(Record))) == NULL)
            return NO_MEMORY;
        outcome = fill_window(sorter, each);
        if (outcome != DONE)
            return outcome;
        if (each->at < each->end)
            sorter->heap[sorter->heap_size++] = i;
    }
    for (size_t i = sorter->heap_size / 2; i-- > 0;)
        sink(sorter, i);
    return DONE;
}

const Record *next_record(Sorter *sorter)
{
    while (sorter->heap_size) {
        SortedRun *run = &RUNS(sorter)[sorter->heap[0]];
        if (sorter->heap_size == 1 && run->window == NULL)
            return run->at < run->end ? run->at++ : NULL;
        /* Leave the last returned record only now, because this may refill its window. */
        if (!sorter->taken) {
            sorter->taken = 1;
            return run->at;
        }
        sorter->taken = 0;
        run->at++;
        sorter->outcome = fill_window(sorter, run);
        if (sorter->outcome != DONE)
            return NULL;
        if (run->at == run->end)
            sorter->heap[0] = sorter->heap[--sorter->heap_size];
        sink(sorter, 0);
    }
    return NULL;
}
