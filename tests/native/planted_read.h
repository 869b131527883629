/* Put in front of each C file of the core by a test: every buffer that grows is read one byte too far. */

#include <stdlib.h>

static inline void *planted_realloc(void *data, size_t size)
{
    volatile char *grown = realloc(data, size);
    if (grown != NULL)
        (void)grown[size];
    return (void *)grown;
}

#define realloc planted_realloc
