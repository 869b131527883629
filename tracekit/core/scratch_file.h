/* A file without a name, for data that is too large for memory. It disappears with the process, even if that is killed. */

#ifndef TRACEKIT_SCRATCH_FILE_H
#define TRACEKIT_SCRATCH_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "growing.h"

#define MAX_FOLDER 4096

typedef struct {
    int is_open, fd;
    int error;         /* errno of the failure */
    uint64_t size;
    char folder[MAX_FOLDER];
} ScratchFile;

/* Appends data; `offset` becomes its position. */
enum outcome write_scratch(ScratchFile *file, const void *data, size_t size, uint64_t *offset);
enum outcome read_scratch(ScratchFile *file, uint64_t offset, void *data, size_t size);
void close_scratch(ScratchFile *file);
/* Writes all data at an offset of a file; returns errno, or 0 for success. */
int write_whole(int fd, const char *data, size_t size, int64_t offset);

#endif
