/* Tables as Arrow streams, by the C data interface: https://arrow.apache.org/docs/format/CDataInterface.html.

   A batch is one allocation with the arrays, their buffers and the block; it is freed when the last of its arrays is released. Callbacks
   hold the interpreter lock only to start the scan and to release it. */

#include "columns.h"

#include <errno.h>
#include <stdio.h>

struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

#define IS_NULLABLE 2

/* ---- Schemas: all static but the structs of children. ---- */

typedef struct {
    int references;
    struct ArrowSchema columns[MAX_COLUMNS], dictionaries[MAX_COLUMNS], *pointers[MAX_COLUMNS];
} SchemaParts;

static void release_schema(struct ArrowSchema *schema)
{
    SchemaParts *parts = schema->private_data;
    for (int64_t i = 0; i < schema->n_children; i++)
        if (schema->children[i]->release != NULL)
            schema->children[i]->release(schema->children[i]);
    if (schema->dictionary != NULL && schema->dictionary->release != NULL)
        schema->dictionary->release(schema->dictionary);
    schema->release = NULL;
    if (__atomic_sub_fetch(&parts->references, 1, __ATOMIC_ACQ_REL) == 0)
        free(parts);
}

static int fill_schema(const TableSpec *spec, struct ArrowSchema *out)
{
    SchemaParts *parts = tracekit_calloc(1, sizeof *parts);
    if (parts == NULL)
        return ENOMEM;
    static const char *const formats[] = {[COLUMN_INTEGER] = "l", [COLUMN_NUMBER] = "g", [COLUMN_TEXT] = "i", [COLUMN_LONG_TEXT] = "u"};
    parts->references = 1;
    for (int i = 0; i < spec->count; i++) {
        const ColumnSpec *column = &spec->columns[i];
        parts->pointers[i] = &parts->columns[i];
        parts->columns[i] = (struct ArrowSchema){.format = formats[column->kind], .name = column->name,
            .flags = column->is_nullable ? IS_NULLABLE : 0, .release = release_schema, .private_data = parts};
        parts->references++;
        if (column->kind != COLUMN_TEXT)
            continue;
        parts->dictionaries[i] = (struct ArrowSchema){.format = "u", .name = "", .release = release_schema, .private_data = parts};
        parts->columns[i].dictionary = &parts->dictionaries[i];
        parts->references++;
    }
    *out = (struct ArrowSchema){.format = "+s", .name = "", .n_children = spec->count, .children = parts->pointers,
        .release = release_schema, .private_data = parts};
    return 0;
}

/* ---- Batches. ---- */

typedef struct {
    int references;
    Block *block;
    int64_t *late[MAX_COLUMNS];
    unsigned char *validity[MAX_COLUMNS];
    const void *buffers[MAX_COLUMNS][3], *dictionary_buffers[MAX_COLUMNS][3], *no_buffer[1];
    struct ArrowArray columns[MAX_COLUMNS], dictionaries[MAX_COLUMNS], *pointers[MAX_COLUMNS];
} BatchParts;

static void free_parts(BatchParts *parts)
{
    free(parts->block);
    for (int i = 0; i < MAX_COLUMNS; i++) {
        free(parts->late[i]);
        free(parts->validity[i]);
    }
    free(parts);
}

static void release_array(struct ArrowArray *array)
{
    BatchParts *parts = array->private_data;
    for (int64_t i = 0; i < array->n_children; i++)
        if (array->children[i]->release != NULL)
            array->children[i]->release(array->children[i]);
    if (array->dictionary != NULL && array->dictionary->release != NULL)
        array->dictionary->release(array->dictionary);
    array->release = NULL;
    if (__atomic_sub_fetch(&parts->references, 1, __ATOMIC_ACQ_REL) == 0)
        free_parts(parts);
}

/* Makes a bitmap of the values that are not NULL, where some are; returns their number, -1 without memory. */
static int64_t find_nulls(BatchParts *parts, int column, enum column_kind kind, void *data)
{
    const uint64_t rows = parts->block->rows;
    int64_t nulls = 0, *integers = data;
    int32_t *texts = data;
    for (uint64_t i = 0; i < rows; i++)
        nulls += kind == COLUMN_TEXT ? texts[i] == NO_TEXT : integers[i] == NO_VALUE;
    if (nulls == 0)
        return 0;
    unsigned char *bits = parts->validity[column] = tracekit_calloc(rows / 8 + 8, 1);
    if (bits == NULL)
        return -1;
    for (uint64_t i = 0; i < rows; i++) {
        int is_null = kind == COLUMN_TEXT ? texts[i] == NO_TEXT : integers[i] == NO_VALUE;
        if (!is_null)
            bits[i / 8] |= (unsigned char)(1u << i % 8);
        else if (kind == COLUMN_TEXT)
            texts[i] = 0;
        else
            integers[i] = 0;
    }
    return nulls;
}

/* The values and the bitmap of a column that is NULL everywhere, and its dictionary of one empty text. */
static const int64_t zeros[BATCH_ROWS];

static int fill_column(BatchParts *parts, const ColumnSpec *spec, int column)
{
    Block *block = parts->block;
    const BlockColumn *at = &block->columns[column];
    const int is_long = spec->kind == COLUMN_LONG_TEXT, is_absent = !spec->is_late && !is_long && at->data == 0;
    const void *data = spec->is_late ? (void *)parts->late[column] : BLOCK_PART(block, at->data);
    int64_t nulls = is_absent ? (int64_t)block->rows : 0;
    if (is_absent)
        data = zeros;
    else if (spec->is_nullable)
        nulls = find_nulls(parts, column, spec->kind, (void *)data);
    if (nulls < 0)
        return 0;
    const void **buffers = parts->buffers[column];
    buffers[0] = is_absent ? (const void *)zeros : parts->validity[column];
    buffers[1] = is_long ? BLOCK_PART(block, at->offsets) : data;
    buffers[2] = is_long ? BLOCK_PART(block, at->bytes) : NULL;
    struct ArrowArray *array = parts->pointers[column] = &parts->columns[column];
    *array = (struct ArrowArray){.length = (int64_t)block->rows, .null_count = nulls, .n_buffers = is_long ? 3 : 2, .buffers = buffers,
        .release = release_array, .private_data = parts};
    parts->references++;
    if (spec->kind != COLUMN_TEXT)
        return 1;
    const void **texts = parts->dictionary_buffers[column];
    texts[1] = is_absent ? (const void *)zeros : BLOCK_PART(block, at->offsets);
    texts[2] = is_absent ? (const void *)zeros : BLOCK_PART(block, at->bytes);
    parts->dictionaries[column] = (struct ArrowArray){.length = at->texts ? (int64_t)at->texts : 1, .n_buffers = 3, .buffers = texts,
        .release = release_array, .private_data = parts};
    array->dictionary = &parts->dictionaries[column];
    parts->references++;
    return 1;
}

static enum outcome fill_batch(Columns *columns, enum table_number table, struct ArrowArray *out)
{
    const TableSpec *spec = &table_specs[table];
    enum outcome outcome = NO_MEMORY;
    BatchParts *parts = tracekit_calloc(1, sizeof *parts);
    int done = parts != NULL;
    for (int i = 0; i < spec->count && done; i++)
        if (spec->columns[i].is_late)
            done = (parts->late[i] = tracekit_realloc(NULL, BATCH_ROWS * sizeof(int64_t))) != NULL;
    if (done) {
        parts->references = 1;
        parts->block = next_columns(columns, table, parts->late, &outcome);
        done = parts->block != NULL && outcome == DONE;
    }
    for (int i = 0; i < spec->count && done; i++)
        if (!fill_column(parts, &spec->columns[i], i)) {
            outcome = NO_MEMORY;
            done = 0;
        }
    if (!done) {
        if (parts != NULL)
            free_parts(parts);
        return outcome;
    }
    *out = (struct ArrowArray){.length = (int64_t)parts->block->rows, .n_buffers = 1, .n_children = spec->count, .buffers = parts->no_buffer,
        .children = parts->pointers, .release = release_array, .private_data = parts};
    return DONE;
}

/* ---- Streams. ---- */

typedef struct {
    PyObject *produce; /* returns the columns */
    Columns *columns;
    enum table_number table;
    char error[256];
} StreamState;

static int get_schema(struct ArrowArrayStream *stream, struct ArrowSchema *out)
{
    StreamState *state = stream->private_data;
    return fill_schema(&table_specs[state->table], out);
}

static const char *get_last_error(struct ArrowArrayStream *stream)
{
    StreamState *state = stream->private_data;
    return state->error[0] ? state->error : NULL;
}

/* Keeps the message of the error that Python has raised. */
static void keep_error(StreamState *state)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value == NULL ? NULL : PyObject_Str(value);
    PyObject *bytes = text == NULL ? NULL : PyUnicode_AsEncodedString(text, "utf-8", "replace");
    char *message = bytes == NULL ? NULL : PyBytes_AsString(bytes);
    snprintf(state->error, sizeof state->error, "%s", message == NULL || !*message ? "the trace cannot be read" : message);
    Py_XDECREF(bytes);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
}

/* Calls Python to scan the file, with the interpreter lock, which it releases while it reads. */
static int start_stream(StreamState *state)
{
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *found = PyObject_CallNoArgs(state->produce);
    if (found != NULL) {
        PyObject *name = PyObject_GetAttrString((PyObject *)Py_TYPE(found), "__name__");
        Columns *columns = (Columns *)found;
        int fits = name != NULL && PyUnicode_CompareWithASCIIString(name, "Columns") == 0;
        Py_XDECREF(name);
        if (!fits || !columns->finished || columns->taken[state->table]) {
            PyErr_SetString(PyExc_ValueError, "these columns are not complete, or the table was read before");
            Py_CLEAR(found);
        } else {
            columns->taken[state->table] = 1;
        }
    }
    if (found == NULL)
        keep_error(state);
    state->columns = (Columns *)found;
    PyGILState_Release(lock);
    return found != NULL;
}

static int get_next(struct ArrowArrayStream *stream, struct ArrowArray *out)
{
    StreamState *state = stream->private_data;
    memset(out, 0, sizeof *out);
    if (state->columns == NULL && !start_stream(state))
        return EIO;
    enum outcome outcome = fill_batch(state->columns, state->table, out);
    if (outcome == DONE)
        return 0;
    snprintf(state->error, sizeof state->error, "%s", outcome == NO_MEMORY ? "out of memory" : "the scratch file cannot be read");
    return outcome == NO_MEMORY ? ENOMEM : EIO;
}

static void release_stream(struct ArrowArrayStream *stream)
{
    StreamState *state = stream->private_data;
    stream->release = NULL;
    if (!Py_IsInitialized())
        return;
    PyGILState_STATE lock = PyGILState_Ensure();
    Py_XDECREF(state->produce);
    Py_XDECREF((PyObject *)state->columns);
    PyGILState_Release(lock);
    free(state);
}

static void free_stream_capsule(PyObject *capsule)
{
    struct ArrowArrayStream *stream = PyCapsule_GetPointer(capsule, "arrow_array_stream");
    if (stream != NULL && stream->release != NULL)
        stream->release(stream);
    free(stream);
}

static void free_schema_capsule(PyObject *capsule)
{
    struct ArrowSchema *schema = PyCapsule_GetPointer(capsule, "arrow_schema");
    if (schema != NULL && schema->release != NULL)
        schema->release(schema);
    free(schema);
}

static int find_table(const char *name)
{
    for (int i = 0; i < TABLE_COUNT; i++)
        if (strcmp(table_specs[i].name, name) == 0)
            return i;
    PyErr_SetString(PyExc_ValueError, "there is no such table");
    return -1;
}

PyObject *export_schema(PyObject *module, PyObject *args)
{
    const char *name;
    int table;
    (void)module;
    if (!PyArg_ParseTuple(args, "s", &name) || (table = find_table(name)) < 0)
        return NULL;
    struct ArrowSchema *schema = tracekit_calloc(1, sizeof *schema);
    if (schema == NULL || fill_schema(&table_specs[table], schema) != 0) {
        free(schema);
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(schema, "arrow_schema", free_schema_capsule);
    if (capsule == NULL) {
        schema->release(schema);
        free(schema);
    }
    return capsule;
}

PyObject *export_stream(PyObject *module, PyObject *args)
{
    const char *name;
    PyObject *produce;
    int table;
    (void)module;
    if (!PyArg_ParseTuple(args, "sO", &name, &produce) || (table = find_table(name)) < 0)
        return NULL;
    struct ArrowArrayStream *stream = tracekit_calloc(1, sizeof *stream);
    StreamState *state = tracekit_calloc(1, sizeof *state);
    if (stream == NULL || state == NULL) {
        free(stream);
        free(state);
        return PyErr_NoMemory();
    }
    Py_INCREF(produce);
    *state = (StreamState){.produce = produce, .table = (enum table_number)table};
    *stream = (struct ArrowArrayStream){get_schema, get_next, get_last_error, release_stream, state};
    PyObject *capsule = PyCapsule_New(stream, "arrow_array_stream", free_stream_capsule);
    if (capsule == NULL) {
        stream->release(stream);
        free(stream);
    }
    return capsule;
}
