/* Finds the events of a window one after the other, and leaves those that are not simple to Python. */

#ifndef TRACEKIT_SCAN_H
#define TRACEKIT_SCAN_H

#include "event.h"
#include "object.h"

#define MAX_EVENT (4 << 20)      /* bytes; a longer event takes the general way */

/* Reasons to stop a scan; the first four are numbers of _merge.pyi. STOP_NONE: it goes on. */
enum stop { STOP_MORE, STOP_ODD, STOP_NEW, STOP_END, STOP_MEMORY, STOP_FILE, STOP_NONE };

/* The element before the place where a scan resumes. */
enum place { ANYWHERE, BEHIND_EVENT, BEHIND_COMMA };

/* The text of a scan. */
typedef struct {
    const char *text, *at, *end; /* at: the event that is read, or the place where it stopped */
    int final;                   /* the file ends here */
} Window;

/* Reads the arguments of a scan. Returns 0 with an exception. */
INLINE int parse_window(PyObject *args, Window *window)
{
    PyObject *bytes;
    char *text;
    Py_ssize_t at, size;
    if (!PyArg_ParseTuple(args, "Snp", &bytes, &at, &window->final) || PyBytes_AsStringAndSize(bytes, &text, &size) < 0)
        return 0;
    if (at < 0 || at > size) {
        PyErr_SetString(PyExc_ValueError, "there is no such place");
        return 0;
    }
    window->text = text;
    window->at = text + at;
    window->end = text + size;
    return 1;
}

INLINE int is_text(Span span, const char *text, size_t size)
{
    return (size_t)(span.end - span.at) == size && memcmp(span.at, text, size) == 0;
}

#define IS_TEXT(span, text) is_text(span, text, sizeof text - 1)

/* Returns true if a text begins so, and goes on. */
INLINE int begins(Span text, const char *beginning, size_t size)
{
    return (size_t)(text.end - text.at) > size && memcmp(text.at, beginning, size) == 0;
}

/* Returns the end of an object, NULL if the text ends before it. Looks only at strings and brackets. */
static inline __attribute__((unused)) const char *find_object_end(const char *p, const char *end)
{
    int depth = 0;
    for (; p < end; p++) {
        if (*p == '"') {
            for (p++; p < end && *p != '"'; p++)
                p += *p == '\\';
        } else if (*p == '{' || *p == '[') {
            depth++;
        } else if ((*p == '}' || *p == ']') && --depth == 0) {
            return p + 1;
        }
    }
    return NULL;
}

/* Returns true if a text is UTF-8, without surrogates and overlong forms. */
static inline __attribute__((unused)) int is_wide_utf8(const unsigned char *p, const unsigned char *end)
{
    while (p < end) {
        unsigned char first = *p++;
        if (first < 0x80)
            continue;
        int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        if (first < 0xC2 || first > 0xF4 || end - p < more)
            return 0;
        unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        if (*p < low || *p > high)
            return 0;
        for (int i = 1; i < more; i++)
            if (p[i] < 0x80 || p[i] > 0xBF)
                return 0;
        p += more;
    }
    return 1;
}

INLINE int is_utf8(const char *p, const char *end)
{
    const char *from = p;
    uint64_t all = 0, some;
#if defined(__SSE2__)
    __m128i any = _mm_setzero_si128();
    for (; end - p >= 64; p += 64) {
        const __m128i *at = (const __m128i *)(const void *)p;
        __m128i low = _mm_or_si128(_mm_loadu_si128(at), _mm_loadu_si128(at + 1));
        __m128i high = _mm_or_si128(_mm_loadu_si128(at + 2), _mm_loadu_si128(at + 3));
        any = _mm_or_si128(any, _mm_or_si128(low, high));
    }
    if (_mm_movemask_epi8(any))
        all = 0x80;
#endif
    for (; end - p >= 8; p += 8) {
        memcpy(&some, p, sizeof some);
        all |= some;
    }
    for (; p < end; p++)
        all |= (unsigned char)*p;
    return (all & 0x8080808080808080) == 0 || is_wide_utf8((const unsigned char *)from, (const unsigned char *)end);
}

/* Reads the next event. Sets `at` to its beginning and `behind` to its end, and returns STOP_NONE if it is read. */
INLINE enum stop next_event(Reader *reader, enum place *place, Window *window, Event *event, const char **behind)
{
    reader->end = window->end;
    for (;;) {
        const char *p = window->at = skip_space(reader, window->at);
        if (p == window->end)
            return STOP_MORE;
        if (*p == ',' && *place != BEHIND_COMMA) {
            *place = BEHIND_COMMA;
            window->at++;
            continue;
        }
        if (*p == ']' && *place != BEHIND_COMMA)
            return STOP_END;
        if (*p != '{' || *place == BEHIND_EVENT)
            return STOP_ODD;
        reader->odd_string = 0;
        *behind = read_event(reader, p, event, NULL);
        if (*behind != NULL && *behind - p <= MAX_EVENT && !reader->odd_string && is_utf8(p, *behind))
            return STOP_NONE;
        /* The rest of the event may not be here yet. */
        const int may_go_on = *behind == NULL && window->end - p <= MAX_EVENT && !window->final;
        return may_go_on && find_object_end(p, window->end) == NULL ? STOP_MORE : STOP_ODD;
    }
}

/* Passes each event to `take`, until that or the text stops it. */
INLINE enum stop scan_window(Reader *reader, enum place *place, Window *window,
                             enum stop (*take)(void *self, const char *p, const char *behind, const Event *event), void *self)
{
    Event event;
    Window here = *window; /* in registers: text that is written may alias the window */
    for (;;) {
        const char *behind;
        enum stop stop = next_event(reader, place, &here, &event, &behind);
        if (stop == STOP_NONE)
            stop = take(self, here.at, behind, &event);
        if (stop == STOP_ODD)
            *place = ANYWHERE;
        if (stop != STOP_NONE) {
            window->at = here.at;
            return stop;
        }
        *place = BEHIND_EVENT;
        here.at = behind;
    }
}

#endif
