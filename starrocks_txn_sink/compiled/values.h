/* Values judged by their columns, and rewritten where one is to have another spelling (rows/values).

   A value that is plainly kept is skipped or copied. One with a plain conversion is written in its new spelling. Everything
   else ends the call, and Python judges the row: what is refused, and what is rare. Both agree on every value. */

#ifndef STARROCKS_TXN_SINK_VALUES_H
#define STARROCKS_TXN_SINK_VALUES_H

#include "json.h"

#define MOST_PLAIN 17     /* significant digits of a number that is judged here: 10^17 is below 2^57 */
#define MOST_KEYS 32      /* of a MAP whose keys are compared here, each with all others */
#define MOST_FIELDS 64    /* of a STRUCT that is judged here: as many bits */
#define MOST_LETTERS (1 << 20) /* of a text that stands for bytes: the server takes no longer ones */
#define MOST_POWER 22     /* 10^22 is the greatest power of 10 that a double has, and below 2^74 */

/* Where values go; `to` is NULL where they are judged alone. `changed`: one of them has another spelling. */
typedef struct {
    uint8_t *to;
    int changed;
} Output;

static const double powers_of_10[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                      1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* The value from `start` to `end` as it is. */
static inline Place keep(Place start, Place end, const Bounds *b, Output *output) {
    if (output->to) output->to = copy(output->to, start, end - start, b->last);
    return end;
}

/* `text` in place of the value that ends at `end`. */
static inline Place replace(Place end, const char *text, int64_t size, Output *output) {
    output->changed = 1;
    if (output->to) {
        memcpy(output->to, text, (size_t)size);
        output->to += size;
    }
    return end;
}

/* Numbers. */

/* A JSON number, whose first digit is at `first`: `digits` from the first that is not 0, of which the last `zeros` are 0, times
   10 to the `exponent`. `mantissa` has all of them, if there are 19 at most. `decimals` are written behind the point. */
typedef struct {
    Place first, end;
    uint64_t mantissa;
    int64_t digits, zeros, exponent, decimals;
    int negative, powered;
} Number;

static inline void take_digit(Number *number, uint8_t c) {
    if (c == '0') {
        if (number->digits) number->digits++, number->zeros++;
    } else {
        number->digits++;
        number->zeros = 0;
    }
    if (number->digits <= 19) number->mantissa = number->mantissa * 10 + (uint64_t)(c - '0');
}

/* Read the number at `p`; 0 for none, and for an exponent of more than three digits. */
static int read_number(Place p, const Bounds *b, Number *number) {
    *number = (Number){.first = p};
    if (at(p, b) == '-') {
        number->negative = 1;
        number->first = ++p;
    }
    if (at(p, b) == '0') {
        p++;
    } else {
        if (!is_digit(at(p, b))) return 0;
        for (; is_digit(at(p, b)); p++) take_digit(number, *p);
    }
    if (at(p, b) == '.') {
        Place point = p++;
        if (!is_digit(at(p, b))) return 0;
        for (; is_digit(at(p, b)); p++) take_digit(number, *p);
        number->decimals = p - point - 1;
        number->exponent = -number->decimals;
    }
    if ((at(p, b) | 0x20) == 'e') {
        int negative = at(++p, b) == '-';
        int64_t power = 0, size = 0;
        if (negative || at(p, b) == '+') p++;
        for (; is_digit(at(p, b)); p++, size++) power = power * 10 + (*p - '0');
        if (!size || size > 3) return 0;
        number->exponent += negative ? -power : power;
        number->powered = 1;
    }
    number->end = p;
    return 1;
}

/* The end of a number as most are written, without zeros in front and without an exponent, and how many digits it has in front
   of the point and behind it; NULL for another one, which `read_number` reads. `text`: a quote follows it. */
static inline Place skip_plain_number(Place p, const Bounds *b, int text, int64_t *whole, int64_t *decimals) {
    if (at(p, b) == '-') p++;
    Place first = p;
    while (is_digit(at(p, b))) p++;
    *whole = p - first;
    *decimals = 0;
    if (!*whole || (*whole > 1 && *first == '0')) return NULL;
    if (at(p, b) == '.') {
        Place point = ++p;
        while (is_digit(at(p, b))) p++;
        *decimals = p - point;
        if (!*decimals) return NULL;
    }
    if (text) return at(p, b) == '"' ? p + 1 : NULL;
    return (at(p, b) | 0x20) == 'e' ? NULL : p;
}

/* So many digits are an integer of the bits. */
static inline int64_t sure_digits(int64_t bits) {
    return bits == 64 ? 18 : bits == 32 ? 9 : bits == 128 ? 38 : bits == 16 ? 4 : 2;
}

/* Read the number in a text, which ends behind it; `*padded` says that it has more zeros in front than JSON writes. */
static int read_text(Place p, const Bounds *b, Number *number, int *padded) {
    int negative = at(p, b) == '-';
    Place first = p + negative;
    while (at(first, b) == '0' && is_digit(at(first + 1, b))) first++;
    *padded = first > p + negative;
    if (!read_number(*padded ? first : p, b, number) || at(number->end, b) != '"') return 0;
    if (*padded && negative) number->negative = 1;
    return 1;
}

/* The number without an exponent, and without zeros that say nothing; `end` is that of the value. */
static Place put_plain(Place end, const Number *number, int quoted, Output *output) {
    Place last = number->end;
    if (number->decimals) {
        while (last[-1] == '0') last--;
        if (last[-1] == '.') last--;
    }
    if (output->to && quoted) *output->to++ = '"';
    if (output->to && number->negative && number->digits) *output->to++ = '-';
    replace(end, (const char *)number->first, last - number->first, output);
    if (output->to && quoted) *output->to++ = '"';
    return end;
}

typedef unsigned __int128 Wide;

/* A normal, positive double times 10 to the `power`, rounded to an integer; -1 for the middle of two, and for a small one. */
static int64_t scaled(double number, int power) {
    uint64_t bits, fraction = (uint64_t)1 << 52;
    memcpy(&bits, &number, sizeof bits);
    int exponent = (int)(bits >> 52) - 1075;
    Wide product = (bits & (fraction - 1)) | fraction;
    for (; power > 19; power--) product *= 10;
    product *= (uint64_t)powers_of_10[power]; /* up to 10^19 below 2^64 */
    if (exponent >= 0) return exponent > 4 ? -1 : (int64_t)(product << exponent);
    if (exponent < -126) return -1;
    Wide half = (Wide)1 << (-exponent - 1), rest = product & ((half << 1) - 1);
    if (rest == half) return -1;
    return (int64_t)((product + half) >> -exponent);
}

/* The `n`th neighbour of a positive number among the doubles, or with `single` among the floats. */
static double neighbour(double number, int n, int single) {
    if (single) {
        float near = (float)number;
        uint32_t bits;
        memcpy(&bits, &near, sizeof bits);
        bits += (uint32_t)n;
        memcpy(&near, &bits, sizeof bits);
        return near;
    }
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    bits += (uint64_t)(int64_t)n;
    memcpy(&number, &bits, sizeof bits);
    return number;
}

/* Whether the binary number next to the mantissa divided by 10 to the `power`, or one of its neighbours, written with as many
   digits is the number again: a farther one would not be either. */
static int comes_back(uint64_t mantissa, int power, int single) {
    double near = (double)mantissa / powers_of_10[power];
    for (int n = 0; n < 3; n++) /* mostly the first one */
        if (scaled(neighbour(near, n == 2 ? -1 : n, single), power) == (int64_t)mantissa) return 1;
    return 0;
}

/* Whether a FLOAT (`single`) or DOUBLE gives back a number digit by digit; 0 also for one that is not judged here. */
static int gives_back(const Number *number, int single) {
    int64_t digits = number->digits - number->zeros, exponent = number->exponent + number->zeros;
    int64_t whole = digits + exponent;
    if (!digits) return 1;
    if (single ? whole < -36 || whole > 37 : whole < -300 || whole > 300) return 0;
    if (digits <= (single ? 6 : 15)) return 1;
    if (digits > MOST_PLAIN || number->digits > 19 || exponent > 0 || exponent < -MOST_POWER) return 0;
    uint64_t mantissa = number->mantissa;
    for (int64_t n = 0; n < number->zeros; n++) mantissa /= 10;
    return comes_back(mantissa, (int)-exponent, single);
}

static inline Place fit_truth(Place p, const Bounds *b, Output *output) {
    Place end = *p == 't' ? skip_word(p, b, "true", 4) : skip_word(p, b, "false", 5);
    return end ? replace(end, *p == 't' ? "1" : "0", 1, output) : NULL;
}

/* Whether `digits` digits behind a sign are an integer of the rule's bits. */
static int is_in_range(const Number *number, int64_t bits) {
    if (bits == 128) return number->digits <= 38;
    if (number->digits > 19) return 0;
    uint64_t most = ((uint64_t)1 << (bits - 1)) - !number->negative;
    return number->mantissa <= most;
}

/* A text or a number in a column of integers. */
static Place fit_integer(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    Number number;
    int text = *p == '"', padded = 0;
    if (*p == 't' || *p == 'f') return fit_truth(p, b, output);
    int64_t digits, decimals;
    Place end = skip_plain_number(p + text, b, text, &digits, &decimals);
    if (end && !decimals && digits <= sure_digits(rule->number)) return keep(p, end, b, output);
    if (!(text ? read_text(p + 1, b, &number, &padded) : read_number(p, b, &number)) || number.powered) return NULL;
    if (number.decimals || padded) { /* zeros alone, or a fraction */
        if (number.zeros < number.decimals && number.digits) return NULL;
        Number whole;
        Place point = number.decimals ? number.end - number.decimals - 1 : number.end;
        if (!read_number(number.first, &(Bounds){point, b->last}, &whole)) return NULL;
        whole.negative = number.negative;
        return is_in_range(&whole, rule->number) ? put_plain(number.end + text, &number, 0, output) : NULL;
    }
    if (!is_in_range(&number, rule->number)) return NULL;
    return keep(p, number.end + text, b, output);
}

static Place fit_boolean(Place p, const Bounds *b, Output *output) {
    Number number;
    Place end;
    if (*p == 't' || *p == 'f') {
        end = *p == 't' ? skip_word(p, b, "true", 4) : skip_word(p, b, "false", 5);
        return end ? keep(p, end, b, output) : NULL;
    }
    if (*p == '"') {
        end = skip_word(p, b, "\"true\"", 6);
        if (!end) end = skip_word(p, b, "\"false\"", 7);
        if (!end) end = skip_word(p, b, "\"0\"", 3);
        if (!end) end = skip_word(p, b, "\"1\"", 3);
        return end ? keep(p, end, b, output) : NULL;
    }
    if ((*p != '0' && *p != '1') || !read_number(p, b, &number) || number.end != p + 1) return NULL;
    return keep(p, p + 1, b, output);
}

static Place fit_floating(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    Number number;
    int text = *p == '"', padded = 0;
    if (*p == 't' || *p == 'f') return fit_truth(p, b, output);
    int64_t digits, decimals;
    Place end = skip_plain_number(p + text, b, text, &digits, &decimals);
    if (end && digits + decimals <= (rule->number == 32 ? 6 : 15)) return keep(p, end, b, output);
    if (!(text ? read_text(p + 1, b, &number, &padded) : read_number(p, b, &number))) return NULL;
    if (!number.powered && !number.decimals && number.digits > 38) return NULL;
    if (!gives_back(&number, rule->number == 32)) return NULL;
    if (padded) return number.powered ? NULL : put_plain(number.end + 1, &number, 0, output);
    return keep(p, number.end + text, b, output);
}

static Place fit_decimal(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    Number number;
    int text = *p == '"', padded = 0;
    if (*p == 't' || *p == 'f') return fit_truth(p, b, output);
    int64_t digits, decimals;
    Place end = skip_plain_number(p + text, b, text, &digits, &decimals);
    if (end && digits <= rule->whole && decimals <= rule->number) return keep(p, end, b, output);
    if (!(text ? read_text(p + 1, b, &number, &padded) : read_number(p, b, &number))) return NULL;
    if (number.digits > number.zeros) {
        if (number.exponent + number.zeros < -rule->number) return NULL;
        if (number.digits + number.exponent > rule->whole) return NULL;
    }
    if (number.powered) return padded ? NULL : keep(p, number.end + text, b, output);
    if (!padded && number.decimals <= rule->number) return keep(p, number.end + text, b, output);
    return put_plain(number.end + text, &number, text, output);
}

/* Dates and times. */

static inline int two_digits(Place p) { return is_digit(p[0]) && is_digit(p[1]) ? (p[0] - '0') * 10 + p[1] - '0' : -1; }

static int is_day(int year, int month, int day) {
    static const int8_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (month < 1 || month > 12 || day < 1) return 0;
    int leap = month == 2 && year && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return day <= days[month - 1] + leap;
}

/* A date, and for a MOMENT the time behind it; with a zone it becomes a time in UTC. */
static Place fit_moment(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    Place start = p, fraction = NULL;
    if (*p != '"' || b->end - p < 12) return NULL;
    p++;
    int century = two_digits(p), rest = two_digits(p + 2), month = two_digits(p + 5), day = two_digits(p + 8);
    if (century < 0 || rest < 0 || p[4] != '-' || p[7] != '-' || !is_day(century * 100 + rest, month, day)) return NULL;
    p += 10;
    if (*p == '"') return keep(start, p + 1, b, output);
    if (rule->kind == COLUMN_DAY) { /* behind it Z, or midnight */
        if (*p != 'Z') {
            if ((*p != ' ' && *p != 'T') || b->end - p < 10 || memcmp(p + 1, "00:00:00", 8)) return NULL;
            p += 9;
            if (*p == '.') {
                fraction = ++p;
                while (at(p, b) == '0') p++;
                if (p == fraction || p - fraction > 30) return NULL;
            }
            if (at(p, b) == 'Z' && rule->whole) return NULL;
        }
        if (at(p, b) == 'Z') p++;
        if (at(p, b) != '"') return NULL;
        replace(p + 1, (const char *)start, 11, output);
        if (output->to) *output->to++ = '"';
        return p + 1;
    }
    if ((*p != ' ' && *p != 'T') || b->end - p < 10 || p[3] != ':' || p[6] != ':') return NULL;
    int hour = two_digits(p + 1), minute = two_digits(p + 4), second = two_digits(p + 7), decimals = 0;
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) return NULL;
    p += 9;
    if (*p == '.') {
        fraction = ++p;
        while (is_digit(at(p, b))) p++;
        decimals = (int)(p - fraction);
        if (!decimals || decimals > 30) return NULL;
    }
    if (at(p, b) == '"' && decimals <= 6) return keep(start, p + 1, b, output);
    while (decimals && fraction[decimals - 1] == '0') decimals--;
    int64_t minutes = 0;
    if (decimals > 6) return NULL;
    if (at(p, b) != '"') {
        if (rule->whole) return NULL;
        if (at(p, b) == 'Z') {
            p++;
        } else {
            if (b->end - p < 7 || (*p != '+' && *p != '-') || p[3] != ':') return NULL;
            int hours = two_digits(p + 1), more = two_digits(p + 4);
            if (hours < 0 || hours > 18 || more < 0 || more > 59) return NULL;
            int year = century * 100 + rest;
            if (year < 2 || year > 9998) return NULL; /* the shifted time may be in no year */
            minutes = (*p == '+' ? -1 : 1) * (hours * 60 + more);
            p += 6;
        }
    }
    if (at(p, b) != '"') return NULL;
    output->changed = 1;
    if (!output->to) return p + 1;
    int64_t of_day = hour * 60 + minute + minutes, days = day_of(century * 100 + rest, month, day);
    if (of_day < 0) days--, of_day += 1440;
    if (of_day >= 1440) days++, of_day -= 1440;
    uint8_t *to = output->to;
    *to++ = '"';
    if (minutes) {
        to = put_date(to, days);
    } else {
        memcpy(to, start + 1, 10);
        to += 10;
    }
    *to++ = ' ';
    to = put_number(to, (uint64_t)of_day / 60, 2);
    *to++ = ':';
    to = put_number(to, (uint64_t)of_day % 60, 2);
    *to++ = ':';
    to = put_number(to, (uint64_t)second, 2);
    if (decimals) {
        *to++ = '.';
        for (int n = 0; n < 6; n++) *to++ = n < decimals ? fraction[n] : '0';
    }
    *to++ = '"';
    output->to = to;
    return p + 1;
}

/* Texts and documents. */

/* Whether a text has an escape that says more than its letter: of half of a pair, or of U+0000 in a CHAR. */
static int has_odd_escape(Place p, Place end, int chars) {
    for (; p + 5 < end; p++) {
        if (*p != '\\') continue;
        if (*++p != 'u') continue;
        if ((p[1] | 0x20) == 'd' && p[2] >= '8') {
            int high = p[2] < 'A' || (p[2] | 0x20) < 'c', low = 0;
            if (high && p + 10 < end && p[5] == '\\' && p[6] == 'u' && (p[7] | 0x20) == 'd') low = (p[8] | 0x20) >= 'c';
            if (!low) return 1;
            p += 10;
        }
        if (chars && p[1] == '0' && p[2] == '0' && p[3] == '0' && p[4] == '0') return 1;
    }
    return 0;
}

/* A document as the text of its JSON, without blanks. */
static Place fit_quoted(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    Place end = skip_value(p, b);
    uint8_t *to = output->to;
    int64_t size = 0;
    int inside = 0;
    if (!end) return NULL;
    if (to) *to++ = '"';
    for (; p < end; p++) {
        uint8_t c = *p;
        if (!inside && (c == ' ' || c == '\n' || c == '\r' || c == '\t')) continue;
        size++;
        if (to && (c == '"' || c == '\\')) *to++ = '\\';
        if (to) *to++ = c;
        if (inside && c == '\\') { /* what it escapes is copied along, also a quote */
            c = *++p;
            size++;
            if (to && (c == '"' || c == '\\')) *to++ = '\\';
            if (to) *to++ = c;
        } else if (c == '"') {
            inside = !inside;
        }
    }
    if (size > rule->number) return NULL;
    output->changed = 1;
    if (to) {
        *to++ = '"';
        output->to = to;
    }
    return end;
}

static Place fit_text(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    Place end;
    int escaped = 0;
    switch (*p) {
    case '"':
        end = end_of_string(p + 1, b, &escaped);
        if (!end || end - p - 1 > rule->number) return NULL;
        if (escaped && has_odd_escape(p + 1, end, rule->kind == COLUMN_CHAR)) return NULL;
        return keep(p, end + 1, b, output);
    case 't':
    case 'f':
        end = *p == 't' ? skip_word(p, b, "true", 4) : skip_word(p, b, "false", 5);
        if (!end || end - p > rule->number) return NULL;
        return *p == 't' ? replace(end, "\"true\"", 6, output) : replace(end, "\"false\"", 7, output);
    case '{':
    case '[':
        return fit_quoted(p, b, rule, output);
    default:
        end = skip_number(p, b);
        return end && end - p <= rule->number ? keep(p, end, b, output) : NULL;
    }
}

static inline int is_letter(uint8_t c, uint8_t first, uint8_t last) { return (uint8_t)(c - first) <= last - first; }

/* The six bits of a letter of base64. */
static inline int six_bits(uint8_t c) {
    if (is_letter(c, 'A', 'Z')) return c - 'A';
    if (is_letter(c, 'a', 'z')) return c - 'a' + 26;
    return is_digit(c) ? c - '0' + 52 : c == '+' ? 62 : 63;
}

/* A text that stands for bytes, which the server decodes: base64 in its one form for these bytes, or hexadecimal. */
static Place fit_bytes(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    int escaped = 0, odd = 0;
    if (*p != '"') return NULL;
    Place first = p + 1, end = end_of_string(first, b, &escaped);
    if (!end || escaped || end - first > MOST_LETTERS) return NULL;
    int64_t size = end - first;
    if (rule->whole) {
        if (size % 2 || size / 2 > rule->number) return NULL;
        for (Place c = first; c < end; c++) odd |= !is_digit(*c) & !is_letter(*c | 0x20, 'a', 'f');
        return odd ? NULL : keep(p, end + 1, b, output);
    }
    if (size % 4) return NULL;
    int padding = size && end[-1] == '=' ? 1 + (end[-2] == '=') : 0;
    if (size / 4 * 3 - padding > rule->number) return NULL;
    for (Place c = first; c < end - padding; c++)
        odd |= !is_letter(*c | 0x20, 'a', 'z') & !is_digit(*c) & (*c != '+') & (*c != '/');
    if (odd || (padding && six_bits(end[-padding - 1]) & ((1 << 2 * padding) - 1))) return NULL;
    return keep(p, end + 1, b, output);
}

static Place fit_document(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    Place end = skip_value(p, b), start = p;
    if (!end || end - p > rule->number) return NULL;
    while (p < end) {
        if (*p == '"') {
            int escaped = 0;
            Place close = end_of_string(p + 1, b, &escaped);
            if (!close || (escaped && has_odd_escape(p + 1, close, 0))) return NULL;
            p = close + 1;
        } else if (*p == '-' || is_digit(*p)) {
            Number number;
            if (!read_number(p, b, &number)) return NULL;
            int integer = !number.powered && !number.decimals && number.digits < 19;
            if (!integer && !gives_back(&number, 0)) return NULL;
            p = number.end;
        } else {
            p++;
        }
    }
    return keep(start, end, b, output);
}

static Place fit_value(Place p, const Bounds *b, const ColumnRule *rule, Output *output);

static Place fit_array(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    if (*p != '[') return NULL;
    Place start = p; /* of what is to be copied */
    p = skip_spaces(p + 1, b);
    if (at(p, b) == ']') return keep(start, p + 1, b, output);
    for (;;) {
        if (p >= b->end) return NULL;
        keep(start, p, b, output);
        start = p = fit_value(p, b, rule->inner, output);
        if (!p) return NULL;
        p = skip_spaces(p, b);
        if (at(p, b) == ']') return keep(start, p + 1, b, output);
        if (at(p, b) != ',') return NULL;
        p = skip_spaces(p + 1, b);
    }
}

/* What a member is that has no column of its own; the number of its column otherwise. */
enum { MALFORMED = -3, ESCAPED, OTHER };

/* The column of the member whose name begins at `p`; `*p` becomes the place of its value, and `*size` the name's. Members come
   mostly in the order of columns, so the search begins with column `next`. */
static inline int64_t column_at(Place *p, const Bounds *b, const ColumnRule *rules, int64_t count, int64_t next, int64_t *size) {
    if (next < count) {
        const ColumnRule *rule = &rules[next];
        if (b->end - *p > rule->name_size && !memcmp(*p, rule->name, (size_t)rule->name_size)) {
            *p = skip_spaces(*p + rule->name_size, b);
            *size = rule->name_size - 3;
            return *p < b->end ? next : MALFORMED;
        }
    }
    Place name, end, value;
    int escaped = 0;
    value = skip_name(*p, b, &name, &end, &escaped);
    if (!value || value >= b->end) return MALFORMED;
    *p = value;
    *size = end - name;
    if (escaped) return ESCAPED;
    for (int64_t n = 0; n < count; n++) {
        int64_t column = next + n < count ? next + n : next + n - count;
        if (rules[column].name_size == *size + 3 && !memcmp(rules[column].name + 1, name, (size_t)*size)) return column;
    }
    return OTHER;
}

/* A key fits as it is, or Python judges, also where there are many or one has an escape. */
static Place fit_map(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    Place names[MOST_KEYS], ends[MOST_KEYS], start = p;
    int count = 0, escaped = 0;
    if (*p != '{') return NULL;
    p = skip_spaces(p + 1, b);
    if (at(p, b) == '}') return keep(start, p + 1, b, output);
    for (;; count++) {
        Output judged = {NULL, 0};
        Place key = p;
        if (count == MOST_KEYS) return NULL;
        p = skip_name(p, b, &names[count], &ends[count], &escaped);
        if (!p || p >= b->end || escaped || !fit_value(key, b, &rule->inner[0], &judged) || judged.changed) return NULL;
        for (int n = 0; n < count; n++)
            if (ends[n] - names[n] == ends[count] - names[count] &&
                !memcmp(names[n], names[count], (size_t)(ends[n] - names[n])))
                return NULL;
        keep(start, p, b, output);
        start = p = fit_value(p, b, &rule->inner[1], output);
        if (!p) return NULL;
        p = skip_spaces(p, b);
        if (at(p, b) == '}') return keep(start, p + 1, b, output);
        if (at(p, b) != ',') return NULL;
        p = skip_spaces(p + 1, b);
    }
}

/* All fields, each once and by its very name, or Python judges. */
static Place fit_struct(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    uint64_t seen = 0;
    int64_t next = 0, count = rule->number;
    Place start = p;
    if (*p != '{' || count > MOST_FIELDS) return NULL;
    p = skip_spaces(p + 1, b);
    for (int64_t n = 0; n < count; n++) {
        int64_t size, field = column_at(&p, b, rule->inner, count, next, &size);
        if (field < 0 || seen >> field & 1) return NULL;
        seen |= (uint64_t)1 << field;
        next = field + 1;
        keep(start, p, b, output);
        start = p = fit_value(p, b, &rule->inner[field], output);
        if (!p) return NULL;
        p = skip_spaces(p, b);
        if (at(p, b) != (n == count - 1 ? '}' : ',')) return NULL;
        if (n < count - 1) p = skip_spaces(p + 1, b);
    }
    return keep(start, p + 1, b, output);
}

/* The place behind the value at `p`, which is written as its column keeps it; NULL where Python judges. */
static inline Place fit_value(Place p, const Bounds *b, const ColumnRule *rule, Output *output) {
    if (*p == 'n') {
        Place end = rule->nullable ? skip_word(p, b, "null", 4) : NULL;
        return end ? keep(p, end, b, output) : NULL;
    }
    switch (rule->kind) {
    case COLUMN_ANY: {
        Place end = skip_value(p, b);
        return end ? keep(p, end, b, output) : NULL;
    }
    case COLUMN_BOOLEAN: return fit_boolean(p, b, output);
    case COLUMN_INTEGER: return fit_integer(p, b, rule, output);
    case COLUMN_FLOATING: return fit_floating(p, b, rule, output);
    case COLUMN_DECIMAL: return fit_decimal(p, b, rule, output);
    case COLUMN_DAY:
    case COLUMN_MOMENT: return fit_moment(p, b, rule, output);
    case COLUMN_TEXT:
    case COLUMN_CHAR: return fit_text(p, b, rule, output);
    case COLUMN_BYTES: return fit_bytes(p, b, rule, output);
    case COLUMN_DOCUMENT: return fit_document(p, b, rule, output);
    case COLUMN_ARRAY: return fit_array(p, b, rule, output);
    case COLUMN_MAP: return fit_map(p, b, rule, output);
    case COLUMN_STRUCT: return fit_struct(p, b, rule, output);
    default: return NULL;
    }
}

#endif
