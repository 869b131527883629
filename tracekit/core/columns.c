/* Fills the columns of the event table from the events of a file. It takes a row or leaves it to Python, depending on the bytes of
   the event only. */

#define _GNU_SOURCE /* strtod_l */
#include "columns.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

#define KEPT_BYTES (16 << 20)

#define INTEGERS(table, column) ((int64_t *)self->tables[table].batch.data[column])
#define TEXTS(table, column) ((int32_t *)self->tables[table].batch.data[column])

const TableSpec table_specs[TABLE_COUNT] = {
    [EVENTS] = {"events", (const ColumnSpec[]){
        {"track", COLUMN_INTEGER, 0, 0}, {"category", COLUMN_TEXT, 1, 0}, {"name", COLUMN_TEXT, 0, 0}, {"phase", COLUMN_INTEGER, 0, 0},
        {"start_ns", COLUMN_INTEGER, 0, 0}, {"duration_ns", COLUMN_INTEGER, 1, 0}, {"depth", COLUMN_INTEGER, 1, 1},
        {"parent", COLUMN_INTEGER, 1, 1}, {"self_ns", COLUMN_INTEGER, 1, 1}, {"step_index", COLUMN_INTEGER, 1, 1},
        {"correlation", COLUMN_INTEGER, 1, 0}, {"flow", COLUMN_INTEGER, 1, 0}, {"stream", COLUMN_INTEGER, 1, 0},
        {"device", COLUMN_INTEGER, 1, 0}, {"bytes", COLUMN_INTEGER, 1, 0}, {"process_group", COLUMN_TEXT, 1, 0}}, 16},
    [COUNTERS] = {"counters", (const ColumnSpec[]){
        {"track", COLUMN_INTEGER, 0, 0}, {"name", COLUMN_TEXT, 0, 0}, {"series", COLUMN_TEXT, 0, 0},
        {"time_ns", COLUMN_INTEGER, 0, 0}, {"value", COLUMN_NUMBER, 0, 0}}, 5},
    [FLOWS] = {"flows", (const ColumnSpec[]){
        {"track", COLUMN_INTEGER, 0, 0}, {"phase", COLUMN_TEXT, 0, 0}, {"time_ns", COLUMN_INTEGER, 0, 0},
        {"category", COLUMN_TEXT, 1, 0}, {"name", COLUMN_TEXT, 0, 0}, {"id", COLUMN_INTEGER, 1, 0}}, 6},
    [ARGS] = {"args", (const ColumnSpec[]){{"id", COLUMN_INTEGER, 0, 0}, {"args", COLUMN_LONG_TEXT, 0, 0}}, 2},
};

/* The values of a row of events, beside its texts. */
typedef struct {
    int64_t track, phase, start, duration, correlation, flow, stream, device, bytes;
    int nests;
    int64_t begin; /* its number; NO_BEGIN for a whole slice */
} Row;

/* ---- Launches by correlation. ---- */

static size_t launch_slot(const Launch *launches, size_t room, uint64_t key)
{
    size_t slot = (size_t)(key * 0x9E3779B97F4A7C15u >> 32);
    while (launches[slot & (room - 1)].correlation && launches[slot & (room - 1)].correlation != key)
        slot++;
    return slot & (room - 1);
}

static int note_launch(Columns *self, int64_t correlation, int64_t start)
{
    uint64_t key = (uint64_t)correlation + 1;
    if (key == 0)
        return 1;
    if (self->launch_count >= self->launch_room / 2 && self->launch_count < MAX_LAUNCHES) {
        size_t room = self->launch_room ? self->launch_room * 2 : 1024;
        Launch *grown = tracekit_calloc(room, sizeof *grown);
        if (grown == NULL)
            return 0;
        for (size_t i = 0; i < self->launch_room; i++)
            if (self->launches[i].correlation)
                grown[launch_slot(grown, room, self->launches[i].correlation)] = self->launches[i];
        free(self->launches);
        self->launches = grown;
        self->launch_room = room;
    }
    Launch *launch = &self->launches[launch_slot(self->launches, self->launch_room, key)];
    if (launch->correlation == 0 && self->launch_count < MAX_LAUNCHES) {
        *launch = (Launch){key, start};
        self->launch_count++;
    }
    return 1;
}

int64_t launch_start(const Columns *self, int64_t correlation, int64_t otherwise)
{
    uint64_t key = (uint64_t)correlation + 1;
    if (self->launch_room == 0 || key == 0)
        return otherwise;
    const Launch *launch = &self->launches[launch_slot(self->launches, self->launch_room, key)];
    return launch->correlation ? launch->start : otherwise;
}

static int is_gpu(const Columns *self, const char *text, size_t size)
{
    for (int i = 0; i < self->gpu_count; i++)
        if (self->gpu[i].size == size && memcmp(self->gpu[i].text, text, size) == 0)
            return 1;
    return 0;
}

/* ---- Rows. ---- */

static enum outcome end_table_row(Columns *self, enum table_number number)
{
    BatchTable *table = &self->tables[number];
    int is_full = end_row(table);
    for (int i = 0; i < table->batch.spec->count && !is_full; i++)
        is_full = table->batch.texts[i].bytes.size >= MAX_TEXT_BYTES;
    return is_full ? store_batch(table, &self->scratch, self->stored_bytes >= self->max_bytes, &self->stored_bytes) : DONE;
}

/* Interns a text; the row that is filled next refers to it. `at` NULL: it has none. */
static int set_text(Columns *self, enum table_number table, int column, const char *at, size_t size)
{
    BatchTable *columns = &self->tables[table];
    int32_t number = at == NULL ? NO_TEXT : intern_column(&columns->batch, column, at, size);
    if (at != NULL && number < 0)
        return 0;
    TEXTS(table, column)[columns->batch.rows] = number;
    return 1;
}

/* Returns 1 for events whose arguments answer questions: see `has_key_args` in tracekit.table.plain_columns. */
static int has_key_args(Span name, int on_gpu, const char *args, size_t size)
{
    static const char *const beginnings[] = {"nccl", "gloo:", "record_param_comms", "[memory]", "tracekit.gap"};
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++) {
        size_t length = strlen(beginnings[i]);
        if ((size_t)(name.end - name.at) >= length && memcmp(name.at, beginnings[i], length) == 0)
            return 1;
    }
    return on_gpu && memmem(args, size, "\"Collective name\"", 17) != NULL;
}

static enum outcome add_args(Columns *self, uint64_t row, const char *args, size_t size)
{
    BatchTable *table = &self->tables[ARGS];
    if (args == NULL)
        return DONE;
    if (intern_column(&table->batch, A_ARGS, args, size) < 0)
        return NO_MEMORY;
    INTEGERS(ARGS, A_ROW)[table->batch.rows] = (int64_t)row;
    return end_table_row(self, ARGS);
}

/* Adds a row of events, whose texts are set. */
static enum outcome add_event_row(Columns *self, const Row *row, int on_gpu, const char *args, size_t args_size)
{
    BatchTable *table = &self->tables[EVENTS];
    size_t at = table->batch.rows;
    uint64_t number = table->rows + at;
    const struct {
        int column;
        int64_t value;
    } values[] = {{E_TRACK, row->track}, {E_PHASE, row->phase}, {E_START, row->start}, {E_DURATION, row->duration}, {E_CORRELATION, row->correlation},
        {E_FLOW, row->flow}, {E_STREAM, row->stream}, {E_DEVICE, row->device}, {E_BYTES, row->bytes}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        INTEGERS(EVENTS, values[i].column)[at] = values[i].value;
    const int64_t end = row->duration == NO_VALUE ? row->start : row->start + row->duration;
    self->first = row->start < self->first ? row->start : self->first;
    self->last = end > self->last ? end : self->last;
    if (row->correlation != NO_VALUE && !on_gpu && row->nests && !note_launch(self, row->correlation, row->start))
        return NO_MEMORY;
    enum outcome outcome = add_args(self, number, args, args_size);
    if (outcome == DONE && row->nests)
        outcome = add_slice(&self->nesting, (uint64_t)row->track, row->start, row->duration, number, row->begin);
    return outcome == DONE ? end_table_row(self, EVENTS) : outcome;
}

/* Returns the text of a JSON string without surrogates, which was read before; its `at` is NULL without memory. */
static Span text_of(Columns *self, Span string)
{
    const char *p = string.at + 1, *end = string.end - 1;
    if (memchr(p, '\\', (size_t)(end - p)) == NULL)
        return (Span){p, end};
    self->unescaped.size = 0;
    if (!reserve(&self->unescaped, (size_t)(end - p) + 1))
        return (Span){NULL, NULL};
    return (Span){self->unescaped.data, write_unescaped(self->unescaped.data, p, end)};
}

static int set_string(Columns *self, enum table_number table, int column, Span string)
{
    Span text = text_of(self, string);
    return text.at != NULL && set_text(self, table, column, text.at, (size_t)(text.end - text.at));
}

/* Returns an integer in arguments; NO_VALUE for none, or anything else. */
static int64_t arg_integer(const Reader *r, enum arg_field field)
{
    if (!(r->noted_args >> field & 1))
        return NO_VALUE;
    const char *p = r->args_at[field], *digits;
    int64_t number = 0;
    digits = p += *p == '-';
    while (is_digit(*p) && p - digits <= 18)
        number = number * 10 + (*p++ - '0');
    if (p == digits || p - digits > 18 || *p == '.' || *p == 'e' || *p == 'E')
        return NO_VALUE;
    return digits > r->args_at[field] && digits[-1] == '-' ? -number : number;
}

static int64_t track_number_of(Columns *self, const Event *e)
{
    int64_t number = track_of(&self->tracks, e);
    return number < 0 ? add_track(&self->tracks, e->pid, e->tid) : number;
}

/* Adds the row of an event that was read last; `duration` NO_VALUE: of an instant; `begin`: see Row. */
static enum outcome add_slice_or_instant(Columns *self, const Event *e, int64_t duration, int64_t begin)
{
    const Reader *r = &self->reader;
    const int has_args = (e->seen & F_ARGS) != 0, slice = duration != NO_VALUE;
    Row row = {.phase = slice ? 'X' : 'i', .start = e->ts_ns, .duration = duration, .correlation = NO_VALUE, .flow = NO_VALUE,
               .stream = NO_VALUE, .device = NO_VALUE, .bytes = NO_VALUE, .nests = slice, .begin = begin};
    row.track = track_number_of(self, e);
    if (row.track < 0 || !set_string(self, EVENTS, E_NAME, e->name))
        return NO_MEMORY;
    int on_gpu = 0, done;
    if (e->seen & F_CAT) {
        done = set_string(self, EVENTS, E_CATEGORY, e->cat);
        on_gpu = is_gpu(self, e->cat.at + 1, (size_t)(e->cat.end - e->cat.at) - 2);
    } else {
        done = set_text(self, EVENTS, E_CATEGORY, NULL, 0);
    }
    Span group = {NULL, NULL};
    if (has_args && r->noted_args) {
        row.correlation = arg_integer(r, ARG_CORRELATION);
        row.stream = arg_integer(r, ARG_STREAM);
        row.device = arg_integer(r, ARG_DEVICE);
        row.bytes = arg_integer(r, ARG_BYTES);
        if ((r->noted_args >> ARG_GROUP & 1) && *r->args_at[ARG_GROUP] == '"') {
            group.at = r->args_at[ARG_GROUP];
            for (group.end = group.at + 1; *group.end != '"'; group.end++)
                group.end += *group.end == '\\';
            group.end++;
        }
    }
    done = done && (group.at == NULL ? set_text(self, EVENTS, E_GROUP, NULL, 0) : set_string(self, EVENTS, E_GROUP, group));
    if (!done)
        return NO_MEMORY;
    Span kept = has_args && self->keeps_args ? e->args : (Span){NULL, NULL};
    if (kept.at != NULL && self->keeps_args == KEY_ARGS && !has_key_args(text_of(self, e->name), on_gpu, kept.at, (size_t)(kept.end - kept.at)))
        kept = (Span){NULL, NULL};
    return add_event_row(self, &row, on_gpu, kept.at, (size_t)(kept.end - kept.at));
}

static enum outcome add_flow(Columns *self, const Event *e)
{
    BatchTable *table = &self->tables[FLOWS];
    int64_t track = track_number_of(self, e);
    if (track < 0 || !set_string(self, FLOWS, F_NAME_TEXT, e->name) || !set_string(self, FLOWS, F_CATEGORY, e->cat)
        || !set_text(self, FLOWS, F_PHASE, &e->phase, 1))
        return NO_MEMORY;
    INTEGERS(FLOWS, F_TRACK)[table->batch.rows] = track;
    INTEGERS(FLOWS, F_TIME)[table->batch.rows] = e->ts_ns;
    INTEGERS(FLOWS, F_IDENTITY)[table->batch.rows] = (int64_t)e->id_number;
    return end_table_row(self, FLOWS);
}

/* ---- The pass over the text. ---- */

static int append_noted(Buffer *buffer, int64_t number, const char *at, const char *end)
{
    size_t size = (size_t)(end - at);
    if (!reserve(buffer, sizeof number + sizeof size + size))
        return 0;
    append(buffer, &number, sizeof number);
    append(buffer, &size, sizeof size);
    append(buffer, at, size);
    return 1;
}

/* Tells whether a slice may be a training step or an evaluation: Python looks at it. See tracekit.table.steps. */
INLINE int may_be_step(const Event *e)
{
    return begins(e->name, "\"ProfilerStep#", 14) || IS_TEXT(e->name, "\"batch\"") || IS_TEXT(e->name, "\"evaluation\"")
        || IS_TEXT(e->name, "\"validation\"");
}

static enum stop stop_of(enum outcome outcome)
{
    return outcome == DONE ? STOP_NONE : outcome == NO_MEMORY ? STOP_MEMORY : STOP_FILE;
}

/* ---- Counters. ---- */

static locale_t number_locale; /* where a point begins decimals, whatever the program has set */

/* Adds a row for each value of a counter, whose arguments `is_plain_counter` accepts. */
static enum stop add_counter(Columns *self, const Event *e)
{
    BatchTable *table = &self->tables[COUNTERS];
    Reader *r = &self->reader;
    Span keys[MAX_SERIES];
    const char *values[MAX_SERIES];
    int count = 0;
    const char *p = e->args.at;
    do {
        const char *key = skip_space(r, p + 1), *quote = find_string_end(r, key);
        if (count == MAX_SERIES)
            return STOP_ODD;
        for (int i = 0; i < count; i++) /* of equal keys, the last counts */
            if (keys[i].end - keys[i].at == quote - key - 1 && memcmp(keys[i].at, key + 1, (size_t)(quote - key - 1)) == 0)
                return STOP_ODD;
        keys[count] = (Span){key + 1, quote};
        values[count++] = p = skip_space(r, skip_space(r, quote + 1) + 1);
        p = skip_space(r, skip_number(p));
    } while (*p == ',');
    int64_t track = track_number_of(self, e);
    for (int i = 0; i < count; i++) {
        size_t row = table->batch.rows;
        if (track < 0 || !set_string(self, COUNTERS, C_NAME, e->name)
            || !set_text(self, COUNTERS, C_SERIES, keys[i].at, (size_t)(keys[i].end - keys[i].at)))
            return STOP_MEMORY;
        INTEGERS(COUNTERS, C_TRACK)[row] = track;
        INTEGERS(COUNTERS, C_TIME)[row] = e->ts_ns;
        ((double *)table->batch.data[C_VALUE])[row] = strtod_l(values[i], NULL, number_locale);
        enum outcome outcome = end_table_row(self, COUNTERS);
        if (outcome != DONE)
            return stop_of(outcome);
    }
    return STOP_NONE;
}

/* ---- Begins and ends. ---- */

#define BEGINS(stack) ((Begin *)(void *)(stack)->data)

static Buffer *begins_of(Columns *self, int64_t track)
{
    while (self->begun.size / sizeof(Buffer) <= (size_t)track)
        if (!append(&self->begun, &(Buffer){NULL, 0, 0}, sizeof(Buffer)))
            return NULL;
    return (Buffer *)(void *)self->begun.data + track;
}

static int push_begin(Columns *self, int64_t track, Begin begin, const char *text)
{
    Buffer *stack = begins_of(self, track);
    begin.number = self->begins++;
    begin.text = tracekit_calloc(1, begin.size + 1); /* a NUL ends it, as the reader wants */
    if (stack == NULL || begin.text == NULL || !append(stack, &begin, sizeof begin)) {
        free(begin.text);
        return 0;
    }
    memcpy(begin.text, text, begin.size);
    self->begun_count++;
    return 1;
}

/* Finds the innermost slice that an end with a name and category closes, either of which may be missing: see `OpenSlices` in
   tracekit.traces.pairs. */
static Begin *find_begin(Columns *self, int64_t track, Span name, Span category)
{
    Buffer *stack = begins_of(self, track);
    size_t count = stack == NULL ? 0 : stack->size / sizeof(Begin);
    const size_t name_size = (size_t)(name.end - name.at), category_size = (size_t)(category.end - category.at);
    for (size_t i = count, left = MAX_SEARCH; i-- > 0 && left-- > 0;) {
        Begin *begin = &BEGINS(stack)[i];
        const char *own_name = begin->text + begin->name_at, *own_category = begin->text + begin->category_at;
        if ((name_size == 0 || (name_size == begin->name_size && memcmp(name.at, own_name, name_size) == 0))
            && (category_size == 0 || (category_size == begin->category_size && memcmp(category.at, own_category, category_size) == 0)))
            return begin;
    }
    return NULL;
}

static void remove_begin(Columns *self, int64_t track, Begin *begin)
{
    Buffer *stack = begins_of(self, track);
    free(begin->text);
    memmove(begin, begin + 1, (size_t)(BEGINS(stack) + stack->size / sizeof(Begin) - begin - 1) * sizeof(Begin));
    stack->size -= sizeof(Begin);
    self->begun_count--;
}

static enum stop add_begin(Columns *self, const char *p, const char *behind, const Event *e)
{
    if (self->begun_count >= MAX_BEGUN)
        return STOP_ODD;
    Begin begin = {.size = (size_t)(behind - p), .start = e->ts_ns, .name_at = (size_t)(e->name.at - p),
                   .name_size = (size_t)(e->name.end - e->name.at)};
    if (e->seen & F_CAT) {
        begin.category_at = (size_t)(e->cat.at - p);
        begin.category_size = (size_t)(e->cat.end - e->cat.at);
    }
    int64_t track = track_number_of(self, e);
    return track >= 0 && push_begin(self, track, begin, p) ? STOP_NONE : STOP_MEMORY;
}

static enum stop add_end(Columns *self, const Event *e)
{
    const Span none = {e->pid.at, e->pid.at};
    int64_t track = track_number_of(self, e);
    if (track < 0)
        return STOP_MEMORY;
    Begin *found = find_begin(self, track, e->seen & F_NAME ? e->name : none, e->seen & F_CAT ? e->cat : none);
    if (found == NULL)
        return STOP_NONE;
    const int64_t duration = e->ts_ns - found->start;
    if (found->odd || duration < 0 || duration >= MAX_TIME)
        return STOP_ODD;
    /* The reader goes back to the text of the begin; what it knows of places and keys holds there too. */
    Begin begin = *found;
    Reader *reader = &self->reader;
    const char *end = reader->end;
    Event first;
    reader->end = begin.text + begin.size;
    enum outcome outcome = read_event(reader, begin.text, &first, NULL) == NULL ? NO_MEMORY : DONE;
    if (outcome == DONE && may_be_step(&first) && !append_noted(&self->noted, duration, begin.text, reader->end))
        outcome = NO_MEMORY;
    if (outcome == DONE)
        outcome = add_slice_or_instant(self, &first, duration, begin.number);
    reader->end = end;
    remove_begin(self, track, found);
    return stop_of(outcome);
}

/* Adds the rows of an event, or says why not. */
static enum stop add_event(void *object, const char *p, const char *behind, const Event *e)
{
    Columns *self = object;
    const uint32_t needed = F_PH | F_PID | F_TID | F_TS | (e->phase == 'E' ? 0 : F_NAME);
    if (e->phase == 'M')
        return append_noted(&self->metadata, 0, p, behind) ? STOP_NONE : STOP_MEMORY;
    if ((e->seen & needed) != needed || e->odd || (e->seen & F_BIND_ID) || e->ts_ns >= MAX_TIME || e->ts_ns <= -MAX_TIME)
        return STOP_ODD;
    switch (e->phase) {
    case 'X':
        if (!(e->seen & F_DUR) || !e->dur_usable || e->dur_ns >= MAX_TIME)
            return STOP_ODD;
        if (may_be_step(e) && !append_noted(&self->noted, e->dur_ns, p, behind))
            return STOP_MEMORY;
        return stop_of(add_slice_or_instant(self, e, e->dur_ns, NO_BEGIN));
    case 'i': case 'I':
        return stop_of(add_slice_or_instant(self, e, NO_VALUE, NO_BEGIN));
    case 'B':
        return add_begin(self, p, behind, e);
    case 'E':
        return add_end(self, e);
    case 'C':
        return (e->seen & F_ARGS) && is_plain_counter(&self->reader, e->args.at) ? add_counter(self, e) : STOP_ODD;
    case 's': case 't': case 'f':
        if ((e->seen & (F_ID | F_CAT)) != (F_ID | F_CAT) || e->id_kind == ID_STRING || e->id_kind == ID_ODD || e->id_number > INT64_MAX)
            return STOP_ODD;
        return stop_of(add_flow(self, e));
    default:
        return STOP_ODD;
    }
}

/* ---- The rows when they are read. ---- */

static int64_t step_at(const Columns *self, int64_t track, int64_t time, size_t *last)
{
    const Step *steps = (const Step *)(const void *)self->steps.data;
    size_t count = self->steps.size / sizeof *steps;
    if (count == 0 || (size_t)track >= self->groups.size / sizeof(int64_t))
        return NO_VALUE;
    int64_t group = ((const int64_t *)(const void *)self->groups.data)[track];
    const Step *step = &steps[*last];
    if (step->group != group || time < step->start || time >= step->end) {
        size_t low = 0, high = count;
        while (low < high) { /* the first step behind that time */
            size_t middle = (low + high) / 2;
            if (steps[middle].group < group || (steps[middle].group == group && steps[middle].start <= time))
                low = middle + 1;
            else
                high = middle;
        }
        if (low == 0)
            return NO_VALUE;
        step = &steps[low - 1];
        if (step->group != group || time >= step->end)
            return NO_VALUE;
        *last = low - 1;
    }
    return step->number;
}

static void fill_late(Columns *self, Block *block, int64_t *late[MAX_COLUMNS])
{
    const BlockColumn *columns = block->columns;
    const int64_t *tracks = (const int64_t *)(const void *)BLOCK_PART(block, columns[E_TRACK].data);
    const int64_t *starts = (const int64_t *)(const void *)BLOCK_PART(block, columns[E_START].data);
    const int64_t *correlations = (const int64_t *)(const void *)BLOCK_PART(block, columns[E_CORRELATION].data);
    const int has_launches = columns[E_CORRELATION].data && columns[E_CATEGORY].data;
    const int32_t *categories = (const int32_t *)(const void *)BLOCK_PART(block, columns[E_CATEGORY].data);
    const int32_t *offsets = (const int32_t *)(const void *)BLOCK_PART(block, columns[E_CATEGORY].offsets);
    const char *texts = BLOCK_PART(block, columns[E_CATEGORY].bytes);
    size_t last = 0;
    for (uint64_t i = 0; i < block->rows; i++) {
        Record found;
        int64_t time = starts[i];
        int is_slice = nested_row(&self->nesting, self->next_row++, &found);
        late[E_PARENT][i] = is_slice && found.words[1] ? (int64_t)found.words[1] - 1 : NO_VALUE;
        late[E_SELF][i] = is_slice ? (int64_t)found.words[2] : NO_VALUE;
        late[E_DEPTH][i] = is_slice ? (int64_t)found.words[3] : NO_VALUE;
        if (has_launches && correlations[i] != NO_VALUE && categories[i] >= 0
            && is_gpu(self, texts + offsets[categories[i]], (size_t)(offsets[categories[i] + 1] - offsets[categories[i]])))
            time = launch_start(self, correlations[i], time);
        late[E_STEP][i] = step_at(self, tracks[i], time, &last);
    }
}

Block *next_columns(Columns *self, enum table_number table, int64_t *late[MAX_COLUMNS], enum outcome *outcome)
{
    Block *block = take_block(&self->tables[table], self->next_block[table]++, &self->scratch, outcome);
    if (block != NULL && table == EVENTS) {
        fill_late(self, block, late);
        *outcome = self->nesting.rows.outcome;
    }
    return block;
}

/* ---- The object. ---- */

static PyObject *refuse(Columns *self, PyObject *type, const char *why)
{
    self->busy = 0;
    PyErr_SetString(type, why);
    return NULL;
}

static PyObject *fail(Columns *self, enum outcome outcome)
{
    self->busy = 0;
    if (outcome == NO_MEMORY)
        return PyErr_NoMemory();
    errno = self->scratch.error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *Columns_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"", "", "", "", NULL};
    PyObject *categories;
    char folder[MAX_FOLDER];
    unsigned long long max_bytes;
    int keeps_args;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O&Ki", names, &PyTuple_Type, &categories, convert_folder, folder, &max_bytes, &keeps_args))
        return NULL;
    if (PyTuple_Size(categories) > MAX_CATEGORIES) {
        PyErr_SetString(PyExc_ValueError, "too many categories");
        return NULL;
    }
    if (number_locale == (locale_t)0 && (number_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0)) == (locale_t)0)
        return PyErr_NoMemory();
    /* glibc then keeps up to twice as much free memory: windows and batches come and go, and touching new pages each time takes a
       third of the time. */
    void *volatile kept = tracekit_calloc(1, KEPT_BYTES);
    free(kept);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Columns *self = (Columns *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->gpu_count = (int)PyTuple_Size(categories);
    for (int i = 0; i < self->gpu_count; i++) {
        char *text;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(categories, i), &text, &size) < 0 || size > MAX_CATEGORY) {
            Py_DECREF(self);
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "a category is too long");
            return NULL;
        }
        memcpy(self->gpu[i].text, text, (size_t)size);
        self->gpu[i].size = (size_t)size;
    }
    snprintf(self->scratch.folder, sizeof self->scratch.folder, "%s", folder);
    self->max_bytes = max_bytes;
    self->first = INT64_MAX;
    self->last = INT64_MIN;
    self->keeps_args = keeps_args;
    self->reader.wants_args = 1;
    for (int i = 0; i < KNOWN_PLACES; i++)
        self->reader.known.places[i].track = -1;
    open_nesting(&self->nesting, &self->scratch, max_bytes);
    for (int i = 0; i < TABLE_COUNT; i++)
        if (!open_batches(&self->tables[i], &table_specs[i])) {
            Py_DECREF(self);
            return PyErr_NoMemory();
        }
    return (PyObject *)self;
}

static void Columns_dealloc(PyObject *object)
{
    Columns *self = (Columns *)object;
    for (int i = 0; i < TABLE_COUNT; i++)
        close_batches(&self->tables[i]);
    close_nesting(&self->nesting);
    for (size_t i = 0; i < self->begun.size / sizeof(Buffer); i++) {
        Buffer *stack = (Buffer *)(void *)self->begun.data + i;
        for (size_t at = 0; at < stack->size / sizeof(Begin); at++)
            free(BEGINS(stack)[at].text);
        free_buffer(stack);
    }
    free_buffer(&self->begun);
    free_table(&self->tracks);
    free_buffer(&self->unescaped);
    free_buffer(&self->metadata);
    free_buffer(&self->noted);
    free_buffer(&self->groups);
    free_buffer(&self->steps);
    free(self->launches);
    close_scratch(&self->scratch);
    free_object(object);
}

static PyObject *Columns_scan(PyObject *object, PyObject *args)
{
    Columns *self = (Columns *)object;
    Window window;
    if (!parse_window(args, &window) || !enter(&self->busy))
        return NULL;
    if (self->finished)
        return refuse(self, PyExc_ValueError, "it is finished");
    enum stop stop;
    Py_BEGIN_ALLOW_THREADS
    stop = scan_window(&self->reader, &self->place, &window, add_event, self);
    Py_END_ALLOW_THREADS
    if (stop == STOP_MEMORY || stop == STOP_FILE)
        return fail(self, stop == STOP_MEMORY ? NO_MEMORY : FILE_ERROR);
    self->busy = 0;
    return Py_BuildValue("in", (int)stop, (Py_ssize_t)(window.at - window.text));
}

static PyObject *Columns_passed(PyObject *object, PyObject *unused)
{
    (void)unused;
    Columns *self = (Columns *)object;
    if (!enter(&self->busy))
        return NULL;
    self->place = BEHIND_EVENT;
    self->busy = 0;
    Py_RETURN_NONE;
}

static PyObject *Columns_track(PyObject *object, PyObject *args)
{
    Columns *self = (Columns *)object;
    Span pid, tid;
    Py_ssize_t pid_size, tid_size;
    if (!PyArg_ParseTuple(args, "y#y#", &pid.at, &pid_size, &tid.at, &tid_size) || !enter(&self->busy))
        return NULL;
    pid.end = pid.at + pid_size;
    tid.end = tid.at + tid_size;
    int64_t number = find_track(&self->tracks, pid, tid);
    if (number < 0)
        number = add_track(&self->tracks, pid, tid);
    if (number < 0)
        return fail(self, NO_MEMORY);
    self->busy = 0;
    return PyLong_FromLongLong(number);
}

static PyObject *Columns_tracks(PyObject *object, PyObject *unused)
{
    (void)unused;
    Columns *self = (Columns *)object;
    if (!enter(&self->busy))
        return NULL;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < TRACK_COUNT(&self->tracks); i++) {
        const Track *track = TRACK(&self->tracks, i);
        const char *key = self->tracks.keys.data + track->key;
        PyObject *pair = Py_BuildValue("y#y#", key, (Py_ssize_t)track->pid_size, key + track->pid_size, (Py_ssize_t)track->tid_size);
        if (pair == NULL || PyList_Append(list, pair) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    self->busy = 0;
    return list;
}

typedef struct {
    const char *at;
    Py_ssize_t size;
} Text;

static int set_given(Columns *self, enum table_number table, int column, Text text)
{
    return set_text(self, table, column, text.at, (size_t)text.size);
}

static PyObject *Columns_add_event(PyObject *object, PyObject *args)
{
    Columns *self = (Columns *)object;
    Row row;
    Text category, name, group, text;
    long long track, phase, start, duration, correlation, flow, stream, device, bytes, begin;
    if (!PyArg_ParseTuple(args, "Lz#y#LLLLLLLLz#z#pL", &track, &category.at, &category.size, &name.at, &name.size, &phase,
                          &start, &duration, &correlation, &flow, &stream, &device, &bytes, &group.at, &group.size, &text.at, &text.size,
                          &row.nests, &begin) || !enter(&self->busy))
        return NULL;
    row = (Row){track, phase, start, duration, correlation, flow, stream, device, bytes, row.nests, begin};
    if (self->finished || track < 0 || track >= TRACK_COUNT(&self->tracks) || start <= -MAX_TIME || start >= MAX_TIME
        || (duration != NO_VALUE && (duration < 0 || duration >= MAX_TIME)) || (row.nests && duration == NO_VALUE) || begin < NO_BEGIN)
        return refuse(self, PyExc_ValueError, "there is no such track or time");
    int done = set_given(self, EVENTS, E_CATEGORY, category) && set_given(self, EVENTS, E_NAME, name)
        && set_given(self, EVENTS, E_GROUP, group);
    int on_gpu = category.at != NULL && is_gpu(self, category.at, (size_t)category.size);
    uint64_t number = self->tables[EVENTS].rows + self->tables[EVENTS].batch.rows;
    if (text.at != NULL && (self->keeps_args == NO_ARGS
            || (self->keeps_args == KEY_ARGS
                && !has_key_args((Span){name.at, name.at + name.size}, on_gpu, text.at, (size_t)text.size))))
        text.at = NULL;
    enum outcome outcome = done ? add_event_row(self, &row, on_gpu, text.at, (size_t)text.size) : NO_MEMORY;
    if (outcome != DONE)
        return fail(self, outcome);
    self->busy = 0;
    return PyLong_FromUnsignedLongLong(number);
}

static PyObject *Columns_add_slices(PyObject *object, PyObject *args)
{
    Columns *self = (Columns *)object;
    const char *tracks, *starts, *durations;
    Py_ssize_t size, starts_size, durations_size;
    if (!PyArg_ParseTuple(args, "y#y#y#", &tracks, &size, &starts, &starts_size, &durations, &durations_size) || !enter(&self->busy))
        return NULL;
    if (self->finished || size != starts_size || size != durations_size || size % (Py_ssize_t)sizeof(int64_t))
        return refuse(self, PyExc_ValueError, "the arrays differ in size, or it is finished");
    enum outcome outcome = DONE;
    int refused = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 0; at < size && outcome == DONE; at += (Py_ssize_t)sizeof(int64_t)) {
        Row row = {.phase = 'X', .correlation = NO_VALUE, .flow = NO_VALUE, .stream = NO_VALUE, .device = NO_VALUE, .bytes = NO_VALUE,
                   .nests = 1, .begin = NO_BEGIN};
        memcpy(&row.track, tracks + at, sizeof row.track);
        memcpy(&row.start, starts + at, sizeof row.start);
        memcpy(&row.duration, durations + at, sizeof row.duration);
        refused = row.track < 0 || row.track >= TRACK_COUNT(&self->tracks) || row.start <= -MAX_TIME || row.start >= MAX_TIME
            || row.duration < 0 || row.duration >= MAX_TIME;
        if (refused)
            break;
        int done = set_text(self, EVENTS, E_CATEGORY, NULL, 0) && set_text(self, EVENTS, E_NAME, "", 0)
            && set_text(self, EVENTS, E_GROUP, NULL, 0);
        outcome = done ? add_event_row(self, &row, 0, NULL, 0) : NO_MEMORY;
    }
    Py_END_ALLOW_THREADS
    if (refused)
        return refuse(self, PyExc_ValueError, "there is no such track or time");
    if (outcome != DONE)
        return fail(self, outcome);
    self->busy = 0;
    Py_RETURN_NONE;
}

static PyObject *Columns_begin(PyObject *object, PyObject *args)
{
    Columns *self = (Columns *)object;
    long long track, start;
    Text name, category, text;
    if (!PyArg_ParseTuple(args, "LLy#y#y#", &track, &start, &name.at, &name.size, &category.at, &category.size, &text.at, &text.size)
        || !enter(&self->busy))
        return NULL;
    if (self->finished || track < 0 || track >= TRACK_COUNT(&self->tracks))
        return refuse(self, PyExc_ValueError, "there is no such track");
    int has_room = self->begun_count < MAX_BEGUN;
    if (has_room) {
        /* The name and category stand behind the text of the event. */
        size_t size = (size_t)text.size, name_size = (size_t)name.size, category_size = (size_t)category.size;
        Begin begin = {.size = size + name_size + category_size, .start = start, .name_at = size, .name_size = name_size,
                       .category_at = size + name_size, .category_size = category_size, .odd = 1};
        self->unescaped.size = 0;
        if (!append(&self->unescaped, text.at, size) || !append(&self->unescaped, name.at, name_size)
            || !append(&self->unescaped, category.at, category_size) || !push_begin(self, track, begin, self->unescaped.data))
            return fail(self, NO_MEMORY);
    }
    self->busy = 0;
    return PyBool_FromLong(has_room);
}

/* Returns the text of the event that began a slice. */
static PyObject *text_of_begin(const Begin *begin)
{
    return PyBytes_FromStringAndSize(begin->text, (Py_ssize_t)(begin->odd ? begin->name_at : begin->size));
}

static PyObject *Columns_end(PyObject *object, PyObject *args)
{
    Columns *self = (Columns *)object;
    long long track;
    Text name, category;
    if (!PyArg_ParseTuple(args, "Ly#y#", &track, &name.at, &name.size, &category.at, &category.size) || !enter(&self->busy))
        return NULL;
    if (self->finished || track < 0 || track >= TRACK_COUNT(&self->tracks))
        return refuse(self, PyExc_ValueError, "there is no such track");
    Begin *begin = find_begin(self, track, (Span){name.at, name.at + name.size}, (Span){category.at, category.at + category.size});
    if (begin == NULL) {
        self->busy = 0;
        Py_RETURN_NONE;
    }
    PyObject *text = text_of_begin(begin), *pair = text == NULL ? NULL : Py_BuildValue("NL", text, (long long)begin->number);
    if (pair != NULL)
        remove_begin(self, track, begin);
    self->busy = 0;
    return pair;
}

static PyObject *Columns_begun(PyObject *object, PyObject *unused)
{
    (void)unused;
    Columns *self = (Columns *)object;
    if (!enter(&self->busy))
        return NULL;
    PyObject *list = PyList_New(0);
    for (size_t track = 0; list != NULL && track < self->begun.size / sizeof(Buffer); track++) {
        Buffer *stack = (Buffer *)(void *)self->begun.data + track;
        for (size_t i = 0; list != NULL && i < stack->size / sizeof(Begin); i++) {
            PyObject *text = text_of_begin(&BEGINS(stack)[i]);
            PyObject *pair = text == NULL ? NULL : Py_BuildValue("nN", (Py_ssize_t)track, text);
            if (pair == NULL || PyList_Append(list, pair) < 0)
                Py_CLEAR(list);
            Py_XDECREF(pair);
        }
    }
    self->busy = 0;
    return list;
}

static PyObject *Columns_add_counter(PyObject *object, PyObject *args)
{
    Columns *self = (Columns *)object;
    Text name, series;
    long long track, time;
    double value;
    if (!PyArg_ParseTuple(args, "Ly#y#Ld", &track, &name.at, &name.size, &series.at, &series.size, &time, &value) || !enter(&self->busy))
        return NULL;
    if (self->finished)
        return refuse(self, PyExc_ValueError, "it is finished");
    size_t row = self->tables[COUNTERS].batch.rows;
    INTEGERS(COUNTERS, C_TRACK)[row] = track;
    INTEGERS(COUNTERS, C_TIME)[row] = time;
    ((double *)self->tables[COUNTERS].batch.data[C_VALUE])[row] = value;
    enum outcome outcome = NO_MEMORY;
    if (set_given(self, COUNTERS, C_NAME, name) && set_given(self, COUNTERS, C_SERIES, series))
        outcome = end_table_row(self, COUNTERS);
    if (outcome != DONE)
        return fail(self, outcome);
    self->busy = 0;
    Py_RETURN_NONE;
}

static PyObject *Columns_add_flow(PyObject *object, PyObject *args)
{
    Columns *self = (Columns *)object;
    Text phase, category, name;
    long long track, time, id;
    if (!PyArg_ParseTuple(args, "Ly#Lz#y#L", &track, &phase.at, &phase.size, &time, &category.at, &category.size, &name.at, &name.size, &id)
        || !enter(&self->busy))
        return NULL;
    if (self->finished)
        return refuse(self, PyExc_ValueError, "it is finished");
    size_t row = self->tables[FLOWS].batch.rows;
    INTEGERS(FLOWS, F_TRACK)[row] = track;
    INTEGERS(FLOWS, F_TIME)[row] = time;
    INTEGERS(FLOWS, F_IDENTITY)[row] = id;
    enum outcome outcome = NO_MEMORY;
    if (set_given(self, FLOWS, F_PHASE, phase) && set_given(self, FLOWS, F_CATEGORY, category) && set_given(self, FLOWS, F_NAME_TEXT, name))
        outcome = end_table_row(self, FLOWS);
    if (outcome != DONE)
        return fail(self, outcome);
    self->busy = 0;
    Py_RETURN_NONE;
}

/* Returns the texts of a buffer with their numbers, and empties it. */
static PyObject *take_noted(Buffer *buffer)
{
    PyObject *list = PyList_New(0);
    for (size_t at = 0; list != NULL && at < buffer->size;) {
        int64_t number;
        size_t size;
        memcpy(&number, buffer->data + at, sizeof number);
        memcpy(&size, buffer->data + at + sizeof number, sizeof size);
        at += sizeof number + sizeof size;
        PyObject *pair = Py_BuildValue("Ly#", (long long)number, buffer->data + at, (Py_ssize_t)size);
        if (pair == NULL || PyList_Append(list, pair) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
        at += size;
    }
    buffer->size = 0;
    return list;
}

static PyObject *Columns_metadata(PyObject *object, PyObject *unused)
{
    (void)unused;
    Columns *self = (Columns *)object;
    if (!enter(&self->busy))
        return NULL;
    PyObject *found = take_noted(&self->metadata);
    self->busy = 0;
    return found;
}

static PyObject *Columns_noted(PyObject *object, PyObject *unused)
{
    (void)unused;
    Columns *self = (Columns *)object;
    if (!enter(&self->busy))
        return NULL;
    PyObject *found = take_noted(&self->noted);
    self->busy = 0;
    return found;
}

static PyObject *Columns_finish(PyObject *object, PyObject *args)
{
    Columns *self = (Columns *)object;
    const char *groups, *steps;
    Py_ssize_t groups_size, steps_size;
    if (!PyArg_ParseTuple(args, "y#y#", &groups, &groups_size, &steps, &steps_size) || !enter(&self->busy))
        return NULL;
    if (self->finished || groups_size % (Py_ssize_t)sizeof(int64_t) || steps_size % (Py_ssize_t)sizeof(Step))
        return refuse(self, PyExc_ValueError, "it is finished, or these are no whole numbers");
    self->finished = 1;
    enum outcome outcome = NO_MEMORY;
    Py_BEGIN_ALLOW_THREADS
    if (append(&self->groups, groups, (size_t)groups_size) && append(&self->steps, steps, (size_t)steps_size))
        outcome = nest(&self->nesting);
    for (int i = 0; i < TABLE_COUNT && outcome == DONE; i++)
        outcome = store_batch(&self->tables[i], &self->scratch, self->stored_bytes >= self->max_bytes, &self->stored_bytes);
    Py_END_ALLOW_THREADS
    if (outcome != DONE)
        return fail(self, outcome);
    self->busy = 0;
    return Py_BuildValue("{sKsKsKsK}", "events", self->tables[EVENTS].rows, "counters", self->tables[COUNTERS].rows, "flows",
                         self->tables[FLOWS].rows, "args", self->tables[ARGS].rows);
}

static PyObject *Columns_span(PyObject *object, PyObject *unused)
{
    (void)unused;
    const Columns *self = (const Columns *)object;
    if (self->last < self->first)
        Py_RETURN_NONE;
    return Py_BuildValue("LL", (long long)self->first, (long long)self->last);
}

static PyObject *Columns_used(PyObject *object, PyObject *unused)
{
    (void)unused;
    PyObject *tables = PyDict_New();
    for (int i = 0; tables != NULL && i < TABLE_COUNT; i++) {
        const BatchTable *table = &((Columns *)object)->tables[i];
        PyObject *names = PyList_New(0);
        for (int column = 0; names != NULL && column < table_specs[i].count; column++) {
            if (!(table->used >> column & 1))
                continue;
            PyObject *name = PyUnicode_FromString(table_specs[i].columns[column].name);
            if (name == NULL || PyList_Append(names, name) < 0)
                Py_CLEAR(names);
            Py_XDECREF(name);
        }
        if (names == NULL || PyDict_SetItemString(tables, table_specs[i].name, names) < 0)
            Py_CLEAR(tables);
        Py_XDECREF(names);
    }
    return tables;
}

static PyMethodDef methods[] = {
    {"span", Columns_span, METH_NOARGS, "See _merge.pyi."},
    {"used", Columns_used, METH_NOARGS, "See _merge.pyi."},
    {"scan", Columns_scan, METH_VARARGS, "See _merge.pyi."},
    {"passed", Columns_passed, METH_NOARGS, "See _merge.pyi."},
    {"track", Columns_track, METH_VARARGS, "See _merge.pyi."},
    {"tracks", Columns_tracks, METH_NOARGS, "See _merge.pyi."},
    {"add_event", Columns_add_event, METH_VARARGS, "See _merge.pyi."},
    {"add_slices", Columns_add_slices, METH_VARARGS, "See _merge.pyi."},
    {"begin", Columns_begin, METH_VARARGS, "See _merge.pyi."},
    {"end", Columns_end, METH_VARARGS, "See _merge.pyi."},
    {"begun", Columns_begun, METH_NOARGS, "See _merge.pyi."},
    {"add_counter", Columns_add_counter, METH_VARARGS, "See _merge.pyi."},
    {"add_flow", Columns_add_flow, METH_VARARGS, "See _merge.pyi."},
    {"metadata", Columns_metadata, METH_NOARGS, "See _merge.pyi."},
    {"noted", Columns_noted, METH_NOARGS, "See _merge.pyi."},
    {"finish", Columns_finish, METH_VARARGS, "See _merge.pyi."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, (void *)Columns_new}, {Py_tp_dealloc, (void *)Columns_dealloc}, {Py_tp_methods, methods}, {0, NULL},
};
PyType_Spec columns_spec = {"tracekit.core._merge.Columns", sizeof(Columns), 0, Py_TPFLAGS_DEFAULT, slots};
