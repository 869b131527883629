/* Memory that grows, and how a loop without the interpreter lock ends. */

#ifndef TRACEKIT_GROWING_H
#define TRACEKIT_GROWING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "memory.h"

enum outcome { DONE, NO_MEMORY, FILE_ERROR };

typedef struct {
    char *data;
    size_t size, room;
} Buffer;

static inline __attribute__((unused)) int reserve(Buffer *buffer, size_t more)
{
    if (more <= buffer->room - buffer->size)
        return 1;
    if (more > (size_t)PTRDIFF_MAX / 4 - buffer->size)
        return 0;
    size_t room = (buffer->size + more) * 2;
    char *data = tracekit_realloc(buffer->data, room);
    if (data == NULL)
        return 0;
    buffer->data = data;
    buffer->room = room;
    return 1;
}

static inline __attribute__((unused)) int append(Buffer *buffer, const void *data, size_t size)
{
    if (!reserve(buffer, size))
        return 0;
    if (size) /* memcpy takes no NULL */
        memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
    return 1;
}

static inline __attribute__((unused)) void free_buffer(Buffer *buffer)
{
    free(buffer->data);
    *buffer = (Buffer){NULL, 0, 0};
}

#endif
