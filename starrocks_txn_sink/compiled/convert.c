/* Values of JSON rows as a schema of Connect explains them, rewritten. */

#include "put.h"

/* The least and the greatest value of PostgreSQL's infinity as Debezium writes it: days, and microseconds of a timestamp. */
#define DATE_INFINITY (-2147472692)
#define DATE_MINUS_INFINITY (-2147472691)
/* In a snapshot: the days of PostgreSQL's infinite Java dates, in the zone of the connector, as far as 32 bits have them. */
#define SNAPSHOT_INFINITY (-622191234)
#define SNAPSHOT_MINUS_INFINITY (-625821272)
#define MICROS_INFINITY 9223372036825200000
#define MICROS_MINUS_INFINITY (-9223372036832400000)
/* The days of the years 1 to 9999. */
#define FIRST_DAY (-719162)
#define LAST_DAY 2932896

static int64_t power_of_10(int64_t exponent) {
    int64_t power = 1;
    while (exponent-- > 0) power *= 10;
    return power;
}

static uint8_t *put_time(uint8_t *to, int64_t value, int64_t decimals) {
    uint64_t unit = (uint64_t)power_of_10(decimals), size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0) *to++ = '-';
    return put_clock(to, size / unit, (int64_t)(size % unit) * power_of_10(9 - decimals));
}

static uint8_t *put_timestamp(uint8_t *to, int64_t seconds, int64_t nanos) {
    int64_t days = seconds / 86400 - (seconds % 86400 < 0);
    to = put_date(to, days);
    *to++ = ' ';
    return put_clock(to, (uint64_t)(seconds - days * 86400), nanos);
}

/* 1 for the days of infinity, -1 for those of -infinity, else 0; no source has dates there. */
static int infinite_day(int64_t days) {
    int64_t low = (int32_t)(uint32_t)(uint64_t)days;
    if (low == DATE_INFINITY || (low >= SNAPSHOT_INFINITY - 1 && low <= SNAPSHOT_INFINITY + 1)) return 1;
    if (low == DATE_MINUS_INFINITY || (low >= SNAPSHOT_MINUS_INFINITY - 1 && low <= SNAPSHOT_MINUS_INFINITY + 1)) return -1;
    return 0;
}

static uint8_t *put_infinity(uint8_t *to, int negative) { return put_text(to, negative ? "-infinity" : "infinity"); }

static uint8_t *put_unix_time(uint8_t *to, int64_t value, int64_t decimals) {
    int64_t unit = power_of_10(decimals), micros = power_of_10(6 - decimals); /* of nanoseconds infinity is none: too large */
    if (decimals <= 6 && (value == MICROS_INFINITY / micros || value == MICROS_MINUS_INFINITY / micros))
        return put_infinity(to, value < 0);
    int64_t rest = value % unit, earlier = rest < 0;
    return put_timestamp(to, value / unit - earlier, (rest + earlier * unit) * power_of_10(9 - decimals));
}

/* The number of `digits` digits at `*p`, which moves behind them; -1 if there are none. */
static int64_t take_digits(Place *p, Place end, int digits) {
    int64_t number = 0;
    if (end - *p < digits) return -1;
    for (; digits; digits--, ++*p) {
        if (!is_digit(**p)) return -1;
        number = number * 10 + (**p - '0');
    }
    return number;
}

static int take(Place *p, Place end, char character) {
    if (*p >= end || **p != (uint8_t)character) return 0;
    ++*p;
    return 1;
}

/* Read `YYYY-MM-DD`, with a sign and more digits beyond the year 9999 or before 0; 0 for any other text. */
static int take_date(Place *p, Place end, int64_t *days) {
    int negative = take(p, end, '-'), signs = negative || take(p, end, '+'), digits = 0;
    while (*p + digits < end && digits < 10 && is_digit((*p)[digits])) digits++;
    if (digits < 4 || digits > 9 || (digits > 4 && !signs)) return 0;
    int64_t year = take_digits(p, end, digits), month, day;
    if (!take(p, end, '-') || (month = take_digits(p, end, 2)) < 1 || month > 12) return 0;
    if (!take(p, end, '-') || (day = take_digits(p, end, 2)) < 1 || day > 31) return 0;
    *days = day_of(negative ? -year : year, (int)month, (int)day);
    return 1;
}

/* Read `HH:MM:SS`, perhaps with decimals, up to 9; 0 for any other text. */
static int take_clock(Place *p, Place end, int64_t *seconds, int64_t *nanos) {
    int64_t hour = take_digits(p, end, 2), minute, second;
    if (hour < 0 || hour > 23 || !take(p, end, ':') || (minute = take_digits(p, end, 2)) < 0 || minute > 59) return 0;
    if (!take(p, end, ':') || (second = take_digits(p, end, 2)) < 0 || second > 59) return 0;
    *seconds = hour * 3600 + minute * 60 + second;
    *nanos = 0;
    if (!take(p, end, '.')) return 1;
    int digits = 0;
    while (*p + digits < end && digits < 10 && is_digit((*p)[digits])) digits++;
    if (!digits || digits > 9) return 0;
    *nanos = take_digits(p, end, digits) * power_of_10(9 - digits);
    return 1;
}

/* Read `Z` or `+HH:MM` at the end of a text; 0 for any other text. */
static int take_offset(Place *p, Place end, int64_t *seconds) {
    int64_t hour, minute;
    *seconds = 0;
    if (take(p, end, 'Z')) return *p == end;
    int negative = take(p, end, '-');
    if (!negative && !take(p, end, '+')) return 0;
    if ((hour = take_digits(p, end, 2)) < 0 || hour > 18) return 0;
    if (!take(p, end, ':') || (minute = take_digits(p, end, 2)) < 0 || minute > 59) return 0;
    *seconds = (hour * 3600 + minute * 60) * (negative ? -1 : 1);
    return *p == end;
}

/* Write the text between two quotes, of kind ISO_DATE, ISO_TIME or ISO_TIMESTAMP; NULL for any other text. */
static uint8_t *put_iso(uint8_t *to, Place p, Place end, int64_t kind) {
    int64_t days = 0, seconds = 0, nanos = 0, offset;
    if (kind != CONVERSION_ISO_TIME && !take_date(&p, end, &days)) return NULL;
    if (kind == CONVERSION_ISO_TIMESTAMP && !take(&p, end, 'T')) return NULL;
    if (kind != CONVERSION_ISO_DATE && !take_clock(&p, end, &seconds, &nanos)) return NULL;
    if (!take_offset(&p, end, &offset) || (kind != CONVERSION_ISO_TIMESTAMP && offset)) return NULL;
    if (kind == CONVERSION_ISO_TIME) return put_clock(to, (uint64_t)seconds, nanos);
    if (kind == CONVERSION_ISO_DATE) {
        return infinite_day(days) ? put_infinity(to, infinite_day(days) < 0) : put_date(to, days);
    }
    seconds += days * 86400 - offset;
    if (seconds == MICROS_INFINITY / 1000000 && nanos == 200000000) return put_infinity(to, 0);
    if (seconds == MICROS_MINUS_INFINITY / 1000000 - 1 && nanos == 600000000) return put_infinity(to, 1);
    return put_timestamp(to, seconds, nanos);
}

static inline int base64_digit(uint8_t c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (is_digit(c)) return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* The number of bytes that the base64 between two quotes has; -1 for another text, for no byte and for more than MOST_BYTES. */
static int from_base64(Place p, Place end, uint8_t *bytes) {
    int64_t size = end - p;
    int count = 0;
    if (!size || size % 4 || size / 4 * 3 > MOST_BYTES + 2) return -1;
    int padding = (end[-1] == '=') + (end[-1] == '=' && end[-2] == '=');
    for (; p < end; p += 4) {
        uint32_t group = 0;
        int last = p + 4 == end ? padding : 0;
        for (int i = 0; i < 4; i++) {
            int digit = i >= 4 - last ? 0 : base64_digit(p[i]);
            if (digit < 0) return -1;
            group = group << 6 | (uint32_t)digit;
        }
        if (last && group & (last == 1 ? 0xFFu : 0xFFFFu)) return -1; /* bits that no byte has */
        for (int i = 0; i < 3 - last; i++) bytes[count++] = (uint8_t)(group >> (16 - 8 * i));
    }
    return count <= MOST_BYTES ? count : -1;
}

static uint8_t *put_decimal(uint8_t *to, Place p, Place end, int64_t scale) {
    uint8_t bytes[MOST_BYTES + 2];
    int count = from_base64(p, end, bytes);
    if (count < 0 || scale > MOST_DIGITS || scale < -MOST_DIGITS) return NULL;
    return put_signed_bytes(to, bytes, count, scale);
}

/* Write bits, of which the first byte has the least significant ones, as a whole number. */
static uint8_t *put_bits(uint8_t *to, Place p, Place end) {
    uint8_t bytes[MOST_BYTES + 2];
    int count = from_base64(p, end, bytes);
    if (count < 0) return NULL;
    for (int i = 0; i < count / 2; i++) {
        uint8_t byte = bytes[i];
        bytes[i] = bytes[count - 1 - i];
        bytes[count - 1 - i] = byte;
    }
    return put_bytes_as_number(to, bytes, count, 0);
}

/* Write an object with the members `scale` and `value`; NULL outside of the subset. `*p` moves behind it. */
static uint8_t *put_variable_decimal(uint8_t *to, Place *p, const Bounds *b) {
    Place name, name_end, start = NULL, end = NULL;
    int64_t scale = 0;
    int scales = 0, escaped = 0;
    if (at(*p, b) != '{') return NULL;
    *p = skip_spaces(*p + 1, b);
    for (;;) {
        *p = skip_name(*p, b, &name, &name_end, &escaped);
        if (!*p || escaped) return NULL;
        if (name_end - name != 5) return NULL;
        if (!memcmp(name, "scale", 5)) {
            Place number = *p;
            *p = skip_number(*p, b);
            if (!*p || scales++ || !whole_number(number, *p, &scale)) return NULL;
        } else {
            if (memcmp(name, "value", 5) || start || at(*p, b) != '"') return NULL;
            start = *p + 1;
            end = end_of_string(start, b, &escaped);
            if (!end || escaped) return NULL;
            *p = end + 1;
        }
        *p = skip_spaces(*p, b);
        if (at(*p, b) == '}') break;
        if (at(*p, b) != ',') return NULL;
        *p = skip_spaces(*p + 1, b);
    }
    ++*p;
    return start && scales ? put_decimal(to, start, end, scale) : NULL;
}

/* Write the document whose text is the string at `*p`, or the value there that is no string; NULL if it is none. `*full` says
   that there was no room. */
static uint8_t *put_document(uint8_t *to, const uint8_t *most, Place *p, const Bounds *b, int *full) {
    int escaped = 0;
    Place start = *p + 1;
    int quoted = at(*p, b) == '"';
    Place end = quoted ? end_of_string(start, b, &escaped) : skip_value(*p, b);
    if (!end) return NULL;
    if (most - to < end - *p + ROOM_A_VALUE) {
        *full = 1;
        return NULL;
    }
    if (!quoted) {
        to = copy(to, *p, end - *p, b->last);
        *p = end;
        return to;
    }
    uint8_t *written = escaped ? unescape(to, start, end, b->last) : copy(to, start, end - start, b->last);
    if (!written) return NULL;
    Bounds text = {written, written - 16};
    Place after = skip_value(skip_spaces(to, &text), &text);
    *p = end + 1;
    return after && skip_spaces(after, &text) == written ? written : NULL;
}

/* Rewrite one value; NULL outside of the subset. `*p` moves behind it. */
static uint8_t *put_value(uint8_t *to, Place *p, const Bounds *b, const Conversion *as) {
    Place start = *p;
    int64_t number;
    int escaped = 0;
    if (at(start, b) == 'n') {
        *p = skip_word(start, b, "null", 4);
        return *p ? put_text(to, "null") : NULL;
    }
    if (as->kind == CONVERSION_DECIMAL && at(start, b) != '"') { /* the converter's decimal.format is NUMERIC */
        *p = skip_number(start, b);
        return *p && *p - start <= MOST_DIGITS ? copy(to, start, *p - start, b->last) : NULL;
    }
    if (as->kind != CONVERSION_BITS) *to++ = '"';
    switch (as->kind) {
    case CONVERSION_DATE: case CONVERSION_TIME: case CONVERSION_TIMESTAMP:
        *p = skip_number(start, b);
        if (!*p || !whole_number(start, *p, &number)) return NULL;
        if (as->bare && (as->number < 0 || (as->kind == CONVERSION_TIMESTAMP && number && number >= FIRST_DAY && number <= LAST_DAY)))
            return NULL;
        if (as->kind == CONVERSION_TIME)
            to = put_time(to, number, as->number);
        else if (as->kind == CONVERSION_TIMESTAMP)
            to = put_unix_time(to, number, as->number);
        else if (number < INT32_MIN || number > INT32_MAX)
            return NULL;
        else if (infinite_day(number))
            to = put_infinity(to, infinite_day(number) < 0);
        else
            to = put_date(to, number);
        break;
    case CONVERSION_VARIABLE_DECIMAL:
        to = put_variable_decimal(to, p, b);
        break;
    default:
        if (at(start, b) != '"') return NULL;
        *p = end_of_string(start + 1, b, &escaped);
        if (!*p || escaped) return NULL;
        to = as->kind == CONVERSION_DECIMAL ? put_decimal(to, start + 1, *p, as->number)
             : as->kind == CONVERSION_BITS  ? put_bits(to, start + 1, *p)
                                 : put_iso(to, start + 1, *p, as->kind);
        ++*p;
    }
    if (to && as->kind != CONVERSION_BITS) *to++ = '"';
    return to;
}

/* Whether a string may be bytes: Python judges it then. */
static int may_be_base64(Place p, const Bounds *b) {
    int escaped = 0;
    Place start = p, end = end_of_string(p, b, &escaped);
    if (!end || escaped) return 1;
    for (; p < end; p++)
        if (*p != '=' && base64_digit(*p) < 0) return 0;
    return (end - start) % 4 == 0;
}

/* Whether a value stays as it is. */
static int stays(const Conversion *as, Place p, const Bounds *b) {
    uint8_t first = at(p, b);
    if (as->kind == CONVERSION_UNSIGNED) return first != '-'; /* Python writes the others, which are rare */
    if (!as->bare) return 0;
    if (as->kind != CONVERSION_VARIABLE_DECIMAL) return first != '-' && (first < '0' || first > '9');
    return first == '"' ? !may_be_base64(p + 1, b) : first != '{';
}

/* A PutRow for plans of Conversions; a comma may stand in front of the row. */
static uint8_t *put_converted(uint8_t *to, const uint8_t *most, Place p, const Bounds *b, const Plan *plan, int *full) {
    const Conversion *members = plan->members;
    Place copied = p;
    int64_t expected = 0;
    p = skip_spaces(at(p, b) == ',' ? p + 1 : p, b);
    if (at(p, b) != '{') return NULL;
    p = skip_spaces(p + 1, b);
    for (int first = 1; at(p, b) != '}'; first = 0) {
        int escaped = 0, array;
        Place name, name_end;
        if (!first) {
            if (at(p, b) != ',') return NULL;
            p = skip_spaces(p + 1, b);
        }
        p = skip_name(p, b, &name, &name_end, &escaped);
        if (!p || escaped) return NULL;
        const Conversion *as = NULL;
        for (int64_t i = 0; i < plan->count && !as; i++) {
            const Conversion *member = &members[(expected + i) % plan->count];
            if (member->name_size == name_end - name && !memcmp(member->name, name, (size_t)member->name_size)) {
                as = member;
                expected = (expected + i + 1) % plan->count;
            }
        }
        if (!as || as->kind == CONVERSION_KEEP) {
            p = skip_value(p, b);
            if (!p) return NULL;
            p = skip_spaces(p, b);
            continue;
        }
        if (as->kind == CONVERSION_ODD) return NULL;
        array = as->array && at(p, b) == '[';
        if (as->array && !array && at(p, b) != 'n') return NULL;
        if (array) p = skip_spaces(p + 1, b);
        for (int empty = array && at(p, b) == ']';;) {
            if (!empty && stays(as, p, b)) {
                p = skip_value(p, b);
                if (!p) return NULL;
            } else {
                if (most - to < p - copied + ROOM_A_VALUE) {
                    *full = 1;
                    return NULL;
                }
                to = copy(to, copied, p - copied, b->last);
                if (!empty) to = as->kind == CONVERSION_DOCUMENT ? put_document(to, most, &p, b, full) : put_value(to, &p, b, as);
                if (!to) return NULL;
                copied = p;
            }
            if (!array) break;
            p = skip_spaces(p, b);
            if (at(p, b) == ']') {
                p++;
                break;
            }
            if (at(p, b) != ',' || empty) return NULL;
            p = skip_spaces(p + 1, b);
        }
        p = skip_spaces(p, b);
    }
    if (skip_spaces(p + 1, b) != b->end) return NULL;
    if (most - to < b->end - copied + SLACK) {
        *full = 1;
        return NULL;
    }
    return copy(to, copied, b->end - copied, b->last);
}

/* Rewrite rows by plans of Conversions (`rewrite`). */
int64_t txn_sink_convert(const void *bounds, int32_t wide, const uint8_t *data, const Plan *plans, const int32_t *chosen,
                         int64_t rows, uint8_t *to, int64_t room, int64_t *used, int32_t *ends, int64_t row) {
    return rewrite(put_converted, bounds, wide, data, plans, chosen, rows, to, room, used, ends, row);
}
