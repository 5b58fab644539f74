/* What several loops write: text without escapes, times, numbers of any size. */

#ifndef STARROCKS_TXN_SINK_PUT_H
#define STARROCKS_TXN_SINK_PUT_H

#include "json.h"

#define MOST_DIGITS 160  /* of a decimal number that is written here, and of zeros around it */
#define MOST_BYTES 64    /* of its two's complement */

static inline uint8_t *put_utf8(uint8_t *to, uint32_t code) {
    if (code < 0x80) {
        *to++ = (uint8_t)code;
    } else if (code < 0x800) {
        *to++ = (uint8_t)(0xC0 | code >> 6);
        *to++ = (uint8_t)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *to++ = (uint8_t)(0xE0 | code >> 12);
        *to++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        *to++ = (uint8_t)(0xF0 | code >> 18);
        *to++ = (uint8_t)(0x80 | (code >> 12 & 0x3F));
        *to++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return to;
}

/* Copy up to the next backslash or the end; `*from` moves there. */
static inline uint8_t *copy_plain(uint8_t *to, Place *from, Place end, Place last) {
    Place p = *from;
#if defined(__SSE2__)
    const __m128i backslash = _mm_set1_epi8('\\');
    while (p < end && p <= last) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        int64_t plain = end - p < 16 ? end - p : 16;
        int mask = _mm_movemask_epi8(_mm_cmpeq_epi8(block, backslash));
        _mm_storeu_si128((__m128i *)to, block);
        if (mask && __builtin_ctz((unsigned)mask) < plain) {
            plain = __builtin_ctz((unsigned)mask);
            *from = p + plain;
            return to + plain;
        }
        p += plain;
        to += plain;
    }
#else
    (void)last;
#endif
    while (p < end && *p != '\\') *to++ = *p++;
    *from = p;
    return to;
}

/* Copy the content of a well-formed string without its escapes; NULL for a lone surrogate, which has no UTF-8. */
static inline uint8_t *unescape(uint8_t *to, Place p, Place end, Place last) {
    for (;;) {
        to = copy_plain(to, &p, end, last);
        if (p >= end) return to;
        uint8_t c = p[1];
        p += 2;
        switch (c) {
        case 'b': *to++ = '\b'; break;
        case 'f': *to++ = '\f'; break;
        case 'n': *to++ = '\n'; break;
        case 'r': *to++ = '\r'; break;
        case 't': *to++ = '\t'; break;
        case 'u': {
            uint32_t code = (uint32_t)hex4(p, end);
            p += 4;
            if (code >= 0xD800 && code < 0xE000) {
                if (code >= 0xDC00 || end - p < 6 || p[0] != '\\' || p[1] != 'u') return NULL;
                uint32_t low = (uint32_t)hex4(p + 2, end);
                if (low < 0xDC00 || low >= 0xE000) return NULL;
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                p += 6;
            }
            to = put_utf8(to, code);
            break;
        }
        default: *to++ = c; /* a quote, a backslash or a slash */
        }
    }
}

/* Hours, minutes, seconds, and 6 or 9 decimals where there are any. */
static inline uint8_t *put_clock(uint8_t *to, uint64_t seconds, int64_t nanos) {
    to = put_number(to, seconds / 3600, 2);
    *to++ = ':';
    to = put_number(to, seconds / 60 % 60, 2);
    *to++ = ':';
    to = put_number(to, seconds % 60, 2);
    if (!nanos) return to;
    *to++ = '.';
    return nanos % 1000 ? put_number(to, (uint64_t)nanos, 9) : put_number(to, (uint64_t)nanos / 1000, 6);
}

/* Write an unsigned number, whose most significant byte is the first, with so many decimals; the number is used up. */
static inline uint8_t *put_bytes_as_number(uint8_t *to, uint8_t *bytes, int count, int64_t scale) {
    uint8_t digits[MOST_DIGITS + 9];
    int size = 0, first = 0;
    while (first < count) { /* divide by 1000 again and again: the remainders are the digits */
        uint32_t rest = 0;
        for (int i = first; i < count; i++) {
            rest = rest << 8 | bytes[i];
            bytes[i] = (uint8_t)(rest / 1000);
            rest %= 1000;
        }
        for (int i = 0; i < 3; i++, rest /= 10) digits[size++] = (uint8_t)('0' + rest % 10);
        while (first < count && !bytes[first]) first++;
    }
    while (size && digits[size - 1] == '0') size--;
    int zero = !size;
    if (zero) digits[size++] = '0';
    for (int64_t place = scale < 0 || size > scale ? size : scale + 1; place > 0; place--) {
        *to++ = place > size ? '0' : digits[place - 1];
        if (place - 1 == scale && scale > 0) *to++ = '.';
    }
    for (; scale < 0 && !zero; scale++) *to++ = '0';
    return to;
}

/* Write a number in two's complement with so many decimals; the bytes are used up. */
static inline uint8_t *put_signed_bytes(uint8_t *to, uint8_t *bytes, int count, int64_t scale) {
    if (bytes[0] >= 0x80) {
        int carry = 1;
        for (int i = count - 1; i >= 0; i--) {
            int byte = (uint8_t)~bytes[i] + carry;
            bytes[i] = (uint8_t)byte;
            carry = byte >> 8;
        }
        *to++ = '-';
    }
    return put_bytes_as_number(to, bytes, count, scale);
}

#endif
