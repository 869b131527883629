/* Put in front of each C file of the core by a test of the fuzzer: an error that only a few inputs reach.

   Where the reader looks for the word null, "nu:]" steps over the end of an array: four comparisons, one after the other, that
   an input meets by chance once in 2^32, and step by step if what takes a new way is kept. */

#include <string.h>

static inline int planted_strncmp(const char *text, const char *word, size_t size)
{
    volatile char room[4] = "";
    if (text[0] == 'n')
        if (text[1] == 'u')
            if (text[2] == ':')
                if (text[3] == ']')
                    room[size] = 1;
    return strncmp(text, word, size) + room[0];
}

#define strncmp planted_strncmp
