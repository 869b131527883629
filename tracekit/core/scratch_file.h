/* A file without a name for what is too large for memory: nothing is left of it, however the process ends. */

#ifndef TRACEKIT_SCRATCH_FILE_H
#define TRACEKIT_SCRATCH_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "growing.h"

#define MAX_FOLDER 4096

typedef struct {
    int is_open, fd;
    int error;         /* errno of what failed */
    uint64_t size;
    char folder[MAX_FOLDER];
} ScratchFile;

/* Appends data; `offset` is where it is then. */
enum outcome write_scratch(ScratchFile *file, const void *data, size_t size, uint64_t *offset);
enum outcome read_scratch(ScratchFile *file, uint64_t offset, void *data, size_t size);
void close_scratch(ScratchFile *file);
/* Writes all of some data at an offset of a file, at its current position where the offset is -1; returns errno, 0 for none. */
int write_whole(int fd, const char *data, size_t size, int64_t offset);

#endif
