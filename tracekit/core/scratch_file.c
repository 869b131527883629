#include "scratch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int open_scratch(ScratchFile *file)
{
    char path[MAX_FOLDER + 32];
    snprintf(path, sizeof path, "%s/tracekit-log-XXXXXX", file->folder);
    int fd = mkstemp(path);
    if (fd < 0) {
        file->error = errno;
        return 0;
    }
    unlink(path);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    file->fd = fd;
    file->is_open = 1;
    return 1;
}

int write_whole(int fd, const char *data, size_t size, int64_t offset)
{
    while (size) {
        ssize_t done = pwrite(fd, data, size, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? errno : EIO;
        data += done;
        size -= (size_t)done;
        offset += done;
    }
    return 0;
}

enum outcome write_scratch(ScratchFile *file, const void *data, size_t size, uint64_t *offset)
{
    if (!file->is_open && !open_scratch(file))
        return FILE_ERROR;
    file->error = write_whole(file->fd, data, size, (int64_t)file->size);
    if (file->error)
        return FILE_ERROR;
    *offset = file->size;
    file->size += size;
    return DONE;
}

enum outcome read_scratch(ScratchFile *file, uint64_t offset, void *data, size_t size)
{
    char *at = data;
    while (size) {
        ssize_t done = pread(file->fd, at, size, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            file->error = done < 0 ? errno : EIO;
            return FILE_ERROR;
        }
        at += done;
        offset += (uint64_t)done;
        size -= (size_t)done;
    }
    return DONE;
}

void close_scratch(ScratchFile *file)
{
    if (file->is_open)
        close(file->fd);
    file->is_open = 0;
}
