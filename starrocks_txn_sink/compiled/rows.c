/* JSON rows that are no plain object, and rows whose primary key may be too long. */

#include "json.h"

#define OWN_OP "__op"
#define DELETING "{\"" OWN_OP "\":1" /* in place of a deleted row's opening brace */

static inline int is_text(Place p, int64_t size, const char *text) {
    return size == (int64_t)strlen(text) && !memcmp(p, text, (size_t)size);
}

/* Whether a row, which is JSON, has half of a pair of surrogates: a backslash is always inside a string there. */
static int has_lone_surrogate(Place p, Place end) {
    while ((p = memchr(p, '\\', (size_t)(end - p)))) {
        if (p[1] != 'u') {
            p += 2;
            continue;
        }
        int32_t code = hex4(p + 2, end);
        p += 6;
        if (code < 0xD800 || code > 0xDFFF) continue;
        if (code > 0xDBFF || end - p < 6 || p[0] != '\\' || p[1] != 'u') return 1;
        code = hex4(p + 2, end);
        if (code < 0xDC00 || code > 0xDFFF) return 1;
        p += 6;
    }
    return 0;
}

/* Whether the row is surely one JSON object without the name OWN_OP, which a deleted row has in front. */
static int is_plain_object(Place row, const Bounds *b, int deleted) {
    Place p = row;
    int opened = deleted && b->end - p > (int64_t)strlen(DELETING) && !memcmp(p, DELETING, strlen(DELETING));
    if (opened) {
        p = skip_spaces(p + strlen(DELETING), b);
        if (at(p, b) == ',') p++;
        else if (at(p, b) != '}') return 0;
    } else {
        p = skip_spaces(p, b);
        if (at(p, b) != '{') return 0;
        p++;
    }
    p = skip_spaces(p, b);
    if (at(p, b) == '}') {
        if (opened && p[-1] == ',') return 0;
    } else {
        for (;;) {
            int escaped = 0;
            Place name, name_end;
            p = skip_name(p, b, &name, &name_end, &escaped);
            if (!p || escaped || is_text(name, name_end - name, OWN_OP)) return 0;
            p = skip_value(p, b);
            if (!p) return 0;
            p = skip_spaces(p, b);
            if (at(p, b) == '}') break;
            if (at(p, b) != ',') return 0;
            p = skip_spaces(p + 1, b);
        }
    }
    return skip_spaces(p + 1, b) == b->end && !has_lone_surrogate(row, b->end);
}

/* Write the numbers of the rows to `found` that may be something else than one JSON object; returns how many there are.
   Texts lie between `bounds` as in txn_sink_read; `deleted` has a byte a row, NULL: none is deleted. */
int64_t txn_sink_doubtful_rows(const void *bounds, int32_t wide, const uint8_t *data, const uint8_t *deleted,
                               int64_t rows, int64_t *found) {
    int64_t count = 0;
    Place last = data + bound(bounds, wide, rows) - 16;
    for (int64_t row = 0; row < rows; row++) {
        Bounds b = {data + bound(bounds, wide, row + 1), last};
        Place start = data + bound(bounds, wide, row);
        if (at(start, &b) != SEPARATOR || !is_plain_object(start + 1, &b, deleted && deleted[row])) found[count++] = row;
    }
    return count;
}

/* Whether the texts of a row's key may have more bytes than they may have, or the row is not plain. Escapes are longer than
   what they stand for. Of members of one name the first counts. */
static int may_have_long_key(Place p, const Bounds *b, const Plan *plan) {
    const KeyText *texts = plan->members;
    int64_t room = plan->only_named, left = plan->count;
    uint64_t met = 0;
    if (b->end - p <= room) return 0;
    if (at(p, b) != '{') return 1;
    p = skip_spaces(p + 1, b);
    while (at(p, b) != '}') {
        Place name, name_end, value;
        int escaped = 0;
        value = skip_name(p, b, &name, &name_end, &escaped);
        if (!value || escaped) return 1;
        p = skip_value(value, b);
        if (!p) return 1;
        for (int64_t n = 0; n < plan->count; n++) {
            if (name_end - name != texts[n].name_size || memcmp(name, texts[n].name, (size_t)texts[n].name_size)) continue;
            if (met >> n & 1) break;
            met |= (uint64_t)1 << n;
            room -= p - value - (*value == '"' ? 2 : 0);
            if (room < 0) return 1;
            if (!--left) return 0;
            break;
        }
        p = skip_spaces(p, b);
        if (at(p, b) != ',') return at(p, b) != '}';
        p = skip_spaces(p + 1, b);
    }
    return 0;
}

/* Write the numbers of the rows to `found` whose key may be too long by their plan (`chosen`; -1: none); returns how many
   there are. Texts lie between `bounds` as in txn_sink_read. */
int64_t txn_sink_long_keys(const void *bounds, int32_t wide, const uint8_t *data, const Plan *plans, const int32_t *chosen,
                           int64_t rows, int64_t *found) {
    int64_t count = 0;
    Place last = data + bound(bounds, wide, rows) - 16;
    for (int64_t row = 0; row < rows; row++) {
        Bounds b = {data + bound(bounds, wide, row + 1), last};
        Place start = data + bound(bounds, wide, row);
        if (chosen[row] < 0) continue;
        if (at(start, &b) != SEPARATOR || may_have_long_key(start + 1, &b, &plans[chosen[row]])) found[count++] = row;
    }
    return count;
}
