/* What the compiled files share: the parser of JSON, dates, and the loop that rewrites rows.

   The parser takes a strict subset of what sources/formats/json_text.py accepts, so that it never has to decide: a value
   outside of the subset (malformed, an escape in a name, a lone surrogate, nested deeper than 64) ends the call, Python judges
   it, and the next call goes on behind it. */

#ifndef STARROCKS_TXN_SINK_JSON_H
#define STARROCKS_TXN_SINK_JSON_H

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#include "layout.h"

#define SLACK 32 /* bytes that a column has beyond its content: copies go in blocks of 16 */
#define DEEPEST 64
#define SEPARATOR ',' /* in front of each row that is JSON */
#define ROOM_A_VALUE 384 /* that a value may need beyond its own size */

typedef const uint8_t *Place;

/* `end` is the end of one value, `last` the last place in the whole buffer from which 16 bytes can be read. */
typedef struct {
    Place end, last;
} Bounds;

static inline uint8_t at(Place p, const Bounds *b) { return p < b->end ? *p : 0; } /* 0 is nowhere valid */

static inline Place skip_spaces(Place p, const Bounds *b) {
    while (p < b->end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

static inline int is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

static inline int hex_digit(uint8_t c) {
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static inline int32_t hex4(Place p, Place end) {
    int32_t code = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0) return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* The place after one character of several bytes; NULL if it is no UTF-8 (RFC 3629, its table of byte sequences). */
static inline Place skip_utf8(Place p, Place end) {
    uint8_t c = *p, low = 0x80, high = 0xBF;
    int more;
    if (c >= 0xC2 && c <= 0xDF) {
        more = 1;
    } else if (c >= 0xE0 && c <= 0xEF) {
        more = 2;
        if (c == 0xE0) low = 0xA0;
        if (c == 0xED) high = 0x9F;
    } else if (c >= 0xF0 && c <= 0xF4) {
        more = 3;
        if (c == 0xF0) low = 0x90;
        if (c == 0xF4) high = 0x8F;
    } else {
        return NULL;
    }
    if (end - p <= more || p[1] < low || p[1] > high) return NULL;
    for (int i = 2; i <= more; i++)
        if (p[i] < 0x80 || p[i] > 0xBF) return NULL;
    return p + more + 1;
}

/* The next byte that is a quote, a backslash, a control character or no ASCII; may be beyond the end. */
static inline Place skip_plain(Place p, const Bounds *b) {
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(' ');
    while (p <= b->last && p < b->end) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        __m128i stop = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(block, quote), _mm_cmpeq_epi8(block, backslash)),
                                    _mm_cmplt_epi8(block, space)); /* signed: from 0x80 on bytes are negative */
        int mask = _mm_movemask_epi8(stop);
        if (mask) return p + __builtin_ctz((unsigned)mask);
        p += 16;
    }
#endif
    while (p < b->end && *p != '"' && *p != '\\' && *p >= 0x20 && *p < 0x80) p++;
    return p;
}

/* The closing quote of the string whose content begins at `p`; NULL if it is malformed. */
static inline Place end_of_string(Place p, const Bounds *b, int *escaped) {
    for (;;) {
        p = skip_plain(p, b);
        if (p >= b->end) return NULL;
        if (*p == '"') return p;
        if (*p == '\\') {
            *escaped = 1;
            switch (at(p + 1, b)) {
            case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
                p += 2;
                break;
            case 'u':
                if (hex4(p + 2, b->end) < 0) return NULL;
                p += 6;
                break;
            default:
                return NULL;
            }
        } else {
            if (*p < 0x20) return NULL;
            p = skip_utf8(p, b->end);
            if (!p) return NULL;
        }
    }
}

static inline Place skip_digits(Place p, const Bounds *b) {
    if (!is_digit(at(p, b))) return NULL;
#if defined(__SSE2__)
    const __m128i zero = _mm_set1_epi8('0'), beyond = _mm_set1_epi8(9 - 128), flip = _mm_set1_epi8(-128);
    while (p <= b->last && p < b->end) {
        __m128i digits = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)p), zero);
        int others = _mm_movemask_epi8(_mm_cmpgt_epi8(_mm_xor_si128(digits, flip), beyond)); /* unsigned: above 9 */
        if (others) {
            p += __builtin_ctz((unsigned)others);
            return p < b->end ? p : b->end;
        }
        p += 16;
    }
    if (p > b->end) return b->end;
#endif
    while (is_digit(at(p, b))) p++;
    return p;
}

static inline Place skip_number(Place p, const Bounds *b) {
    if (at(p, b) == '-') p++;
    p = at(p, b) == '0' ? p + 1 : skip_digits(p, b);
    if (p && at(p, b) == '.') p = skip_digits(p + 1, b);
    if (p && (at(p, b) | 0x20) == 'e') {
        p++;
        if (at(p, b) == '+' || at(p, b) == '-') p++;
        p = skip_digits(p, b);
    }
    return p;
}

static inline Place skip_word(Place p, const Bounds *b, const char *word, int size) {
    return b->end - p >= size && !memcmp(p, word, (size_t)size) ? p + size : NULL;
}

static inline Place skip_scalar(Place p, const Bounds *b) {
    int escaped = 0;
    switch (at(p, b)) {
    case '"':
        p = end_of_string(p + 1, b, &escaped);
        return p ? p + 1 : NULL;
    case 't':
        return skip_word(p, b, "true", 4);
    case 'f':
        return skip_word(p, b, "false", 5);
    case 'n':
        return skip_word(p, b, "null", 4);
    default:
        return skip_number(p, b);
    }
}

/* The place after a name and its colon; `*content` is its content. NULL if it is malformed. */
static inline Place skip_name(Place p, const Bounds *b, Place *content, Place *end, int *escaped) {
    if (at(p, b) != '"') return NULL;
    *content = p + 1;
    *end = p = end_of_string(p + 1, b, escaped);
    if (!p) return NULL;
    p = skip_spaces(p + 1, b);
    return at(p, b) == ':' ? skip_spaces(p + 1, b) : NULL;
}

/* The place after any value; NULL if it is malformed or nested too deep. */
static inline Place skip_value(Place p, const Bounds *b) {
    uint64_t objects = 0; /* a bit for each open bracket, the innermost last: 1 for an object */
    int depth = 0, escaped = 0;
    Place ignored;
    for (;;) {
        uint8_t c = at(p, b);
        if (c == '{' || c == '[') {
            if (depth++ == DEEPEST) return NULL;
            objects = objects << 1 | (c == '{');
            p = skip_spaces(p + 1, b);
            if (at(p, b) != (c == '{' ? '}' : ']')) {
                if (c == '{') p = skip_name(p, b, &ignored, &ignored, &escaped);
                if (!p) return NULL;
                continue;
            }
        } else {
            p = skip_scalar(p, b);
            if (!p || !depth) return p;
            p = skip_spaces(p, b);
        }
        while (at(p, b) == (objects & 1 ? '}' : ']')) {
            objects >>= 1;
            p++;
            if (!--depth) return p;
            p = skip_spaces(p, b);
        }
        if (at(p, b) != ',') return NULL;
        p = skip_spaces(p + 1, b);
        if (objects & 1) p = skip_name(p, b, &ignored, &ignored, &escaped);
        if (!p) return NULL;
    }
}

#if defined(__SSE2__)
/* The number of the eight digits at `p`; 0 if one of them is none. Neighbours are joined: digits, pairs, fours. */
static inline int eight_digits(Place p, uint64_t *number) {
    uint64_t each;
    memcpy(&each, p, 8); /* the first digit is the lowest byte */
    each ^= 0x3030303030303030; /* a digit is 0 to 9 then */
    if ((each | (each + 0x7676767676767676)) & 0x8080808080808080) return 0;
    each = (each * 10 + (each >> 8)) & 0x00FF00FF00FF00FF;
    each = (each * 100 + (each >> 16)) & 0x0000FFFF0000FFFF;
    *number = (each * 10000 + (each >> 32)) & 0xFFFFFFFF;
    return 1;
}
#endif

/* A whole number of 64 bits between `p` and `end`, which is a JSON number; 0 if it is none. */
static inline int whole_number(Place p, Place end, int64_t *number) {
    int negative = *p == '-';
    uint64_t found = 0;
    p += negative;
    if (end - p > 19) return 0;
#if defined(__SSE2__)
    for (uint64_t eight; end - p >= 8; p += 8) {
        if (!eight_digits(p, &eight)) return 0;
        found = found * 100000000 + eight;
    }
#endif
    for (; p < end; p++) {
        if (!is_digit(*p)) return 0;
        found = found * 10 + (uint64_t)(*p - '0');
    }
    if (found > (uint64_t)INT64_MAX + (uint64_t)negative) return 0;
    *number = negative ? (int64_t)(0 - found) : (int64_t)found;
    return 1;
}

/* Copy bytes, up to 15 more than asked for where 16 can be read. */
static inline uint8_t *copy(uint8_t *to, Place from, int64_t size, Place last) {
#if defined(__SSE2__)
    if (size <= 64 && from + size <= last) {
        for (int64_t i = 0; i < size; i += 16)
            _mm_storeu_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
        return to + size;
    }
#else
    (void)last;
#endif
    memcpy(to, from, (size_t)size);
    return to + size;
}

/* Writes the row at `p` as its plan says, up to `most`; NULL outside of the subset. `*full` says that there was no room. */
typedef uint8_t *(*PutRow)(uint8_t *to, const uint8_t *most, Place p, const Bounds *b, const Plan *plan, int *full);

static inline uint8_t *put_text(uint8_t *to, const char *text) {
    while (*text) *to++ = (uint8_t)*text++;
    return to;
}

/* Write at least `digits` digits. */
static inline uint8_t *put_number(uint8_t *to, uint64_t number, int digits) {
    uint8_t reversed[20];
    int size = 0;
    for (; number || size < digits; number /= 10) reversed[size++] = (uint8_t)('0' + number % 10);
    while (size) *to++ = reversed[--size];
    return to;
}

/* The day, counted from 1970-01-01, of a date of the Gregorian calendar; years begin in March, 400 of them are an era. */
static inline int64_t day_of(int64_t year, int month, int day) {
    year -= month <= 2;
    int64_t era = (year >= 0 ? year : year - 399) / 400, year_of_era = year - era * 400;
    int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

static inline uint8_t *put_date(uint8_t *to, int64_t days) {
    days += 719468;
    int64_t era = (days >= 0 ? days : days - 146096) / 146097, day_of_era = days - era * 146097;
    int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t shifted = (5 * day_of_year + 2) / 153, month = shifted < 10 ? shifted + 3 : shifted - 9;
    int64_t year = year_of_era + era * 400 + (month <= 2);
    if (year > 9999) *to++ = '+';
    if (year < 0) *to++ = '-';
    to = put_number(to, (uint64_t)(year < 0 ? -year : year), 4);
    *to++ = '-';
    to = put_number(to, (uint64_t)month, 2);
    *to++ = '-';
    return put_number(to, (uint64_t)(day_of_year - (153 * shifted + 2) / 5 + 1), 2);
}

/* Where text number `n` of a column begins, and the one before it ends: Arrow has numbers of 32 bits, or `wide` ones of 64. */
static inline int64_t bound(const void *bounds, int32_t wide, int64_t n) {
    return wide ? ((const int64_t *)bounds)[n] : ((const int32_t *)bounds)[n];
}

/* Write the rows from `row` on, of `rows` in all, behind `*used` bytes of `to`, which has room for `room`: each as its plan
   (`chosen`) says, and as it is with plan -1. `ends` gets the end of each row. Returns the first row that is outside of the
   subset, and -1 - row for one without room; `rows` if there is none. Texts lie between `bounds` as in txn_sink_read. */
static inline int64_t rewrite(PutRow put_row, const void *bounds, int32_t wide, const uint8_t *data, const Plan *plans,
                              const int32_t *chosen, int64_t rows, uint8_t *to, int64_t room, int64_t *used, int32_t *ends,
                              int64_t row) {
    Place last = data + bound(bounds, wide, rows) - 16;
    for (; row < rows; row++) {
        Place start = data + bound(bounds, wide, row);
        Bounds b = {data + bound(bounds, wide, row + 1), last};
        uint8_t *begin = to + *used, *end = NULL;
        int full = 0;
        if (chosen[row] < 0) {
            full = room - *used < b.end - start + SLACK;
            if (!full) end = copy(begin, start, b.end - start, last);
        } else {
            end = put_row(begin, to + room, start, &b, &plans[chosen[row]], &full);
        }
        if (full) return -1 - row;
        if (!end) return row;
        *used = end - to;
        ends[row + 1] = (int32_t)*used;
    }
    return rows;
}

#endif
