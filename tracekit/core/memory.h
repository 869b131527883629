/* Memory allocation, where a test can make the N-th request fail. Included by all. */

#ifndef TRACEKIT_MEMORY_H
#define TRACEKIT_MEMORY_H

#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline, unused))

#ifdef TRACEKIT_FAILING_MEMORY
extern long tracekit_requests_left;
#define tracekit_may_fail(call) (tracekit_requests_left > 0 && --tracekit_requests_left == 0 ? NULL : (call))
#else
#define tracekit_may_fail(call) (call)
#endif

#define tracekit_realloc(data, size) tracekit_may_fail(realloc(data, size))
#define tracekit_calloc(count, size) tracekit_may_fail(calloc(count, size))

#endif
