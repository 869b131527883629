/* Numbers as decimal text and as varints. */

#ifndef TRACEKIT_NUMBERS_H
#define TRACEKIT_NUMBERS_H

#include <stdint.h>
#include <string.h>

#include "memory.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the core writes numbers as little-endian machines hold them; elsewhere Python does its work"
#endif

/* Returns eight digits as bytes, the first one lowest. */
INLINE uint64_t eight_digits(uint32_t number)
{
    /* Two halves of four digits, four quarters of two, eight digits: side by side. */
    uint64_t some = number / 10000 | (uint64_t)(number % 10000) << 32;
    uint64_t hundreds = (some * 10486 >> 20) & 0x0000007F0000007F;
    some = hundreds | (some - 100 * hundreds) << 16;
    uint64_t tens = (some * 103 >> 10) & 0x000F000F000F000F;
    return (tens | (some - 10 * tens) << 8) + 0x3030303030303030;
}

/* Writes eight digits, with zeros in front. */
INLINE char *write_eight(char *out, uint32_t number)
{
    uint64_t digits = eight_digits(number);
    memcpy(out, &digits, 8);
    return out + 8;
}

/* Writes up to eight digits; eight characters may be touched. */
INLINE char *write_short(char *out, uint32_t number)
{
    uint64_t digits = eight_digits(number);
    /* Keep the last digit, even if it is 0. */
    int zeros = __builtin_ctzll((digits - 0x3030303030303030) | UINT64_C(1) << 56) / 8;
    digits >>= 8 * zeros;
    memcpy(out, &digits, 8);
    return out + 8 - zeros;
}

/* Writes a number; 24 characters may be touched. */
INLINE char *write_number(char *out, uint64_t number)
{
    const uint64_t eight = 100000000;
    if (number < eight)
        return write_short(out, (uint32_t)number);
    if (number < eight * eight)
        return write_eight(write_short(out, (uint32_t)(number / eight)), (uint32_t)(number % eight));
    out = write_short(out, (uint32_t)(number / eight / eight));
    number %= eight * eight;
    return write_eight(write_eight(out, (uint32_t)(number / eight)), (uint32_t)(number % eight));
}

/* Writes ns as µs with three decimals; 24 characters may be touched. */
INLINE char *write_us(char *out, uint64_t ns)
{
    out = write_number(out, ns / 1000);
    uint64_t decimals = eight_digits((uint32_t)(ns % 1000)) >> 32; /* a zero and three digits */
    decimals += (uint64_t)'.' - '0';
    memcpy(out, &decimals, 4);
    return out + 4;
}

/* Writes seven bits in each byte, the lowest first; up to ten bytes. */
INLINE char *write_varint(char *out, uint64_t number)
{
    while (number > 127) {
        *out++ = (char)(number | 128);
        number >>= 7;
    }
    *out++ = (char)number;
    return out;
}

INLINE size_t varint_size(uint64_t number)
{
    return number < 128 ? 1 : (size_t)(63 - __builtin_clzll(number)) / 7 + 1;
}

#endif
