/* What code under test does, for tests.faults.guided_fuzz: gcc's -fsanitize-coverage=trace-pc,trace-cmp calls these functions at each
   edge and at each comparison with a constant. This file is built without that option. */

#include <stdint.h>
#include <string.h>

#define EDGES 65536
#define PUBLIC __attribute__((visibility("default")))

void __sanitizer_cov_trace_pc(void);

/* How often each edge was taken by the input that runs, and which of the counts, in powers of two, any input has had. */
PUBLIC unsigned char tracekit_edges[EDGES];
static unsigned char seen[EDGES];
/* Which byte was compared with which constant, at constant * 256 + byte: with the constant in its place, the input may take
   another way. */
PUBLIC unsigned char tracekit_compared[EDGES];
static uintptr_t last;

void __sanitizer_cov_trace_pc(void)
{
    /* From this function on, so that a place has the same number in every process. */
    uintptr_t here = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&__sanitizer_cov_trace_pc;
    unsigned char *edge = &tracekit_edges[(here ^ last) % EDGES];
    *edge += *edge < 255;
    last = here >> 1;
}

static unsigned char count_class(unsigned char count)
{
    if (count < 4)
        return count == 0 ? 0 : (unsigned char)(1 << (count - 1));
    return count < 8 ? 8 : count < 16 ? 16 : count < 32 ? 32 : count < 128 ? 64 : 128;
}

/* Makes classes of the counts; returns how many of them no input has had before. */
PUBLIC long tracekit_new_edges(void)
{
    long found = 0;
    for (size_t i = 0; i < EDGES; i += sizeof(uint64_t)) {
        uint64_t some;
        memcpy(&some, tracekit_edges + i, sizeof some);
        if (some == 0)
            continue;
        for (size_t j = i; j < i + sizeof some; j++) {
            unsigned char is = tracekit_edges[j] = count_class(tracekit_edges[j]);
            found += (is & ~seen[j]) != 0;
            seen[j] |= is;
        }
    }
    return found;
}

/* Begins an input. */
PUBLIC void tracekit_forget(void)
{
    memset(tracekit_edges, 0, sizeof tracekit_edges);
    memset(tracekit_compared, 0, sizeof tracekit_compared);
    last = 0;
}

static void compared(uint64_t constant, uint64_t with)
{
    if (constant < 256 && with < 256 && constant != with)
        tracekit_compared[constant << 8 | with] = 1;
}

#define CONSTANT(size, type) \
    void __sanitizer_cov_trace_const_cmp##size(type, type); \
    void __sanitizer_cov_trace_const_cmp##size(type constant, type with) \
    { \
        compared(constant, with); \
    }
/* Neither side is a constant: nothing to learn. */
#define OTHER(name, type) \
    void __sanitizer_cov_trace_cmp##name(type, type); \
    void __sanitizer_cov_trace_cmp##name(type a, type b) \
    { \
        (void)a, (void)b; \
    }

CONSTANT(1, uint8_t)
CONSTANT(2, uint16_t)
CONSTANT(4, uint32_t)
CONSTANT(8, uint64_t)
OTHER(1, uint8_t)
OTHER(2, uint16_t)
OTHER(4, uint32_t)
OTHER(8, uint64_t)
OTHER(f, float)
OTHER(d, double)

void __sanitizer_cov_trace_switch(uint64_t, uint64_t *);
/* cases: how many there are, of how many bits, and each. */
void __sanitizer_cov_trace_switch(uint64_t with, uint64_t *cases)
{
    for (uint64_t i = 0; i < cases[0]; i++)
        compared(cases[2 + i], with);
}
