/* The writer of JSON for messages of Avro and Protobuf. */

#ifndef STARROCKS_TXN_SINK_WRITER_H
#define STARROCKS_TXN_SINK_WRITER_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "json.h"

/* The most bytes of JSON that a message of `size` bytes becomes here; beyond, Python says that it does not fit. */
#define MOST_JSON(size) ((1 << 20) + 100 * (size))

/* A message that is read from `p` on, and its JSON. `full` says that there was no room; `types` is Avro's. */
typedef struct {
    Place p, end;
    uint8_t *to;
    const uint8_t *most;
    const AvroType *types;
    int full;
} Writer;

static inline int has_room(Writer *a, int64_t size) {
    if (a->most - a->to >= size) return 1;
    a->full = 1;
    return 0;
}

/* Write no more than a message of `size` bytes becomes, if the room until `end` is larger. */
static inline void bound_json(Writer *a, int64_t size) {
    if (a->most - a->to > MOST_JSON(size)) a->most = a->to + MOST_JSON(size);
}

static inline int put_raw(Writer *a, const void *text, int64_t size) {
    if (!has_room(a, size)) return 0;
    memcpy(a->to, text, (size_t)size);
    a->to += size;
    return 1;
}

static inline int put_whole(Writer *a, int64_t number) {
    uint8_t digits[20], *first = digits + sizeof digits;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do *--first = (uint8_t)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0) *--first = '-';
    return put_raw(a, first, digits + sizeof digits - first);
}

/* The shortest of the spellings that C's printf has, from `least` digits on, which reads as the same number. */
static inline int put_real(Writer *a, double number, int least, int most, int narrow) {
    char text[40];
    int size = 0;
    if (isnan(number)) return put_raw(a, "\"NaN\"", 5);
    if (isinf(number)) return number < 0 ? put_raw(a, "\"-Infinity\"", 11) : put_raw(a, "\"Infinity\"", 10);
    for (int digits = least; digits <= most; digits++) {
        size = snprintf(text, sizeof text, "%.*g", digits, number);
        if (narrow ? strtof(text, NULL) == (float)number : strtod(text, NULL) == number) break;
    }
    if (!put_raw(a, text, size)) return 0;
    return strpbrk(text, ".e") ? 1 : put_raw(a, ".0", 2);
}

static inline int put_base64(Writer *a, Place p, int64_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (!has_room(a, (size + 2) / 3 * 4 + 2)) return 0;
    uint8_t *to = a->to;
    *to++ = '"';
    for (int64_t i = 0; i < size; i += 3) {
        uint32_t three = (uint32_t)p[i] << 16 | (i + 1 < size ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < size ? p[i + 2] : 0);
        *to++ = (uint8_t)digits[three >> 18];
        *to++ = (uint8_t)digits[three >> 12 & 63];
        *to++ = i + 1 < size ? (uint8_t)digits[three >> 6 & 63] : '=';
        *to++ = i + 2 < size ? (uint8_t)digits[three & 63] : '=';
    }
    *to++ = '"';
    a->to = to;
    return 1;
}

/* The place of the first byte that JSON escapes, or `end`; NULL if the text is no UTF-8. */
static inline Place plain_until(Place p, Place end) {
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    while (p < end) {
        uint64_t word;
        if (end - p >= 8) {
            memcpy(&word, p, 8);
            uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\';
            if (!((word | (word - ones * 0x20) | (quote - ones) | (backslash - ones)) & high)) {
                p += 8;
                continue;
            }
        }
        if (*p < 0x20 || *p == '"' || *p == '\\') return p;
        if (*p < 0x80)
            p++;
        else if (!(p = skip_utf8(p, end)))
            return NULL;
    }
    return p;
}

static inline int put_escaped(Writer *a, uint8_t c) {
    static const char digits[] = "0123456789abcdef", names[] = "btn\0fr"; /* of the bytes from 8 on */
    uint8_t text[6] = {'\\', 'u', '0', '0', (uint8_t)digits[c >> 4], (uint8_t)digits[c & 15]};
    if (c == '"' || c == '\\')
        text[1] = c;
    else if (c >= '\b' && c <= '\r' && names[c - '\b'])
        text[1] = (uint8_t)names[c - '\b'];
    else
        return put_raw(a, text, 6);
    return put_raw(a, text, 2);
}

static inline int put_json_string(Writer *a, Place p, int64_t size) {
    Place end = p + size;
    if (!put_raw(a, "\"", 1)) return 0;
    while (p < end) {
        Place next = plain_until(p, end);
        if (!next || !put_raw(a, p, next - p)) return 0;
        if (next < end && !put_escaped(a, *next++)) return 0;
        p = next;
    }
    return put_raw(a, "\"", 1);
}

#endif
