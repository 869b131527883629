/* Put in front of each C file of the core by a test of the fuzzer: an error that only a few inputs reach.

   Where the reader looks for the word null, "nu#~" steps over the end of an array. By chance an input has these four bytes once in
   2^32. Step by step they are found soon: the code compares with # and ~ nowhere else, so that the comparison is new, and
   answered, in the first input with a null. */

#include <string.h>

static inline int planted_strncmp(const char *text, const char *word, size_t size)
{
    volatile char room[4] = "";
    if (text[0] == 'n')
        if (text[1] == 'u')
            if (text[2] == '#')
                if (text[3] == '~')
                    room[size] = 1;
    return strncmp(text, word, size) + room[0];
}

#define strncmp planted_strncmp
