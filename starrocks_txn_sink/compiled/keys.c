/* Rows whose primary key may be too long. */

#include "json.h"

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
